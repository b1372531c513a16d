# SPDX-License-Identifier: Apache-2.0
"""The study of local SGD among sites that come and go finds that nothing is lost, and what is."""

from __future__ import annotations

import re

import pytest

from tests.bench.local_churn import Life, main

ARGUMENTS = ["--rounds", "12", "--every", "2", "--step-ms", "5", "--size", "4000"]

pytestmark = [pytest.mark.check, pytest.mark.timeout(120)]


def test_churn__says_that_nothing_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--wire", "int8", "--grace", "200ms"]) == 0, capsys.readouterr().out
    told = capsys.readouterr().out
    assert re.search(r"^1[2-9] rounds in .* by [56] sites, 4 at a time, int8$", told, re.M), told
    assert "steps discarded: 0; " in told and "divergent digests: 0; " in told


def test_churn__finds_steps_that_were_lost(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A site forgets one in ten of its steps."""
    step = Life.step

    def forgets(life: Life) -> None:
        step(life)
        if life.number == 0 and life.outer.summary().steps % 10 == 5:
            life.model[:] = life.outer.theta

    monkeypatch.setattr(Life, "step", forgets)
    assert main(ARGUMENTS) == 1
    assert "divergent digests: 0; " in capsys.readouterr().out
