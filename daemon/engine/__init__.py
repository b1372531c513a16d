# SPDX-License-Identifier: Apache-2.0
"""The engine of the extension behind a typed face, and several of them as one. The only room that touches C memory."""
