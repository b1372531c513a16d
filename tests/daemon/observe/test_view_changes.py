# SPDX-License-Identifier: Apache-2.0
"""What an event says of a view is read again as it was told, whatever names jobs have."""

import pytest

from ultima.daemon.observe.events import EventLog, HostEvent
from ultima.daemon.observe.store import Batch, Store
from ultima.daemon.observe.view_changes import KIND, read, sentence
from ultima.daemon.web.view_rows import SHOWN, Views
from ultima.v1 import records_pb2

WHY = "host 3 leaves, host 11 is gone, host 2 is gone, host 2 comes in, host 4 comes in, tau becomes 3"


def event(text: str, job: str = "train", kind: str = KIND, at_ns: int = 5) -> HostEvent:
    return HostEvent(1, at_ns, kind, job, text, "info")


@pytest.mark.parametrize("job", ["train", "a from op 7: b; 1 of 2 hosts", "view 9 of job x", "[.*]"])
def test_read__what_was_told(job: str) -> None:
    change = read(event(sentence(job, 12, 412, WHY, 5, 8, 4), job))
    lists = {"came": [2, 4], "left": [3], "gone": [11, 2]}
    assert change == records_pb2.ViewChange(
        at_ns=5, job=job, number=12, from_op_seq=412, why=WHY, hosts=5, seats=8, owners=4, **lists
    )


def test_read__how_many_were_left_out() -> None:
    log = EventLog(lambda: 5, lambda: 0.0)
    for number in range(64):
        log.note(KIND, sentence("train", number, 0, "the job began", 1, 1, 1), "train")
    log.note(KIND, "one too many", "train")
    log._monotonic = lambda: 3.0
    log.note(KIND, sentence("train", 70, 9, "host 1 is gone", 1, 2, 1), "train")
    change = read(log.after(0)[-1])
    assert change is not None and (change.number, change.owners, change.left_out) == (70, 1, 1)
    assert list(change.gone) == [1] and not change.came and not change.left


@pytest.mark.parametrize(
    "told",
    [
        event(sentence("train", 1, 2, "x", 1, 1, 1), kind="options_changed"),
        event(sentence("other", 1, 2, "x", 1, 1, 1)),
        event("view one of job train from op 2: x; 1 of 1 hosts, 1 of them own shards"),
        event("view 1 of job train from op 2: x; some of 1 hosts, 1 of them own shards"),
        event(""),
    ],
)
def test_read__no_other_event(told: HostEvent) -> None:
    assert read(told) is None


def test_store__finds_events_of_one_kind() -> None:
    store = Store(None)
    store.write(Batch(events=[event("a", at_ns=1), event("b", kind="other", at_ns=2), event("c", at_ns=3)]))
    assert [each.text for each in store.events("train", 0, 9, 9, KIND)] == ["a", "c"]
    assert [each.text for each in store.events("", 0, 9, 1, KIND)] == ["c"]
    assert [each.text for each in store.events("", 0, 9, 9)] == ["a", "b", "c"]


def test_views__of_the_jobs_that_are_here_and_the_newest_of_each() -> None:
    now = [0]
    log = EventLog(lambda: now[0] * 10**9, lambda: float(now[0]))
    views = Views(log)
    for number in range(1, SHOWN + 4):
        now[0] = number * 10
        log.note(KIND, sentence("a", number, number, "host 1 is gone", 1, 2, 1), "a")
        log.note(KIND, sentence("b", number, number, "host 1 comes in", 2, 2, 1), "b")
        views.take(["a"] if number < 5 else ["a", "b"])
    assert [row["number"] for row in views.of("a", 0)] == [*range(4, SHOWN + 4)]
    assert views.of("a", 220 * 10**9 + 1) == [
        {"at_ms": 220_000, "number": 22, "from_op": 22, "why": "host 1 is gone", "came": [], "left": [], "gone": [1],
         "hosts": 1, "seats": 2},
        {"at_ms": 230_000, "number": 23, "from_op": 23, "why": "host 1 is gone", "came": [], "left": [], "gone": [1],
         "hosts": 1, "seats": 2},
    ]  # fmt: skip
    assert [row["number"] for row in views.of("b", 0)] == [*range(5, SHOWN + 4)], "b was not here before"
    views.take(["b"])
    assert views.of("a", 0) == []
