# SPDX-License-Identifier: Apache-2.0
"""What is recorded of ops: the ring, the minutes, percentiles, and which receipts are taken."""

import random
import sys
import tracemalloc
from pathlib import Path

import pytest

from tests.daemon.observe.test_recorder import raw_receipt
from ultima.daemon.engine.engine import NOBODY as NO_HOST
from ultima.daemon.engine.engine import Event, EventKind, Status
from ultima.daemon.engine.records import to_proto
from ultima.daemon.observe.durations import BOUNDS_S, Histogram, Percentiles, step_of, top_of
from ultima.daemon.observe.events import AT_ONCE, BYTES_MAX, EventLog
from ultima.daemon.observe.record import (
    MINUTE_NS,
    RECEIPTS_AT_ONCE,
    JobRecord,
    Life,
    minute_message,
)
from ultima.daemon.observe.recorder import PEACE_NS, Recorder
from ultima.daemon.observe.ring import NOBODY, OP_BYTES, OPS_MAX, Op, OpRing, ops_in
from ultima.v1 import records_pb2

ROOT = Path(__file__).resolve().parents[3]


def an_op(op_seq: int, **fields: int) -> Op:
    values = dict(ended_ns=10**18, ended_monotonic_ns=5, elapsed_ns=1000, bytes_missing=0, bucket_bytes=4096)
    values |= dict(culprit=NOBODY, status=1, trouble=0, collective=0, dtype=1, op=2)
    return Op(op_seq=op_seq, **values | fields)


def done(op_seq: int, status: Status = Status.COMPLETE, ns: int = 10**6, missing: int = 0, **more: int) -> Event:
    values = {"job": 0, "session": NO_HOST, "host": NO_HOST, "d": 4096, "e": 2 << 16 | 1 << 8} | more
    return Event(kind=EventKind.OP_DONE, op_seq=op_seq, a=int(status), b=ns, c=missing, **values)


def a_life(number: int = 1, job: str = "train", uid: int = 7, hosts: int = 3) -> Life:
    addresses = tuple(f"10.0.0.{index + 1}" for index in range(hosts))
    return Life(number, job, uid, 99, hosts, 0, 1, addresses, ("",) * hosts, b"", 10**18 + number)


class Clock:
    """Two clocks in one; a test turns them."""

    def __init__(self) -> None:
        self.ns = 1_000 * MINUTE_NS

    def __call__(self) -> int:
        return self.ns


def test_ring__keeps_the_newest_ops_to_the_bit_within_its_bytes() -> None:
    assert OPS_MAX >= 4096 and OP_BYTES <= 256
    ring = OpRing(5)
    assert ring.copy() == b"" and len(ring) == 0
    biggest = an_op(2**64 - 1, elapsed_ns=2**64 - 1, bytes_missing=2**63, culprit=63, status=4, trouble=4, dtype=7)
    ops = [an_op(number) for number in range(12)] + [biggest]
    for count, op in enumerate(ops, 1):
        ring.put(op)
        kept = ops[max(0, count - 5) : count]
        assert list(ops_in(ring.copy())) == kept
        assert list(ops_in(ring.copy(2))) == kept[-2:]


def test_ring__takes_no_memory_before_the_first_op() -> None:
    tracemalloc.start()
    rings = [OpRing() for _ in range(100)]
    assert tracemalloc.get_traced_memory()[0] < 200_000
    rings[0].put(an_op(1))
    assert OPS_MAX * OP_BYTES <= tracemalloc.get_traced_memory()[0] < 2 * OPS_MAX * OP_BYTES
    tracemalloc.stop()


def test_percentiles__are_at_most_a_sixteenth_too_high() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    values = sorted(int(10 ** random.Random(seed + n).uniform(0, 11)) for n in range(2000))
    counted = Percentiles()
    assert counted.at(99) == 0
    for value in values:
        counted.add(value)
    for percent in (0.1, 50, 90, 99, 100):
        exact = values[max(1, -(-len(values) * percent // 100)).__int__() - 1]
        assert exact <= counted.at(percent) <= exact * 17 / 16 + 1, percent
    for ns in (0, 1, 15, 16, 31, 32, 33, 10**9):
        assert step_of(top_of(step_of(ns))) == step_of(ns) and step_of(top_of(step_of(ns)) + 1) == step_of(ns) + 1


def test_histogram__a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram()
    for ns in (10**6, 10**6 + 1, 2 * 10**10):
        histogram.add(ns)
    assert len(BOUNDS_S) == 13 and histogram.counts[:2] == [1, 1] and histogram.counts[-1] == 1
    assert histogram.sum_ns == 2 * 10**10 + 2 * 10**6 + 1


def test_record__receipts_of_ops_that_are_not_complete_and_of_the_slowest() -> None:
    clock = Clock()
    record = JobRecord(clock, clock)
    record.begin(a_life())
    asked: list[int] = []

    def receipt(op_seq: int) -> records_pb2.OpReceipt:
        asked.append(op_seq)
        return to_proto(raw_receipt(op_seq))

    for number, (status, ns) in enumerate([(1, 50), (1, 40), (2, 10), (1, 60), (3, 5), (1, 60)]):
        record.op_done(done(number, Status(status), ns, 3 if status > 1 else 0), lambda number=number: receipt(number))
    assert asked == [0, 2, 3, 4], "the slowest so far, and what is not complete"
    assert [each.op_seq for each in record.receipts()] == asked
    (minute,) = record.take_minutes()
    message = minute_message(minute, a_life())
    counts = (message.ops_complete_count, message.ops_partial_count, message.ops_insufficient_count)
    assert counts == (4, 1, 1) and message.slowest_op_seq == 3 and message.missing_bytes == 6
    assert record.take_minutes() == [], "nothing has changed"
    assert record.op_done(done(9, Status.EMPTY), lambda: receipt(9)) is None and len(record.ring) == 6


def test_record__an_op_ended_when_the_engine_says_so() -> None:
    """However much later the daemon hears of it; and now, if the engine does not say."""
    clock = Clock()
    record = JobRecord(clock, clock)
    late = record.op_done(done(0, at_ns=clock.ns - 20_000_000), lambda: None)
    assert late is not None
    assert late.ended_ns == late.ended_monotonic_ns == clock.ns - 20_000_000
    for unsaid in (0, clock.ns + 5):
        op = record.op_done(done(1, at_ns=unsaid), lambda: None)
        assert op is not None and op.ended_ns == op.ended_monotonic_ns == clock.ns


def test_record__asks_the_engine_only_so_often() -> None:
    clock = Clock()
    record = JobRecord(clock, clock)
    record.begin(a_life())
    asked = [0]

    def receipt() -> records_pb2.OpReceipt:
        asked[0] += 1
        return to_proto(raw_receipt(asked[0]))

    for number in range(3 * RECEIPTS_AT_ONCE):
        record.op_done(done(number, Status.PARTIAL, missing=8, host=1, e=2 << 24), receipt)
    assert asked == [RECEIPTS_AT_ONCE] and len(record.ring) == 3 * RECEIPTS_AT_ONCE
    assert record.culprits["10.0.0.2", "path"] == 3 * RECEIPTS_AT_ONCE, "the event alone says who was to blame"
    assert record.missing["unknown"] == 2 * RECEIPTS_AT_ONCE * 8
    clock.ns += 10**9
    record.op_done(done(0, Status.PARTIAL), receipt)
    assert asked == [RECEIPTS_AT_ONCE + 1]


def test_record__a_minute_ends_and_a_clock_that_is_set_back_opens_none_twice() -> None:
    clock = Clock()
    record = JobRecord(clock, clock)
    record.begin(a_life())
    for number, step in enumerate((0, MINUTE_NS, -MINUTE_NS, 3 * MINUTE_NS)):
        clock.ns += step
        record.op_done(done(number), lambda: None)
    minutes = record.take_minutes()
    assert [minute.count.total() for minute in minutes] == [1, 2, 1]
    assert [minute.start_ns // MINUTE_NS for minute in minutes] == [1000, 1001, 1003]


def test_recorder__tells_when_ops_stop_being_complete_and_when_they_are_again() -> None:
    recorder, clock = Recorder(engine=None), Clock()  # type: ignore[arg-type]
    record = JobRecord(clock, clock)
    recorder.life_begins(record, a_life())

    def end(op_seq: int, status: Status, after_ns: int, **more: int) -> None:
        clock.ns += after_ns
        recorder.op_done(record, done(op_seq, status, **more), lambda: None)

    end(0, Status.COMPLETE, 0)
    end(1, Status.PARTIAL, 10, missing=100, host=2, e=1 << 24)
    end(2, Status.PARTIAL, 10)
    end(3, Status.COMPLETE, PEACE_NS - 1)
    end(4, Status.COMPLETE, 1)
    end(5, Status.COMPLETE, 1)
    events = recorder.events.after(0)
    assert [event.kind for event in events] == ["job_begins", "ops_not_complete", "ops_complete_again"]
    assert events[1].text == (
        "op 1 of job train is partial, 100 bytes are missing; to blame: host 2 at 10.0.0.3, sender"
    )
    assert events[2].text.endswith("2 were not, within 0 s") and events[1].level == "warning"


def test_recorder__one_user_does_not_wash_away_the_lives_of_others() -> None:
    recorder = Recorder(engine=None)  # type: ignore[arg-type]
    for number in range(1, 40):
        record = JobRecord()
        recorder.life_begins(record, a_life(number, f"job-{number}", uid=1000 if number == 1 else 2000))
        recorder.life_ends(record)
    assert [record.life.job for record, _ in recorder.lives("", 1000) if record.life] == ["job-1"]
    theirs = [record.life.job for record, running in recorder.lives("", 2000) if record.life and not running]
    assert theirs == [f"job-{number}" for number in range(39, 32, -1)]


def test_events__a_flood_of_one_kind_is_cut_and_says_so() -> None:
    now = [0.0]
    events = EventLog(monotonic=lambda: now[0])
    for _ in range(AT_ONCE + 50):
        events.note("rank_joined", "rank 0")
    events.note("host_gone", "another kind")
    assert len(events.after(0)) == AT_ONCE + 1
    now[0] += 2.0
    events.note("rank_joined", "rank 1")
    assert events.after(events.last - 1)[0].text == "rank 1 (50 more of this kind were left out)"


def test_events__are_bounded_in_bytes_and_the_newest_stay() -> None:
    now = [0.0]
    events = EventLog(monotonic=lambda: now[0])
    for number in range(4000):
        now[0] += 2.0
        events.note("rank_joined", f"{number} " + "x" * 200)
    kept = events.after(0)
    assert kept[-1].text.startswith("3999 ") and [event.number for event in kept] == list(range(kept[0].number, 4001))
    assert BYTES_MAX - 1000 < sum(event.bytes for event in kept) <= BYTES_MAX
    one = kept[-1]
    objects = (one, one.number, one.at_ns, one.text)  # kind, job and level are shared
    assert one.bytes == pytest.approx(sum(map(sys.getsizeof, objects)), rel=0.2)


async def test_events__followers_get_each_event_once() -> None:
    events = EventLog()
    events.note("a", "before")
    stream = events.follow(0)
    assert [event.text for event in await anext(stream)] == ["before"]
    for text in ("one", "two"):
        events.note("a", text)
    assert [event.text for event in await anext(stream)] == ["one", "two"]
    await stream.aclose()
