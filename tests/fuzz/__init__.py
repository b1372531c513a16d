# SPDX-License-Identifier: Apache-2.0
"""Random input for all that parses what another process has sent, in Python. The C parsers have tests/c and the lab."""
