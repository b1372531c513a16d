# SPDX-License-Identifier: Apache-2.0
"""The command `ultima`: `main` holds the table of verbs, every verb has a file of its own."""
