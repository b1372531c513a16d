# SPDX-License-Identifier: Apache-2.0
"""Tests of daemons that authenticate each other."""
