# SPDX-License-Identifier: Apache-2.0
"""The soak itself: how growth is measured, and that jobs of all kinds come, go and are killed as they are meant to."""

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.seeds import seeds
from tests.soak.churn import Churn, Event, Op
from tests.soak.elastic import gone_after, pauses, ready_after
from tests.soak.growth import HOUR_S, MIB, Sample, hourly, slope
from tests.soak.main import WARM_UP, report, soak
from ultima import Status


def test_elastic__what_an_event_cost_the_others() -> None:
    """Ops of 10 ms. Host 1 is killed at 5 s: host 0 waits for 300 ms, and its next op is without it."""
    ops = [Op(at / 100, at / 100 + 0.01, (0, 1), Status.COMPLETE) for at in range(500)]
    late = [Op(5.0, 5.31, (0, 1), Status.PARTIAL), Op(5.31, 5.32, (0,), Status.COMPLETE)]
    stays: Any = SimpleNamespace(host=0, rank=0, entered=0.0, log=[*ops, *late, Op(5.32, 5.33, (0,), Status.COMPLETE)])
    dies: Any = SimpleNamespace(host=1, rank=1, entered=1.0, log=ops[100:])
    found = Churn([Event(0.5, "join", 1), Event(4.995, "kill", 1)], [stays, dies])
    cost = pauses(found, 0.01)
    assert cost["join"] == [pytest.approx(0.0, abs=1e-9)] and cost["kill"] == [pytest.approx(0.3)]
    assert gone_after(found) == [pytest.approx(5.32 - 4.995)]
    assert ready_after(found) == [pytest.approx(0.01)], "of the one that joined; host 0 was there before"
    found.events.insert(1, Event(4.99, "leave", 1))
    assert pauses(found, 0.01) == {**cost, "leave": [pytest.approx(0.0, abs=1e-9)]}, "it waited for the kill"
    found.events.insert(3, Event(5.21, "leave", 1))
    assert pauses(found, 0.01)["kill"] == [pytest.approx(0.2)], "until the next event"


def samples(growth_after: float, bytes_per_s: float) -> list[Sample]:
    """A process that settles until `growth_after` seconds of 100, and grows evenly from then on."""
    return [
        Sample(float(at), int(40 * MIB + max(0.0, at - growth_after) * bytes_per_s), 0, 40, 14) for at in range(101)
    ]


def test_slope__of_a_line_with_noise_and_of_too_little() -> None:
    assert slope([(x, 3.0 * x + 7 + (-1) ** x) for x in range(1000)]) == pytest.approx(3.0, abs=0.01)
    assert slope([]) == 0.0 and slope([(1.0, 5.0), (1.0, 9.0)]) == 0.0


def test_hourly__only_the_second_half_counts() -> None:
    assert hourly(samples(0, 100)) == pytest.approx(100 * HOUR_S, rel=0.01)
    warm = [Sample(float(at), min(at, 50) * MIB, 0, 40, 14) for at in range(101)]
    assert hourly(warm) == pytest.approx(0.0, abs=1.0)


@pytest.mark.check
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", seeds(1))
def test_soak__jobs_of_all_kinds_end_as_they_are_meant_to(seed: int) -> None:
    """A memory that grows shows only over a quarter of an hour (`make soak`); jobs that fail or hang show here."""
    out = Console(file=StringIO(), width=120)
    run, of_daemons = soak(minutes=0.2, jobs=12, seed=seed, out=out)
    assert run.failed == [], run.failed
    assert run.ended.total() == run.begun >= WARM_UP + 12 and run.ended["killed"] and run.ended["whole"]
    assert report(run, of_daemons, float("inf"), out), out.file.getvalue()  # type: ignore[attr-defined]
