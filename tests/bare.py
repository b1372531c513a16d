# SPDX-License-Identifier: Apache-2.0
"""Environments with few packages, for programs that must do without the others: nothing is downloaded or copied.

A folder of links to what is installed here is all that such a Python finds beside its standard library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def closure(names: Sequence[str], of_ours: Sequence[str] = ("",)) -> set[str]:
    """Those distributions and all that they need here, of our own with these extras ("": none); spelled as in pip."""
    found: set[str] = set()
    open_ones = [(name, "") for name in names] + [("ultimad", extra) for extra in of_ours]
    seen = set(open_ones)
    while open_ones:
        name, extra = open_ones.pop()
        found.add(name)
        for line in distribution(name).requires or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                new = {(re.sub(r"[-_.]+", "-", need.name).lower(), each) for each in (need.extras or {""})}
                open_ones += new - seen
                seen |= new
    return found


def link_ours(site: Path) -> None:
    """Puts our package into a folder of packages, as links to the sources of this checkout."""
    for source, target in (("client", ""), ("daemon", "daemon"), ("proto/ultima/v1", "v1")):
        package = site / "ultima" / target
        package.mkdir(parents=True, exist_ok=True)
        for path in (ROOT / source).iterdir():
            if path.name != "__pycache__":
                (package / path.name).symlink_to(path)


class Bare:
    """A Python with our package and no more than the named distributions."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        for name in names:
            self._link_distribution(name)
        link_ours(folder)

    def without(self, *modules: str) -> None:
        """Takes these away as well."""
        for module in modules:
            for path in self.folder.glob(f"{module}*"):
                path.unlink()

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with those arguments; -S keeps it from the packages that are installed here."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ULTIMA", "PYTHON"))}
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            env=clean | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"} | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def _link_distribution(self, name: str) -> None:
        there = distribution(name)
        for path in there.files or ():
            top = path.parts[0]
            link = self.folder / top
            if top not in ("..", "__pycache__") and not link.exists() and "__editable__" not in top:
                link.symlink_to(Path(str(there.locate_file(top))))
