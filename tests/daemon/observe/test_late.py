# SPDX-License-Identifier: Apache-2.0
"""For which host the others wait while ops stay whole, by receipts of which the test says when who called."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.daemon.fake_engine import partial_receipt
from ultima.daemon.hosts.host import State
from ultima.daemon.jobs.job import Job
from ultima.daemon.observe.late import JUDGED_FROM, LATE_US, NEVER_US, OPS, READ, LateHosts

MS = 1000


def receipt(op_seq: int, opened_us: Sequence[int], took_us: int) -> Any:
    return partial_receipt(op_seq, fresh={}, opened_us=opened_us, elapsed_ns=took_us * 1000)


def kept(*series: list[Any]) -> list[Iterator[Any]]:
    """As the engine tells them, of each series the newest first."""
    return [reversed(receipts) for receipts in series]


@pytest.mark.parametrize(
    ("opened_us", "took_us", "host"),
    [
        ((0, 2 * MS, 200 * MS, MS), 230 * MS, 2),
        ((0, 200 * MS), 230 * MS, 1),
        ((0, MS, 200 * MS, 201 * MS, 2 * MS), 230 * MS, 3),  # of two the later one
        ((0, 200 * MS, 201 * MS, 200 * MS), 230 * MS, None),  # three for whom we wait: we are early
        ((0, 0, 60 * MS, 0), 250 * MS, None),  # below a quarter of the op
        ((0, 0, 63 * MS, 0), 250 * MS, 2),
        ((0, 0, LATE_US - 1, 0), 11 * MS, None),
        ((0, 0, LATE_US, 0), 11 * MS, 2),
        ((0, 0, NEVER_US, 0), 250 * MS, None),  # the op itself says who is to blame
        ((0, 0, 0, 0), 250 * MS, None),
        ((0,), 250 * MS, None),
    ],
)
def test_worst__table(opened_us: tuple[int, ...], took_us: int, host: int | None) -> None:
    found = LateHosts(len(opened_us))
    found.read(kept([receipt(op, opened_us, took_us) for op in range(JUDGED_FROM)]))
    worst = found.worst()
    assert (worst.host if worst else None) == host
    few = LateHosts(len(opened_us))
    few.read(kept([receipt(op, opened_us, took_us) for op in range(JUDGED_FROM - 1)]))
    assert few.worst() is None


def test_worst__is_late_in_half_of_the_ops_and_by_more_than_its_round_trip() -> None:
    late, in_time = (0, 0, 40 * MS), (0, 0, 0)
    found = LateHosts(3)
    found.read(kept([receipt(op, late if op % 5 < 3 else in_time, 50 * MS) for op in range(10)]))
    worst = found.worst(lambda host: 15 * MS)
    assert worst is not None and worst == (2, 25 * MS, 50 * MS, 10)
    assert worst.text == "25 ms later than the others, of 50 ms that one takes (medians of 10 ops)"
    assert found.worst(lambda host: 31 * MS) is None, "such a round trip explains it"
    seldom = LateHosts(3)
    seldom.read(kept([receipt(op, late if op % 5 < 2 else in_time, 50 * MS) for op in range(10)]))
    assert seldom.worst() is None


def test_worst__hosts_that_are_late_in_turns_are_late_by_chance() -> None:
    found = LateHosts(3)
    opened = [(0, 0, 40 * MS)] * 8 + [(0, 40 * MS, 0)] * 7
    found.read(kept([receipt(op, who, 50 * MS) for op, who in enumerate(opened)]))
    assert found.worst() is None
    for first in (15, 30):
        found.read(kept([receipt(op, (0, 40 * MS, 0), 50 * MS) for op in range(first, first + 15)]))
    worst = found.worst()
    assert worst is not None and worst.host == 1, "over both halves of the newest ops"


@pytest.mark.parametrize(
    ("ailment", "state", "named"),
    [(None, State.UP, True), ("udp blocked", State.UP, False), (None, State.ABSENT, False)],
)
def test_latest__nobody_while_a_host_is_gone_or_udp_is_blocked(ailment: str | None, state: State, named: bool) -> None:
    """Then the others wait for that, and times say nothing of who calls late."""
    late, kept_here = LateHosts(2), [receipt(op, (0, 200 * MS), 210 * MS) for op in range(8)]
    hosts = ["n0", "n1"]
    job: Any = SimpleNamespace(
        late=late, ailment=ailment, number=1, membership=SimpleNamespace(hosts=hosts), hosts=lambda: [(hosts[1], state)]
    )
    engine = SimpleNamespace(series=lambda number: kept([*kept_here]))
    now: Any = SimpleNamespace(peer_stats=lambda number, host: SimpleNamespace(srtt_ns=0))
    found = Job.latest(job, engine, now)  # type: ignore[arg-type]
    assert (found is not None and found[0] == "n1" and found[1].late_us == 200 * MS) == named


def test_read__takes_each_op_once_and_forgets_what_is_not_of_now() -> None:
    late, in_time = (0, 200 * MS), (0, 0)
    lanes: list[list[Any]] = [[], []]
    found = LateHosts(2)
    for op in range(3 * OPS):
        lanes[op % 2].append(receipt(op // 2, late, 210 * MS))
        found.read(kept(*lanes))
        worst = found.worst()
        assert worst is None or worst.ops == min(op + 1, 2 * OPS)
    assert found.worst() is not None
    for lane in lanes:  # more than are read at once: the old ones say nothing about now
        lane += [receipt(lane[-1].op_seq + 1 + op, in_time, MS) for op in range(READ + 1)]
    found.read(kept(*lanes))
    assert found.worst() is None
    lanes[0] += [receipt(lanes[0][-1].op_seq + 1 + op, late, 210 * MS) for op in range(READ - 1)]
    found.read(kept(*lanes))
    assert found.worst() is None, "in no more than half of the ops"
