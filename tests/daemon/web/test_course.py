# SPDX-License-Identifier: Apache-2.0
"""What a job did second by second, out of the flight recorder's ring."""

from ultima.daemon.engine.engine import NOBODY, Event, EventKind, Status
from ultima.daemon.observe.record import JobRecord, Life
from ultima.daemon.web.course import EMPTY, NEWEST, SECONDS, Course
from ultima.daemon.web.why import USUAL_S, WINDOW_S

SECOND = 10**9


class Stage:
    """A job whose clock is set by the test."""

    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND
        self.record = JobRecord(lambda: 1_700_000_000 * SECOND + self.now_ns, lambda: self.now_ns)
        self.record.begin(Life(1, "job", 0, 1, 3, 0, 1, ("10.0.0.1", "10.0.0.2", "10.0.0.3"), ("", "", ""), b"", 1))
        self.ops = 0

    def op(
        self, ms: int, status: Status = Status.COMPLETE, missing: int = 0, host: int = NOBODY, trouble: int = 0
    ) -> None:
        event = Event(EventKind.OP_DONE, 0, NOBODY, host, self.ops, status, ms * 10**6, missing, 4096, trouble << 24)
        self.record.op_done(event, lambda: None)
        self.ops += 1


def test_tick__tells_each_second_once() -> None:
    stage = Stage()
    course = Course(stage.record, stage.now_ns)
    assert list(course.seconds) == [EMPTY] * SECONDS
    for ms in range(1, 101):
        stage.op(ms)
    assert course.tick()[:4] == (50_000, 99_000, 100, 0)
    assert course.tick() == EMPTY
    stage.op(7, Status.PARTIAL, missing=11)
    assert course.tick()[:4] == (7000, 7000, 1, 11)
    assert len(course.seconds) == SECONDS


def test_tick__counts_all_and_reads_the_newest() -> None:
    stage = Stage()
    course = Course(stage.record, stage.now_ns)
    for _ in range(5000):
        stage.op(9)
    for _ in range(NEWEST):
        stage.op(3)
    assert course.tick()[:4] == (3000, 3000, 5000 + NEWEST, 0)


def test_start__reads_what_the_ring_has_of_two_minutes() -> None:
    stage = Stage()
    for ms in (1, 2, 3):
        stage.op(ms)
        stage.now_ns += SECOND
    stage.now_ns += (SECONDS - 3) * SECOND
    stage.op(4)
    course = Course(stage.record, stage.now_ns)
    assert [second.p50_us for second in course.seconds if second.ops] == [2000, 3000, 4000], "the first is too old"
    assert course.seconds[-1][:4] == (4000, 4000, 1, 0) and course.seconds[0].p50_us == 2000
    assert course.tick() == EMPTY, "they are not told again"


def test_recent__is_of_the_window_and_names_hosts() -> None:
    stage = Stage()
    course = Course(stage.record, stage.now_ns)
    stage.op(1, host=1, trouble=2)
    stage.op(1, Status.PARTIAL, 5, host=0, trouble=1)
    stage.op(1)
    course.tick()
    for _ in range(WINDOW_S - 1):
        ops, not_whole, blamed = course.recent(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
        assert (ops, not_whole) == (3, 1)
        assert blamed == {("10.0.0.2", "path"): 1, ("this host", "sender"): 1}
        course.tick()
    course.tick()
    assert course.recent(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]) == (0, 0, {})


def test_medians__of_now_and_of_what_was_usual() -> None:
    stage = Stage()
    course = Course(stage.record, stage.now_ns)
    for second in range(USUAL_S + WINDOW_S - 1):
        stage.op(10 if second < USUAL_S else 40)
        course.tick()
    assert course.medians_ms() == (40.0, 0.0), "a second too few is known of before"
    stage.op(40)
    course.tick()
    assert course.medians_ms() == (40.0, 10.0)
    for _ in range(WINDOW_S):
        course.tick()
    assert course.medians_ms()[0] == 0.0
