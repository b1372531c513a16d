# SPDX-License-Identifier: Apache-2.0
"""The lock files: all that is asked for is in them, in one version and by hashes; and what installs from them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy import lock

ROOT = Path(__file__).resolve().parents[1]
CUDA = ("nvidia-", "cuda-", "triton")  # what every environment here does without


@pytest.mark.parametrize("which", (*lock.LOCKS, *lock.TORCH_TESTED), ids=lambda which: which.name)
def test_lock__names_what_the_project_asks_for_and_all_that_it_needs(which: lock.Lock) -> None:
    """With the versions in the lock every requirement is met, those of requirements too. It names no host."""
    text = which.path.read_text()
    for line in text.replace(" \\\n", " ").splitlines():
        assert not line or line[0] == "#" or re.fullmatch(r"[a-z0-9-]+==\S+( +--hash=sha256:[0-9a-f]{64})+", line), line
    assert "://" not in text
    locked = lock.versions_of(text)
    if which.torch:  # what it needs stands with the rest
        locked |= lock.versions_of(lock.DEVELOPMENT.path.read_text())
    open_ones, seen = [Requirement(line) for line in which.wanted()], set()
    while open_ones:
        wanted = open_ones.pop()
        name = lock.name_of(wanted.name)
        assert name in locked, f"{wanted} is not in the lock: run deploy/lock.py"
        assert wanted.specifier.contains(locked[name]), f"{wanted}, but the lock has {locked[name]}: run deploy/lock.py"
        if name not in seen:
            seen.add(name)
            needs = [Requirement(line) for line in requires(name) or []]
            needs = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
            open_ones += [need for need in needs if not need.name.startswith(CUDA)]
    assert len(seen) >= (8 if which.torch else 15)


@pytest.mark.parametrize(("which", "version"), [*zip(lock.TORCH_TESTED, (lock.OLDEST, lock.NEWEST), strict=True)])
def test_lock__of_a_tested_torch_has_cuda_too(which: lock.Lock, version: str) -> None:
    """That build does not load without."""
    locked = lock.versions_of(which.path.read_text())
    assert locked["torch"] == version
    assert {"nvidia-cudnn-cu13", "nvidia-nccl-cu13"} < {*locked}
    assert all(name == "torch" or name.startswith(lock.CUDA) for name in locked)


def test_lock__is_current() -> None:
    assert lock.stale() == []


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        ('"rich>=13.7",', '"rich>=99",', r"has \S+ of rich, and pyproject.toml asks for rich>=99"),
        ('"rich>=13.7",', '"rich>=13.7",\n"brand-new",', "has none of brand-new"),
        ('"rich>=13.7",', "", "requirements.lock was made for other requirements"),
        ('"scapy>=2.8",', "", "development.lock was made for other requirements"),
        ('torch = ["torch>=2.12"]', 'torch = ["torch>=2.14"]', "torch-cpu.lock has .* asks for torch>=2.14"),
    ],
)
def test_lock__that_is_stale_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, sentence: str
) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    project = (ROOT / "pyproject.toml").read_text()
    assert old in project
    (tmp_path / "pyproject.toml").write_text(project.replace(old, new))
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert any(re.search(sentence, line) for line in lock.stale()), lock.stale()


def test_requirements__extras_may_name_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra of ours stands for what is in it; what comes twice is told once; groups are added."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "ours"\ndependencies = ["a>=1"]\n'
        '[project.optional-dependencies]\nx = ["b>=2"]\ny = ["ours[x]", "c"]\nz = ["ours[y, x]", "d[y]"]\n'
        '[dependency-groups]\ndev = ["e==5", "b>=2"]\n'
    )
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert lock.requirements() == ["a>=1"]
    assert lock.requirements(["x"]) == ["a>=1", "b>=2"]
    assert lock.requirements(["z"]) == ["a>=1", "b>=2", "c", "d[y]"]
    assert lock.requirements(["y"], ["dev"]) == ["a>=1", "b>=2", "c", "e==5"]


def test_lock__two_versions_of_a_package_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deploy").mkdir()
    for each in (*lock.LOCKS, *lock.TORCH_TESTED):
        text = each.path.read_text()
        (tmp_path / "deploy" / each.name).write_text(
            re.sub(r"^rich==\S+", "rich==15.9", text, flags=re.MULTILINE) if each is lock.RUN_TIME else text
        )
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert lock.stale() == ["deploy/development.lock has another rich than 15.9"]


def test_resolve__refuses_two_versions_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only newer Pythons need is not pinned by the oldest, and may be found in two versions."""

    def resolve(_asked: list[str], python: str, machine: str) -> lock.Found:
        other: lock.Found = {} if python == lock.PYTHONS[0] else {"b": (f"2.{machine}", {machine})}
        return {"a": ("1.0", {machine}), **other}

    monkeypatch.setattr(lock, "resolve", resolve)
    with pytest.raises(lock.Refused, match=r"b: 2\.\w+ here and 2\.\w+ there"):
        lock.resolve_everywhere(["a"])
    monkeypatch.setattr(lock, "MACHINES", lock.MACHINES[:1])
    monkeypatch.setattr(lock, "PLACES", tuple(place for place in lock.PLACES if place[1] == lock.MACHINES[0]))
    machine = lock.MACHINES[0]
    assert lock.resolve_everywhere(["a"]) == {"a": ("1.0", {machine}), "b": (f"2.{machine}", {machine})}


def test_lock__is_for_these_places_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel without CUDA that was found is for fewer Pythons than the rest; no lock is for another machine."""
    monkeypatch.setattr(lock.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(lock.platform, "python_version_tuple", lambda: ("3", "11", "9"))
    monkeypatch.setattr(lock.platform, "python_implementation", lambda: "CPython")
    monkeypatch.setattr(lock.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert [lock.why_not_here(each) for each in lock.LOCKS] == ["", "", "", ""]
    monkeypatch.setattr(lock.platform, "machine", lambda: "riscv64")
    assert [lock.why_not_here(each) for each in lock.LOCKS] == ["Python 3.11 on riscv64"] * 4
    monkeypatch.setattr(lock.platform, "libc_ver", lambda: ("", ""))
    assert "no glibc" in lock.why_not_here(lock.DEVELOPMENT)


PIP = """#!/bin/bash
# A Python whose pip notes what it is asked and does as it is told.
case "$*" in
*lock.py*--serves*) [[ $* != *$FOREIGN* ]] || { echo "this one"; exit 1; } ;;
*lock.py*--wanted*) exec "$TRUE_PYTHON" "$@" ;;
*) echo "$*" >>"$ASKED"; [[ "$*" != */dev/stdin* ]] || cat >/dev/null
   [[ -z $BREAKS || $* != *$BREAKS* ]] || { echo "ERROR: $SAYS" >&2; exit 1; } ;;
esac
"""
BOTH, CPU, AS_IS, BARE = "development.lock", "torch-cpu.lock", "torch.lock", "torch==2.13.0"


@pytest.mark.parametrize(
    "foreign, breaks, says, asks, status",
    [
        ("none", "", "", [CPU], 0),
        ("none", CPU, "THESE PACKAGES DO NOT MATCH THE HASHES", [CPU], 1),  # nothing is tried after it
        ("none", CPU, "No matching distribution found for rich==15.0.0", [CPU], 1),
        ("none", CPU, f"No matching distribution found for {BARE}+cpu (from -r it)", [CPU, AS_IS, BARE], 0),
        (CPU, "", "", [AS_IS, BARE], 0),
        (CPU, AS_IS, "THESE PACKAGES DO NOT MATCH THE HASHES", [AS_IS], 1),
        (BOTH, "", "", ["/dev/stdin"], 0),
    ],
)
def test_install__takes_hashes_or_says_why_not(
    tmp_path: Path, foreign: str, breaks: str, says: str, asks: list[str], status: int
) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(PIP)
    python.chmod(0o755)
    does = {"FOREIGN": foreign, "BREAKS": breaks, "SAYS": says, "ASKED": tmp_path / "asked"}
    done = subprocess.run(
        [ROOT / ".ci/install"],
        env=os.environ
        | {"VENV": str(tmp_path), "TRUE_PYTHON": sys.executable}
        | {name: str(value) for name, value in does.items()},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == status, done
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == len(asks) and all(word in line for word, line in zip(asks, asked, strict=True)), asked
    for line in asked:
        assert ("--require-hashes" in line) == ("deploy/" in line), line
    assert status == 0 or says in done.stderr
    assert ("The locks are not for this one" in done.stdout) == (foreign == BOTH)
    assert ("takes without hashes" in done.stdout) == (BARE in asks)
