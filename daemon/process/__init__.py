# SPDX-License-Identifier: Apache-2.0
"""The process `ultimad`: it reads the command line, puts one daemon together, talks to systemd, and ends."""
