# SPDX-License-Identifier: Apache-2.0
"""pyproject.toml promises that old releases of other packages do: here they are installed and used."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import floors

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_pins__are_the_lowest_of_what_is_asked_for() -> None:
    trainer, daemon = (dict(pin.split("==") for pin in kind.pins()) for kind in floors.KINDS)
    assert trainer.keys() == {"numpy", "cffi", "grpcio", "protobuf", "typer", "rich"}
    assert trainer.keys() < daemon.keys() and "pydantic" in daemon
    for line in PROJECT["dependencies"]:
        need = Requirement(line)
        assert trainer[need.name] == floors.least(need) and f">={floors.least(need)}" in line
    assert {name for name in trainer if trainer[name] != daemon[name]} == floors.RAISED.keys()


def test_environment__that_cannot_be_had_is_told_apart_from_one_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = ""

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0 if "venv" in command else 1, "", says)

    monkeypatch.setattr(floors.subprocess, "run", pip)
    says = "ERROR: Could not find a version that satisfies numpy==1.26 (from versions: none)\nERROR: No matching"
    with pytest.raises(floors.NotToBeHad, match="No matching"):
        floors.environment(floors.KINDS[0], tmp_path)
    says = "ERROR: Could not find a version that satisfies numpy==9 (from versions: 1.26.0, 2.0.0)\nERROR: No matching"
    with pytest.raises(RuntimeError, match="trainer: pip refuses the least versions together"):
        floors.environment(floors.KINDS[0], tmp_path)


@pytest.mark.check
@pytest.mark.timeout(600)  # the first time packages are downloaded
@pytest.mark.parametrize("kind", floors.KINDS, ids=lambda kind: kind.name)
def test_floors__the_tests_pass_with_the_lowest_versions(kind: floors.Kind) -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    if here != floors.OLDEST:
        pytest.skip(f"the floors are those of Python {floors.OLDEST}, and this is {here}")
    try:
        done = floors.run(kind, kind.quick)
    except floors.NotToBeHad as error:
        pytest.skip(f"the lowest versions are not here: {error}")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
