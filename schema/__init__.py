# SPDX-License-Identifier: Apache-2.0
"""Facts that C, Python, messages and documents all spell, said once; generate.py writes them to where they are read."""
