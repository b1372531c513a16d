# SPDX-License-Identifier: Apache-2.0
"""Collects what `make gpu` needs on a machine that has Python, torch and no index: wheels of this tree and of all that
it needs, in the versions that are installed here.

    python -m tests.gpu.wheels [FOLDER] [PYTHON_VERSION]        build/gpu/wheels and 3.12, for x86-64
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
GLIBC_NEWEST = 39  # as Ubuntu 24.04 has it; a wheel for an older one is taken too


def needed(name: str = "ultimad", extra: str = "daemon") -> set[str]:
    """The distributions that |name| needs with |extra|, and theirs, itself not among them."""
    found: set[tuple[str, str]] = set()
    waiting = [(name, ""), (name, extra)]
    while waiting:
        which, asked = waiting.pop()
        for text in requires(which) or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": asked}):
                continue
            more = {(requirement.name.lower(), each) for each in ("", *requirement.extras)} - found
            found |= more
            waiting += more
    return {each for each, _ in found} - {name}


def platforms() -> list[str]:
    """What pip calls the systems whose wheels run there; it takes each by its exact name."""
    names = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC_NEWEST, 4, -1)]
    return [*names, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def main(arguments: list[str]) -> int:
    folder, python = Path("build/gpu/wheels"), "3.12"
    folder = Path(arguments[0]) if arguments else folder
    python = arguments[1] if len(arguments) > 1 else python
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "-q"]
    own = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    names = [f"{name}=={version(name)}" for name in sorted(needed())]
    options = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    options += [word for platform in platforms() for word in ("--platform", platform)]
    for command in (own, [*pip, "download", *options, "-d", str(folder), *names]):
        done = subprocess.run(command, cwd=ROOT)
        if done.returncode:
            return done.returncode
    wheels = list(folder.glob("*.whl"))
    print(f"{folder}: {len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
