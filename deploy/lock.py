# SPDX-License-Identifier: Apache-2.0
"""The lock files: which version of each package, and by which hashes. pip takes nothing else (--require-hashes).

    python deploy/lock.py            resolves anew, with pip and whatever index it is set up for (ten minutes)
    python deploy/lock.py --check    says what in pyproject.toml a lock file does not answer, without any network
    python deploy/lock.py --serves NAME   whether that lock is for this Python and machine: exit status 0, or 1 and why
    python deploy/lock.py --wanted NAME   prints what that lock answers, a line each, as pip reads it

deploy/requirements.lock is what daemon and client need at run time. deploy/development.lock is what building, testing
and CI need besides; `make setup` installs it (.ci/install).

pip resolves for each kind of machine and each Python that we ship for, without installing anything; the answers are put
together, so that one file serves all of them. A package has one version everywhere: that for the oldest Python.

torch has several builds of one version, and which of them an index offers differs, so they have locks of their own:
torch-cpu.lock, whose version ends in +cpu, and torch.lock, as the common index has it. pip would take the second where
only the first was meant if both were one version: it prefers files whose hash the index tells. What torch needs is in
development.lock, but for the libraries of CUDA. This program must find the build without them.

torch-oldest.lock and torch-newest.lock are the releases that `make check` tests with (client/torch/tested.py names
them), as the common index has them: with CUDA, whose libraries they do not load without. `.ci/torches` installs them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = (*(f"manylinux_2_{minor}" for minor in range(28, 16, -1)), "manylinux2014")
TORCH = "torch==2.13.0"
"""What development uses. The oldest and the newest that were tested stand in client/torch/tested.py."""

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
#
# Written by deploy/lock.py; not to be edited. For Linux with glibc and CPython:
#
#     {how}
#
# Asked for: {asked}
# For: {places}
"""

OLDEST, NEWEST = re.findall(
    r'"([\d.]+)"', (ROOT / "client/torch/tested.py").read_text().partition("OLDEST, NEWEST =")[2]
)[:2]
"""The releases of torch that `make check` tests with."""
CUDA = "nvidia-"
"""How the names of the libraries begin that a build of torch with CUDA loads."""

Place = tuple[str, str]
"""A Python and a machine."""
PLACES = tuple((python, machine) for python in PYTHONS for machine in MACHINES)
Found = dict[str, tuple[str, set[str]]]
"""By name: the version, and the hashes of all files that may be taken."""


def requirements(extras: Sequence[str] = (), groups: Sequence[str] = ()) -> list[str]:
    """What pyproject.toml asks for always, with those extras, which may name others, and in those groups. Sorted."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = told["project"]
    lines = [*project["dependencies"], *(line for group in groups for line in told["dependency-groups"][group])]
    open_ones, seen = [*extras], set()
    while open_ones:
        extra = open_ones.pop()
        if extra not in seen:
            seen.add(extra)
            lines += project["optional-dependencies"][extra]
            ours = [line for line in lines if name_of(line) == project["name"]]
            open_ones += [name.strip() for line in ours for name in line.partition("[")[2].rstrip("]").split(",")]
            lines = [line for line in lines if line not in ours]
    return sorted({*lines})


@dataclass(frozen=True)
class Lock:
    """One lock file: of what Ultima needs, with some extras and groups of pyproject.toml, or of one torch."""

    name: str
    how: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    torch: str = ""

    @property
    def path(self) -> Path:
        return ROOT / "deploy" / self.name

    def wanted(self) -> list[str]:
        """The requirements that it answers, sorted, each once."""
        if self.torch:
            return [self.torch, *(line for line in requirements(["torch"]) if name_of(line) == "torch")]
        return [line for line in requirements(self.extras, self.groups) if name_of(line) != "torch"]

    def asked(self) -> str:
        """The fingerprint of `wanted`."""
        return "sha256:" + hashlib.sha256("\n".join(self.wanted()).encode()).hexdigest()


RUN_TIME = Lock("requirements.lock", "pip install --require-hashes -r deploy/requirements.lock", ("web",))
DEVELOPMENT = Lock("development.lock", "make setup", ("demo", "web"), ("dev",))
TORCH_CPU = Lock("torch-cpu.lock", "make setup", torch=f"{TORCH}+cpu")
TORCH_AS_IS = Lock("torch.lock", "make setup", torch=TORCH)
LOCKS = (RUN_TIME, DEVELOPMENT, TORCH_CPU, TORCH_AS_IS)
TORCH_TESTED = (
    Lock("torch-oldest.lock", ".ci/torches", torch=f"torch=={OLDEST}"),
    Lock("torch-newest.lock", ".ci/torches", torch=f"torch=={NEWEST}"),
)


class Refused(Exception):
    """No lock can be made; the message is for people."""


def name_of(requirement: str) -> str:
    """As package indexes spell it: small letters and hyphens."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0] if found else "").lower()


def resolve(requirements: list[str], python: str, machine: str, *flags: str) -> Found:
    """What pip would install there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "-qq", "--ignore-installed", *flags]
        command += ["--only-binary", ":all:", "--python-version", python, "--target", folder]
        for glibc in GLIBC:
            command += ["--platform", f"{glibc}_{machine}"]
        done = subprocess.run(
            [*command, "--report", "-", *requirements],
            capture_output=True,
            text=True,
            env=os.environ | {"PIP_CONSTRAINT": "/dev/null"},  # one of this machine has no say in what others install
        )
    if done.returncode:
        raise Refused(f"{done.stderr}pip finds no answer for Python {python} on {machine}")
    found: Found = {}
    for item in json.loads(done.stdout)["install"]:
        version = str(item["metadata"]["version"])
        hashes = {item["download_info"]["archive_info"]["hashes"]["sha256"]}
        found[name_of(item["metadata"]["name"])] = (version, hashes)
    return found


def each(requirements: list[str]) -> list[Found]:
    """What pip would install in each place; some at a time, for pip waits a lot."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda place: resolve(requirements, *place), PLACES))


def pins_of(found: Found) -> list[str]:
    """Requirements for just these versions."""
    return [f"{name}=={version}" for name, (version, _) in found.items()]


def torch_of(lock: Lock, places: tuple[Place, ...]) -> tuple[Found, list[Place]]:
    """That build's files, and for which of the places there is one. Refused if for none."""
    version = lock.torch.partition("==")[2]
    hashes, served, why = set(), [], ""
    for place in places:
        try:
            hashes |= resolve([f"torch==={version}"], *place, "--no-deps")["torch"][1]
            served.append(place)
        except Refused as error:
            why = str(error)
    if not served:
        raise Refused(f"{why}: name an index that has {lock.torch}")
    return {"torch": (version, hashes)}, served


def with_cuda(lock: Lock, places: Sequence[Place]) -> tuple[Found, list[Place]]:
    """That build and the libraries of CUDA that it loads, and for which of the places there are any. Refused if for
    none, or where two places want two versions of one.
    """
    ret: Found = {}
    served, why = [], ""
    for place in places:
        try:
            found = resolve([lock.torch], *place)
        except Refused as error:
            why = str(error)
            continue
        served.append(place)
        for name, (version, hashes) in found.items():
            if name == "torch" or name.startswith(CUDA):
                before, known = ret.get(name, (version, set()))
                if before != version:
                    raise Refused(f"{name}: {before} and {version} for {lock.torch}")
                ret[name] = (version, known | hashes)
    if not served:
        raise Refused(f"{why}: name an index that has {lock.torch}")
    return ret, served


def needs_of_torch() -> list[str]:
    """The packages that the build without CUDA needs, pinned."""
    whole = resolve([TORCH_CPU.torch], PYTHONS[0], MACHINES[0])
    return pins_of({name: it for name, it in whole.items() if name != "torch"})


def resolve_everywhere(requirements: list[str]) -> Found:
    """For each Python and machine, all in one. The oldest Python says which versions, for newer ones bear them too."""
    ret = resolve(requirements, PYTHONS[0], MACHINES[0])
    for found in each(pins_of(ret)):
        for name, (version, hashes) in found.items():
            before, known = ret.get(name, (version, set()))
            if before != version:
                raise Refused(f"{name}: {before} here and {version} there: pin it in pyproject.toml")
            ret[name] = (version, known | hashes)
    return ret


def text_of(lock: Lock, found: Found, places: Sequence[Place] = PLACES) -> str:
    """The lock file."""
    where = ", ".join(f"{python} {machine}" for python, machine in places)
    lines = [HEADER.format(how=lock.how, asked=lock.asked(), places=where)]
    for name in sorted(found):
        version, hashes = found[name]
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{hash}" for hash in sorted(hashes))]))
    return "\n".join(lines) + "\n"


def versions_of(text: str) -> dict[str, str]:
    """What a lock file pins, by name."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def stale() -> list[str]:
    """What is wrong with the lock files, each in a sentence: they must be made anew."""
    from packaging.requirements import Requirement  # not there before packages are installed

    ret = []
    pins = {
        lock.name: versions_of(lock.path.read_text()) if lock.path.exists() else {} for lock in (*LOCKS, *TORCH_TESTED)
    }
    for lock in (*LOCKS, *TORCH_TESTED):
        there = pins[lock.name]
        for asked in map(Requirement, lock.wanted()):
            version = there.get(name_of(asked.name), "none")
            if version == "none" or not asked.specifier.contains(version):
                ret.append(f"deploy/{lock.name} has {version} of {asked.name}, and pyproject.toml asks for {asked}")
        if there and f"# Asked for: {lock.asked()}\n" not in lock.path.read_text() and not ret:
            ret.append(f"deploy/{lock.name} was made for other requirements than those that pyproject.toml has")
    both = pins[RUN_TIME.name].items() - pins[DEVELOPMENT.name].items()
    return ret + [f"deploy/{DEVELOPMENT.name} has another {name} than {version}" for name, version in sorted(both)]


def why_not_here(lock: Lock) -> str:
    """Why that lock does not serve this interpreter; empty if it does."""
    python, machine = ".".join(platform.python_version_tuple()[:2]), platform.machine()
    if platform.python_implementation() != "CPython" or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return f"{platform.python_implementation()} with {platform.libc_ver()[0] or 'no glibc'} on {platform.system()}"
    places = re.search("^# For: (.*)$", lock.path.read_text(), re.MULTILINE)
    return "" if places and f"{python} {machine}" in places[1].split(", ") else f"Python {python} on {machine}"


def write() -> None:
    """Resolves everywhere and writes all files: one set of versions, of which the run time needs some."""
    for lock in (TORCH_CPU, TORCH_AS_IS):
        build, served = torch_of(lock, PLACES)
        tell(lock, build, served)
    for lock in TORCH_TESTED:
        tell(lock, *with_cuda(lock, [place for place in PLACES if place[0] == PYTHONS[0]]))
    found = resolve_everywhere(DEVELOPMENT.wanted() + needs_of_torch())
    asked = {name_of(line) for line in RUN_TIME.wanted()}
    needed = {name for there in each(pins_of({name: found[name] for name in asked})) for name in there}
    tell(RUN_TIME, {name: found[name] for name in needed})
    tell(DEVELOPMENT, found)


def tell(lock: Lock, found: Found, places: Sequence[Place] = PLACES) -> None:
    """Writes one file and says so."""
    lock.path.write_text(text_of(lock, found, places))
    print(f"deploy/{lock.name}: {len(found)} packages")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Makes and checks the lock files.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--check", action="store_true", help="say what is stale, and fail then")
    every = {lock.name: lock for lock in (*LOCKS, *TORCH_TESTED)}
    which.add_argument("--serves", choices=every, help="fail if that is not for this machine")
    which.add_argument("--wanted", choices=every, help="print what that lock answers")
    flags = parser.parse_args()
    if flags.wanted:
        print("\n".join(every[flags.wanted].wanted()))
        return 0
    if flags.serves:
        why = why_not_here(every[flags.serves])
        if why:
            print(why)
        return bool(why)
    if flags.check:
        wrong = stale()
        for sentence in wrong:
            print(f"{sentence}: run deploy/lock.py", file=sys.stderr)
        return bool(wrong)
    try:
        write()
    except Refused as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
