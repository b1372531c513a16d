# SPDX-License-Identifier: Apache-2.0
"""The way in to the shell command, which says in one sentence what is missing where the command was not asked for when
Ultima was installed: a trainer does without typer and rich.
"""

from __future__ import annotations

import sys

from ultima.v1.installed import missing


def main() -> None:
    """The console script `ultima`, and `python -m ultima`. Exits as the first lines of main.py say."""
    try:
        from ultima.cli.main import main as command
    except ModuleNotFoundError as error:
        said = missing(error, "the command `ultima`")
        if said is None:
            raise
        sys.exit(f"ultima: {said}")
    command()
