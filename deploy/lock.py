# SPDX-License-Identifier: Apache-2.0
"""Writes deploy/requirements.lock: every package that daemon and client need at run time, with versions and hashes.

    python deploy/lock.py            resolves anew, with pip and whatever index it is set up for
    pip install --require-hashes -r deploy/requirements.lock

pip resolves for each kind of machine and each Python that we ship for, without installing anything; the answers are put
together, so that one file serves all of them. A package must have one version everywhere. torch, which is an extra, is
not in it: which build of it fits is the machine's affair.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "deploy/requirements.lock"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
HEADER = """\
# SPDX-License-Identifier: Apache-2.0
#
# Written by deploy/lock.py; not to be edited. Linux on x86_64 and aarch64, Python 3.11 to 3.14:
#
#     pip install --require-hashes -r deploy/requirements.lock
"""

Found = dict[str, tuple[str, set[str]]]
"""By name: the version, and the hashes of all files that may be taken."""


def wanted() -> list[str]:
    """The requirements at run time that pyproject.toml names, those of the status page among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["web"]]


def resolve(requirements: list[str], python: str, machine: str) -> Found:
    """What pip would install there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--python-version", python, "--target", folder]
        for glibc in GLIBC:
            command += ["--platform", f"{glibc}_{machine}"]
        done = subprocess.run([*command, "--report", "-", *requirements], stdout=subprocess.PIPE, check=True)
    found: Found = {}
    for item in json.loads(done.stdout)["install"]:
        name, version = str(item["metadata"]["name"]).lower().replace("_", "-"), str(item["metadata"]["version"])
        found[name] = (version, {item["download_info"]["archive_info"]["hashes"]["sha256"]})
    return found


def merge(each: list[Found]) -> Found:
    """All of them in one. Raises ValueError where a package has two versions."""
    ret: Found = {}
    for found in each:
        for name, (version, hashes) in found.items():
            before, known = ret.get(name, (version, set()))
            if before != version:
                raise ValueError(f"{name}: {before} here and {version} there: pin it in pyproject.toml")
            ret[name] = (version, known | hashes)
    return ret


def text_of(found: Found) -> str:
    """The lock file."""
    lines = [HEADER]
    for name in sorted(found):
        version, hashes = found[name]
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{hash}" for hash in sorted(hashes))]))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Resolves everywhere and writes the file."""
    each = [resolve(wanted(), python, machine) for python in PYTHONS for machine in MACHINES]
    LOCK.write_text(text_of(merge(each)))
    print(f"{LOCK.relative_to(ROOT)}: {len(merge(each))} packages")


if __name__ == "__main__":
    main()
