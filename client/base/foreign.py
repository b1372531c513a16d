# SPDX-License-Identifier: Apache-2.0
"""What else is called `ultima`, and is imported in our place: another project's package, or a file beside a script.

Where something hides this package altogether, none of its code runs in the program that suffers from it. So whoever
starts or examines programs (`ultima run`, `ultima doctor`) has to look.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from ultima.v1.installed import DISTRIBUTION, command

NAME = "ultima"
OURS = Path(__file__).resolve().parents[1]
_TAKE_A_WORD = ("-W", "-X", "--check-hash-based-pycs")


class Clash(NamedTuple):
    """Two things of one name, and what a user can do about them."""

    finding: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.finding}: {self.remedy}"


def intruder() -> Clash | None:
    """Another distribution that has installed an `ultima/__init__.py`: the one of the two that came first is broken."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(NAME)
    except PackageNotFoundError:
        return None
    inside = f"{NAME}/__init__.py"
    if inside not in {str(path) for path in found.files or ()}:
        return None
    return Clash(
        f"another project's package, {NAME} {found.version}, is installed beside {DISTRIBUTION} and is imported by the "
        f"same name, from {Path(str(found.locate_file(NAME)))}",
        f"pip uninstall {NAME}, then {command('')} --force-reinstall",
    )


def hidden_by(folders: Sequence[Path]) -> Clash | None:
    """What `import ultima` finds in the place of this package where |folders| come first on Python's path.

    A folder without an `__init__.py` counts only where this package is installed in editable form: Python takes such a
    folder if no entry of its path holds a package of that name.
    """
    for folder in folders:
        spec = PathFinder.find_spec(NAME, [str(folder)])
        if spec is None:
            continue
        inside = [*(spec.submodule_search_locations or ())]
        if spec.origin is None:
            behind = PathFinder.find_spec(NAME)
            if behind is not None and behind.origin is not None:
                continue
        found = inside[0] if inside else str(spec.origin)
        if spec.origin is not None and Path(spec.origin).resolve() == OURS / "__init__.py":
            return None
        return Clash(
            f"{found} hides the package {NAME}: programs started there import the wrong one",
            "rename it, or start them elsewhere",
        )
    return None


def first_folders(program: Sequence[str], environment: Mapping[str, str]) -> list[Path]:
    """What Python puts first on its path if |program| is a Python script or starts one: the script's folder, or the
    working directory for -m and -c; then PYTHONPATH. See "Command line and environment" in Python's documentation.
    """
    named = environment.get("PYTHONPATH", "")
    theirs = [Path(entry or os.curdir) for entry in named.split(os.pathsep)] if named else []
    if program[0].endswith(".py"):
        flags, script = "", program[0]
    elif Path(program[0]).name.startswith("python"):
        flags, script = _options(program[1:])
    else:
        return theirs
    if "I" in flags:
        return []
    if "P" in flags or environment.get("PYTHONSAFEPATH"):
        return theirs
    return [Path(script).resolve().parent if script else Path.cwd(), *theirs]


def _options(words: Sequence[str]) -> tuple[str, str]:
    """The letters of Python's own options at the beginning of |words|, and the script that follows; empty if -c or -m
    names the program, or it is read from standard input.
    """
    letters, left = "", iter(words)
    for word in left:
        if not word.startswith("-") or word == "-":
            return letters, word.removeprefix("-")
        if word in _TAKE_A_WORD:
            next(left, None)
        elif not word.startswith(("--", "-W", "-X")):
            letters += word[1:]
            if word[-1] in "cm":
                return letters, ""
    return letters, ""
