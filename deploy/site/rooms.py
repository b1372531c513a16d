# SPDX-License-Identifier: Apache-2.0
"""Writes the lists in docs/architecture.md: what each room of the Python code is for, and which others it uses.

    python deploy/site/rooms.py            writes them anew
    python deploy/site/rooms.py --check    fails if they are not what the code says

A room is a folder of client/ or daemon/. What it is for is the first sentence of its `__init__`.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
PACKAGES = {"client": "ultima", "daemon": "ultima.daemon"}


def rooms(side: str) -> dict[str, Path]:
    """The rooms of a |side|, by the name of their package."""
    folders = [file.parent for file in sorted((ROOT / side).glob("*/**/__init__.py"))]
    return {".".join([PACKAGES[side], *folder.relative_to(ROOT / side).parts]): folder for folder in folders}


def uses(side: str) -> dict[str, set[str]]:
    """For each room those of the same side whose files it imports."""
    known = rooms(side)
    ret: dict[str, set[str]] = {}
    for room, folder in known.items():
        trees = [ast.parse(file.read_text()) for file in folder.glob("*.py")]
        nodes = [node for tree in trees for node in ast.walk(tree)]
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        found = {max((it for it in known if f"{name}.".startswith(f"{it}.")), key=len, default=room) for name in names}
        ret[room] = found - {room}
    return ret


def listing(side: str) -> str:
    """The rooms of a |side|, the highest first: each uses rooms below it alone."""
    arrows, known = uses(side), rooms(side)
    heights: dict[str, int] = {}
    while len(heights) < len(arrows):
        ready = [room for room in arrows if room not in heights and arrows[room] <= heights.keys()]
        assert ready, f"a circle among {sorted(arrows.keys() - heights.keys())}"
        heights |= {room: 1 + max((heights[it] for it in arrows[room]), default=0) for room in ready}
    lines = []
    for room in sorted(arrows, key=lambda it: (-heights[it], it)):
        said = ast.get_docstring(ast.parse((known[room] / "__init__.py").read_text())) or ""
        purpose = re.split(r"(?<=\.)\s", " ".join(said.split("\n\n")[0].split()))[0].rstrip(".:")
        short = ", ".join(sorted(it.removeprefix(f"{PACKAGES[side]}.").replace(".", "/") for it in arrows[room]))
        text = f"* `{known[room].relative_to(ROOT)}`: {purpose}. It uses {short or 'no other room'}."
        lines += textwrap.wrap(text, 120, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def filled(text: str) -> str:
    """The page with lists that are true now."""
    for side in PACKAGES:
        marks = f"<!-- rooms of {side} -->", f"<!-- end of {side} -->"
        text = re.sub(f"{marks[0]}.*{marks[1]}", f"{marks[0]}\n\n{listing(side)}\n\n{marks[1]}", text, flags=re.DOTALL)
    return text


def main() -> int:
    """See the module."""
    text = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        return int(filled(text) != text)
    PAGE.write_text(filled(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
