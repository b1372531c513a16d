# SPDX-License-Identifier: Apache-2.0
"""Random input for all that parses what another process has sent: in Python test_foreign.py, in C `targets/`, which
libFuzzer runs (test_targets.py) from the inputs that are kept in `corpus/`."""
