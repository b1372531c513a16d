# SPDX-License-Identifier: Apache-2.0
"""How much the benchmark measures: ops of each contender, and which cases. Gangs are played."""

import math
import sys

import pytest

from tests.bench import criteria, main
from tests.bench.gang import Account
from tests.bench.rig import CONTENDERS, OWN, Rig
from tests.bench.studies import CASED, LONG, Effort
from tests.bench.usage import Usage


class _Gang:
    """Does all that it is asked for, in no time; the network is never bad."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def run(
        self,
        size: int,
        ops: int,
        seconds: float,
        mode: str = "bounded",
        deadline: float | None = None,
        apart_s: float = 0.0,
    ) -> list[float]:
        self.asked.append(ops)
        return [1000.0] * ops

    def account(self) -> Account:
        return Account(0, [])


class _Meter:
    def used(self) -> Usage:
        return Usage()


class _Played(Rig):
    """A rig without a lab."""

    def __init__(self) -> None:
        self.hosts = 4
        self.played = {name: _Gang() for name in CONTENDERS}
        self._note = lambda text: None

    def gang(self, name: str) -> _Gang:  # type: ignore[override]
        return self.played[name]

    def meter(self, name: str) -> _Meter:  # type: ignore[override]
        return _Meter()

    def counters(self) -> dict[str, int]:
        return {"data_sent": 0}


@pytest.mark.parametrize(("ops", "rival_ops", "theirs"), [(2000, 300, 300), (200, 300, 200), (200, None, 200)])
def test_turns__peers_do_fewer_ops_where_that_is_asked(ops: int, rival_ops: int | None, theirs: int) -> None:
    rig = _Played()
    found = rig.turns(25_000_000, ops, math.inf, rounds=10, rival_ops=rival_ops)
    assert found[OWN].ops == ops
    assert [found[name].ops for name in CONTENDERS if name != OWN] == [theirs, theirs]
    # In each of the rounds as many, so that what the machine does over hours it does to all; two ops warm up.
    assert rig.played[OWN].asked == [2, *[ops // 10] * 10]
    assert rig.played["gloo bbr"].asked == [2, *[theirs // 10] * 10]


def test_long__is_what_the_log_calls_long() -> None:
    assert (LONG.ops, LONG.rival_ops) == (2000, 300)


def test_wants__all_cases_or_those_that_are_named() -> None:
    names = CASED["loss"]
    assert [name for name in names if Effort().wants(name)] == names
    assert [name for name in names if Effort(only=("25 MB, 1 %",)).wants(name)] == ["25 MB, 1 %"]
    assert [name for name in names if Effort(only=("4 MB", "5 %")).wants(name)] == [
        "25 MB, 5 %", "4 MB, 0.1 %", "4 MB, 1 %"]  # fmt: skip
    assert len(CASED["unshaped"]) == len(criteria.UNSHAPED)
    assert [name for name in CASED["wan"] if Effort(only=("N=2, 50 ms",)).wants(name)] == [
        "N=2, 50 ms, no loss", "N=2, 50 ms, 0.1 %", "N=2, 50 ms, 1 %"]  # fmt: skip
    assert [name for name in CASED["rates"] if Effort(only=("N=2",)).wants(name)] == [
        "N=2, 500 Mbit/s", "N=2, 1000 Mbit/s"]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--case", "1 %"], f"--case is for --only {' or '.join(CASED)}, not for unshaped loss rates"),
        (["--only", "slow", "--case", "1 %"], f"--case is for --only {' or '.join(CASED)}, not for slow"),
        (["--only", "loss", "--case", "3 %"], "--case '3 %': in the name of no case; they are 25 MB, no loss; 25 MB"),
    ],
)
def test_case__what_cannot_be_named_is_said(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert complaint in capsys.readouterr().err
