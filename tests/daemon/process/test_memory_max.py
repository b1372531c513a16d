# SPDX-License-Identifier: Apache-2.0
"""The daemon's limits against memory.max of its cgroup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.daemon.helpers import House
from ultima.daemon.base import cgroup
from ultima.daemon.base.config import load
from ultima.daemon.base.errors import StartupError
from ultima.daemon.process.memory_max import BASE_BYTES, base_bytes, fitted, memory_max

UNIT = Path(__file__).resolve().parents[3] / "deploy/systemd/ultimad.service"
FILE = Path("/sys/fs/cgroup/memory.max")


def cgroups(folder: Path, own: str, file: str = "memory.max", **levels: str) -> tuple[Path, Path]:
    """A tree of cgroups: what a process reads of itself, and the root. A level's name has _ for /."""
    (folder / "own").write_text(own)
    root = folder / "cgroup"
    root.mkdir()
    for name, word in levels.items():
        level = root / name.strip("_").replace("_", "/")
        level.mkdir(parents=True, exist_ok=True)
        (level / file).write_text(word + "\n")
    return folder / "own", root


def test_memory_max__the_least_up_to_the_root(tmp_path: Path) -> None:
    rows = [
        ("0::/a/b\n", {"a_b": "max", "a": "max"}, None),
        ("0::/a/b\n", {"a_b": "7000", "a": "max"}, (7000, "a/b")),
        ("0::/a/b\n", {"a_b": "7000", "a": "5000"}, (5000, "a")),
        ("0::/a/b\n", {"a": "5000"}, (5000, "a")),  # the lower level has no memory controller
        ("0::/\n", {"_": "9000"}, (9000, "")),  # in a container, whose root is a cgroup like any other
        ("4:memory:/x\n0::/a\n", {"a": "3"}, (3, "a")),
        ("4:memory:/x\n", {"x": "3"}, None),  # v1 alone
        ("0::/../up\n", {"_": "max"}, None),
        ("", {}, None),
    ]
    for number, (own, levels, expected) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = cgroups(folder, own, **levels)
        found = memory_max(*paths)
        wanted = None if expected is None else (expected[0], paths[1] / expected[1] / "memory.max")
        assert found == wanted, rows[number]
    assert memory_max(tmp_path / "none", tmp_path) is None


def test_fitted__what_was_said_and_does_not_fit_is_refused() -> None:
    said = load({}, {"ULTIMAD_LIMITS_MEMORY_BYTES": "4G"}, Path("/nonexistent"))
    base = base_bytes(said.engine)
    assert BASE_BYTES < base < 2 * BASE_BYTES
    assert fitted(said, None) is said and fitted(said, ((4 << 30) + base, FILE)) is said
    with pytest.raises(StartupError) as caught:
        fitted(said, ((4 << 30) + base - 1, FILE))
    text = str(caught.value)
    assert text.startswith(f"limits.memory_bytes = {4 << 30}: ") and "\n" not in text
    assert f"{FILE} = {(4 << 30) + base - 1}" in text and f"allowed: {(4 << 30) - 1} (4095M) or less" in text


def test_fitted__the_default_becomes_what_fits() -> None:
    unsaid = load({}, {}, Path("/nonexistent"))
    base = base_bytes(unsaid.engine)
    small = fitted(unsaid, ((8 << 30) + base, FILE))
    assert small.limits.memory_bytes == 8 << 30 and small.limits.share("memory_bytes") == 6 << 30
    assert small.limits_in_force()["limits.memory_bytes"] == 8 << 30
    with pytest.raises(StartupError, match=rf"^{FILE} = {base}: the daemon needs {base} bytes itself"):
        fitted(unsaid, (base, FILE))


def test_fitted__the_shipped_unit_holds_the_default() -> None:
    (said,) = re.findall(r"^MemoryMax=(\d+)G$", UNIT.read_text(), re.MULTILINE)
    unsaid = load({}, {}, Path("/nonexistent"))
    assert fitted(unsaid, (int(said) << 30, FILE)) is unsaid


async def test_start__refused_in_too_small_a_cgroup(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, root = cgroups(tmp_path, "0::/svc\n", svc=str(4 << 30))
    monkeypatch.setattr(cgroup, "OWN_CGROUP", own)
    monkeypatch.setattr(cgroup, "CGROUPS", root)
    (house.folder / "c.toml").write_text('[limits]\nmemory_bytes = "4G"\n')
    with pytest.raises(StartupError, match=r"^limits\.memory_bytes = 4294967296: .*svc/memory\.max"):
        await house.daemon("first", config=str(house.folder / "c.toml"))
    assert not (house.folder / "first").exists(), "nothing was begun"
    daemon = await house.daemon("second")
    assert daemon.config.limits.memory_bytes == (4 << 30) - base_bytes(daemon.config.engine)
