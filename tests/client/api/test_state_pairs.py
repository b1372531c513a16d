# SPDX-License-Identifier: Apache-2.0
"""Parts of a state that travel in jobs of two ranks: over fake jobs, whose broadcasts meet in this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ultima.api import state_pairs
from ultima.api.state_pairs import YES, PairReader, PairsGiven
from ultima.base.errors import DaemonLost
from ultima.state.fetching import AT_ONCE
from ultima.state.listing import PART_BYTES
from ultima.state.results import Kind

SIZE = 40 * PART_BYTES + 77
STATE = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)


def part(number: int) -> bytes:
    return STATE[number * PART_BYTES : (number + 1) * PART_BYTES].tobytes()


class Ends:
    """The two ends of each job, by its number: what one gives is put where the other one waits for it."""

    def __init__(self) -> None:
        self.queues: dict[int, tuple[queue.Queue[Any], queue.Queue[Any]]] = {}
        self.joined: list[tuple[int, int, str]] = []
        self.ops = 0
        self.fail_at: int | None = None
        """The op of rank 1 that ends as if the other one were gone."""

    def join(self, connection: object, number: int, rank: int, place: str) -> Any:
        self.joined.append((number, rank, place))
        return FakeJob(self, rank, *self.queues.setdefault(number, (queue.Queue(), queue.Queue())))


class FakeJob:
    """Of one rank."""

    def __init__(self, ends: Ends, rank: int, *queues: queue.Queue[Any]) -> None:
        self._ends, self._rank, self._queues, self.closed = ends, rank, queues, False

    def empty(self, size: int, dtype: str) -> Any:
        return np.zeros(size, dtype)

    def broadcast_async(self, array: Any, root: int, deadline: float) -> Any:
        job = self

        class Handle:
            def wait(self) -> None:
                job.broadcast(array, root, deadline)

        return Handle()

    def broadcast(self, array: Any, root: int, deadline: float) -> None:
        self._ends.ops += self._rank
        if self.closed or (self._rank and self._ends.ops == self._ends.fail_at):
            raise DaemonLost("hangup", "the job has ended")
        if root == self._rank:
            self._queues[root].put(array.copy())
            return
        while not self.closed:
            try:
                array[:] = self._queues[root].get(timeout=0.01)
            except queue.Empty:
                continue
            return
        raise DaemonLost("hangup", "the job has ended")

    def close(self, seconds: float) -> None:
        assert seconds > 0
        self.closed = True

    def __enter__(self) -> FakeJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


class Line:
    """Of who takes: messages reach the giver of this process."""

    def __init__(self, giver: Callable[[int], bytes]) -> None:
        self._giver = giver
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        self.bytes = {"sent": 0, "received": 0}

    def read(self, rank: int, root: bytes, parts: Sequence[int], kind: int = 0, op_seq: int = 0) -> Iterator[Any]:
        self.asked.append((kind, tuple(parts)))
        if kind == Kind.PAIR:
            yield -1, self._giver(op_seq)
        for number in parts:
            yield number, part(number)

    def moved(self, **counts: int) -> None:
        for way, count in counts.items():
            self.bytes[way] += count


def fetched(reader: PairReader, parts: Sequence[int]) -> dict[int, bytes]:
    """As Fetch does: the next part is taken when the one before was copied."""
    return {number: bytes(data) for number, data in reader(3, b"root", parts)}


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    made = Ends()
    monkeypatch.setattr(state_pairs, "_join", made.join)
    return made


def both(kind: Kind = Kind.ROOT) -> tuple[PairsGiven, PairReader, Line]:
    """Who gives, who takes, and the line between."""
    giver = PairsGiven(None, (line := Line(lambda number: giver.begin(number, "host:1"))), part)  # type: ignore[arg-type]
    reader = PairReader(None, line, SIZE, kind)  # type: ignore[arg-type]
    reader.places = {3: "host:1"}
    return giver, reader, line


@pytest.mark.parametrize("kind", [Kind.ROOT, Kind.FOLLOWED])
def test_reader__brings_all_parts_and_the_short_last_one(ends: Ends, kind: Kind) -> None:
    giver, reader, line = both(kind)
    wanted = list(range(41))
    found: dict[int, bytes] = {}
    for at in range(0, 41, AT_ONCE):
        found |= fetched(reader, wanted[at : at + AT_ONCE])
    assert found == {number: part(number) for number in wanted} and len(found[40]) == 77
    assert [kind for kind, _ in line.asked] == [Kind.PAIR], "no part in a message, and one job for all"
    assert sorted(each[1:] for each in ends.joined) == [(0, "host:1"), (1, "host:1")]
    assert line.bytes["received"] == SIZE
    reader.end()
    giver.end()


def test_reader__a_few_parts_are_not_worth_a_job(ends: Ends) -> None:
    _, reader, line = both()
    assert fetched(reader, [1, 2]) == {1: part(1), 2: part(2)}
    assert line.asked == [(Kind.ROOT, (1, 2))] and not ends.joined


@pytest.mark.parametrize("answer", [b"", b"an older program gives a part"])
def test_reader__who_does_not_come_to_a_job_is_asked_in_messages(ends: Ends, answer: bytes) -> None:
    line = Line(lambda number: answer)
    reader = PairReader(None, line, SIZE)  # type: ignore[arg-type]
    reader.places = {3: "host:1"}
    wanted = list(range(AT_ONCE))
    for _ in range(2):
        assert fetched(reader, wanted) == {number: part(number) for number in wanted}
    assert [kind for kind, _ in line.asked] == [Kind.PAIR, Kind.ROOT, Kind.ROOT], "and is not asked for one again"
    assert not ends.joined


def test_reader__what_a_job_that_ends_did_not_bring_comes_in_messages(ends: Ends) -> None:
    giver, reader, line = both()
    ends.fail_at = 3  # the question, an op of parts, and this one
    wanted = list(range(AT_ONCE))
    assert fetched(reader, wanted) == {number: part(number) for number in wanted}
    assert line.asked[1:] == [(Kind.ROOT, tuple(range(state_pairs.OP_PARTS, AT_ONCE)))]
    assert line.bytes["received"] == state_pairs.OP_PARTS * PART_BYTES
    giver.end()


def test_given__nothing_is_read_after_the_end(ends: Ends) -> None:
    """The arrays are the program's again, which changes them."""
    reads: list[int] = []
    within, go_on = threading.Event(), threading.Event()

    def slow(number: int) -> bytes:
        reads.append(number)
        within.set()
        assert go_on.wait(10)
        return part(number)

    giver = PairsGiven(None, Line(lambda number: b""), slow)  # type: ignore[arg-type]
    assert giver.begin(7, "host:1") == YES
    taker = ends.join(None, 7, 1, "host:1")
    asked = np.full(state_pairs.WORDS, -1, np.int64)
    asked[:9] = [state_pairs.PARTS, *range(8)]
    taker.broadcast(asked, 1, 1.0)
    assert within.wait(10)
    ending = threading.Thread(target=giver.end)
    ending.start()
    ending.join(0.05)
    assert ending.is_alive(), "a part is read just now"
    go_on.set()
    ending.join(10)
    count = len(reads)
    assert count <= state_pairs.OP_PARTS and giver.begin(8, "host:1") == b""
    threads = [each for each in threading.enumerate() if each.name == "ultima-state-pair"]
    for each in threads:
        each.join(10)
    assert len(reads) == count and not any(each.is_alive() for each in threads)


def test_given__gives_way_to_ops_of_the_rank_itself(ends: Ends) -> None:
    """But not for ever: an op that waits for a dead host may take long."""
    asked: list[int] = []

    def busy() -> bool:
        asked.append(1)
        return True

    line = Line(lambda number: giver.begin(number, "host:1"))
    giver = PairsGiven(None, line, part, yields=busy)  # type: ignore[arg-type]
    reader = PairReader(None, line, SIZE)  # type: ignore[arg-type]
    reader.places = {3: "host:1"}
    wanted = list(range(AT_ONCE))
    assert fetched(reader, wanted) == {number: part(number) for number in wanted}
    assert len(asked) >= AT_ONCE // state_pairs.OP_PARTS, "it was asked before each op"
    reader.end()
    giver.end()


@pytest.mark.parametrize("size", [0, 1, state_pairs.OP_BYTES, 9 * state_pairs.OP_BYTES + 3])
def test_results__come_whole_however_large_they_are(ends: Ends, size: int) -> None:
    """More of them than the memory of such a job holds at once, too; and nothing, while an op is under way."""
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    line = Line(lambda number: giver.begin(number, "host:1"))
    giver = PairsGiven(None, line, part, lambda op_seq: data if op_seq == 5 else b"another op")  # type: ignore[arg-type]
    reader = PairReader(None, line, SIZE, Kind.FOLLOWED)  # type: ignore[arg-type]
    reader.places = {3: "host:1"}
    reader.results(3, 5)
    reader._tried[3].join(10)
    line.asked.clear()
    assert reader.results(3, 5) == data and reader.results(3, 6) == b"another op"
    assert fetched(reader, [40, 2]) == {40: part(40), 2: part(2)}, "and parts by the same job"
    assert not line.asked
    reader.end()
    giver.end()


@pytest.mark.parametrize("size", [-1, state_pairs.RESULTS_BYTES_MAX + 1])
def test_results__a_size_that_cannot_be_ends_the_job(ends: Ends, size: int) -> None:
    line = Line(lambda number: YES)
    reader = PairReader(None, line, SIZE, Kind.FOLLOWED)  # type: ignore[arg-type]
    reader.places = {3: "host:1"}
    assert reader._begin(3, b"")
    reader._tried[3].join(10)
    liar = ends.join(None, ends.joined[0][0], 0, "host:1")
    liar.broadcast(np.array([size]), 0, 1.0)
    assert reader.results(3, 5) == b"" and line.asked[-1] == (Kind.RESULTS, ()) and 3 not in reader._pairs


def test_given__so_many_jobs_at_once_and_no_more(ends: Ends) -> None:
    giver = PairsGiven(None, Line(lambda number: b""), part)  # type: ignore[arg-type]
    said = [giver.begin(number, "host:1") for number in range(state_pairs.PAIRS_MAX + 1)]
    assert said == [YES] * state_pairs.PAIRS_MAX + [b""]
    giver.end()
