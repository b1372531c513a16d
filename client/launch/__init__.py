# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of one host and a daemon where none runs, and finds out where other hosts reach this one."""
