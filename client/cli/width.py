# SPDX-License-Identifier: Apache-2.0
"""How wide a line may be: as the terminal is. Where standard output is no terminal a line is never wrapped or cut, so
grep, awk and a log find what belongs together in one line."""

from __future__ import annotations

import shutil
import sys
import textwrap

NARROWEST = 40
NO_LIMIT = 100_000
"""Of a pipe or a file."""


def columns() -> int:
    """Of the terminal that standard output is; NO_LIMIT where it is none."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else NO_LIMIT


def wrapped(text: str, rest: str = "", first: str = "", width: int | None = None) -> list[str]:
    """The lines of a text, broken at spaces; |first| stands before the first one, |rest| before the others. |width|:
    None for that of `columns`."""
    most = columns() if width is None else width
    return textwrap.wrap(
        text, most, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def cut(line: str) -> str:
    """A line of a screen, which must be one: two dots at its end where it would be longer."""
    most = columns()
    return line if len(line) <= most else f"{line[: most - 2]}.."
