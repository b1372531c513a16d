# SPDX-License-Identifier: Apache-2.0
"""Writes what the schema says into each file that spells it, between two comments that name the rows:

    /* generated: ut_receipt (schema/) */
    ...
    /* generated: end */

What it writes is committed, so nobody needs it to build or to read; a check writes again and compares. It lays out C
and Python with the clang-format and the ruff that the house's style is checked with.

    python -m schema.generate            writes the files
    python -m schema.generate --check    says which ones are not current; exit status 1 if any
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from schema.events import OP_RECORD, check_kept
from schema.homes import STRUCTS, WORDS, Home, homes
from schema.metrics import METRICS, check_metrics
from schema.option import check_options
from schema.options import OPTIONS
from schema.rows import SchemaError, check_enum, check_struct

ROOT = Path(__file__).resolve().parents[1]
END = "generated: end"


def fill(path: str, before: str, home: Home) -> str:
    """The file's text with each of its regions as the schema has it. Raises SchemaError for a region that is not
    there, or is there and not known."""
    lines, ret = iter(before.splitlines()), []
    left = dict(home)
    for line in lines:
        ret.append(line)
        if line.startswith(" ") and line in left:
            ret += left.pop(line)
            ret += next(([each] for each in lines if not each.strip()), [])
            continue
        begin = re.search(r"generated: (.+) \(schema/\)", line)
        if not begin:
            continue
        if begin[1] not in left:
            raise SchemaError(f"{path}: region {begin[1]!r}: the schema has {', '.join(home)} for this file, each once")
        ret += left.pop(begin[1])
        end = next((each for each in lines if END in each), None)
        if end is None:
            raise SchemaError(f"{path}: region {begin[1]!r}: no line with {END!r} after it")
        ret.append(end)
    if left:
        raise SchemaError(f"{path}: no region {', '.join(map(repr, left))}: a line with 'generated: NAME (schema/)'")
    return _styled(path, "\n".join(ret) + "\n")


def generate() -> dict[str, str]:
    """What each file should hold, by its path from the root. Raises SchemaError for a row that cannot be right."""
    for at, struct in enumerate(STRUCTS):
        check_struct(struct, STRUCTS[:at])
    for enum in WORDS:
        check_enum(enum)
    check_options(OPTIONS)
    check_metrics(METRICS)
    check_kept(OP_RECORD)
    return {path: fill(path, (ROOT / path).read_text(), home) for path, home in homes().items()}


def stale() -> list[str]:
    """The files that do not hold what they should."""
    return sorted(path for path, text in generate().items() if (ROOT / path).read_text() != text)


def _styled(path: str, text: str) -> str:
    tools = Path(sys.executable).parent
    style = {
        ".h": ["clang-format", f"--assume-filename={ROOT / path}"],
        ".py": ["ruff", "format", f"--stdin-filename={ROOT / path}", "-"],
    }.get(Path(path).suffix)
    if style is None:
        return text
    name, *options = style
    command = [str(tools / name), *options]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=False)
    except OSError as error:
        raise SchemaError(f"{path}: {command[0]}: {error.strerror}: `make setup` installs it") from None
    if done.returncode:
        raise SchemaError(f"{path}: {name}: {done.stderr.strip()}")
    return done.stdout


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if arguments:
            names = stale()
            for name in names:
                print(f"{name} is not what the schema says: run `make schema`", file=sys.stderr)
            return 1 if names else 0
        for path, text in generate().items():
            if (ROOT / path).read_text() != text:
                (ROOT / path).write_text(text)
                print(path)
    except SchemaError as error:
        print(f"schema: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
