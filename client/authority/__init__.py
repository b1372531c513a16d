# SPDX-License-Identifier: Apache-2.0
"""A cluster's authority: its folder, the certificates it issues, tokens by which hosts enrol, and who is withdrawn."""
