# SPDX-License-Identifier: Apache-2.0
"""`python -m ultima.cli` is `ultima`, where the command itself is not on the path."""

from ultima.cli.entry import main

main()
