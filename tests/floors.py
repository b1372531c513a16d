# SPDX-License-Identifier: Apache-2.0
"""The least versions that pyproject.toml names, installed, and the tests with them.

    python -m tests.floors        all tests of client and daemon that `make test` has (minutes); `make floors`

Each kind of environment lies under build/floors and is made once, with pip and whatever index that is set up for: as
long as what it was asked for stays the same, it is taken as it is. Floors are for the oldest Python that is supported;
newer ones have no wheels of the oldest numpy.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from deploy import lock
from tests.bare import link_ours
from ultima.v1.installed import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[1]
OLDEST = lock.PYTHONS[0]
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "psutil", "scapy", "packaging", "pyyaml")
# What a package of the extras needs more of than we do ourselves: cryptography 46.
RAISED = {"cffi": "2.0"}
# They import torch, or are about what is not here: sources in folders instead of links, installed programs, the
# compiler of messages, and the memory that the newest libraries need.
NOT_HERE = (
    "--ignore=tests/client/api/test_job.py",
    "--ignore=tests/client/base/test_buffers.py",
    "--ignore=tests/daemon/base/test_parts.py",
    "--ignore=tests/daemon/process/test_deploy.py",
    "--deselect=tests/daemon/process/test_start.py::test_version_and_help",
    "--deselect=tests/daemon/process/test_start.py::test_idle__costs_little",
)


class NotToBeHad(Exception):
    """The packages are not offered here, or no index can be reached: nothing is known of the floors."""


@dataclass(frozen=True)
class Kind:
    """An environment, and the tests that are about what it has."""

    name: str
    extras: tuple[str, ...]
    quick: tuple[str, ...]
    """What `make check` runs of them: those that meet numpy, gRPC, the parser of options and so on first hand."""
    tests: str

    def pins(self) -> list[str]:
        """The lowest version of each package that our own requirements name. Sorted."""
        lows = {need.name: least(need) for need in map(Requirement, lock.requirements(self.extras))}
        if "cryptography" in lows:
            lows |= {name: max(lows[name], more, key=Version) for name, more in RAISED.items()}
        return sorted(f"{name}=={low}" for name, low in lows.items())


KINDS = (
    Kind("trainer", ("cli",), ("base", "sparse", "session", "cli/test_cli.py"), "tests/client"),
    Kind("daemon", ("web",), ("base", "trust", "observe", "rpc", "web"), "tests/daemon"),
)


def least(need: Requirement) -> str:
    """The version after the one `>=`."""
    (low,) = (each.version for each in need.specifier if each.operator == ">=")
    return low


def environment(kind: Kind, folder: Path = ROOT / "build/floors") -> Path:
    """The Python of that environment, made if it is not there. Raises NotToBeHad; RuntimeError if pip refuses."""
    asked = [*kind.pins(), *(f"{name}=={version(name)}" for name in TOOLS)]
    number = hashlib.sha256(" ".join([sys.version, str(ROOT), *asked]).encode()).hexdigest()[:12]
    home = folder / f"{kind.name}-{number}"
    python = home / "bin/python"
    if not (home / "made").exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--no-compile"]
        pip += ["--only-binary", ":all:"]
        done = subprocess.run([*pip, *asked], capture_output=True, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1]
            if re.search(r"from versions: none|Connection", done.stderr):
                raise NotToBeHad(said)
            raise RuntimeError(f"{done.stderr}{kind.name}: pip refuses the least versions together: {said}")
        (home / "made").touch()
    _install_ours(home / f"lib/python{OLDEST}/site-packages")
    return python


def _install_ours(site: Path) -> None:
    """As an editable installation has it: links to the sources, and what pip knows of the distribution. Anew each time,
    because the sources change.
    """
    shutil.rmtree(site / "ultima", ignore_errors=True)
    link_ours(site)
    ours = distribution(DISTRIBUTION)
    about = site / f"{DISTRIBUTION}-{ours.version}.dist-info"
    about.mkdir(exist_ok=True)
    for name in ("METADATA", "entry_points.txt"):
        (about / name).write_text(ours.read_text(name) or "")


def run(kind: Kind, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """pytest in that environment, over files and folders of its tests."""
    command = [str(environment(kind)), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long and not check"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ULTIMA_NO_SKIP"))}
    paths = [f"{kind.tests}/{name}".rstrip("/") for name in tests]
    return subprocess.run([*command, *NOT_HERE, *paths], cwd=ROOT, env=clean, capture_output=True, text=True)


def main() -> int:
    """Every test of client and daemon; the exit status says whether all passed."""
    failed = False
    for kind in KINDS:
        print(f"{kind.name}: {' '.join(kind.pins())}", flush=True)
        done = run(kind, [""])
        print(done.stdout)
        failed |= done.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
