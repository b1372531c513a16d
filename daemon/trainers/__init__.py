# SPDX-License-Identifier: Apache-2.0
"""The trainers of this host: how they attach, whose they are, and how much memory each user may take."""
