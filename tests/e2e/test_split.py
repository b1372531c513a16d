# SPDX-License-Identifier: Apache-2.0
"""Large ops that are split over the lanes of a job: one op to whoever looks, and in all lanes at once. Real daemons."""

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, everywhere, ranks, running
from tests.e2e.test_lanes import lanes_of, moved
from ultima import InvalidArgument, Status
from ultima.admin.calls import get_receipts, get_status
from ultima.admin.flight import chrome_trace
from ultima.admin.past import get_ops
from ultima.cli.explain import decoded

LARGE = (2 << 20) // 4 + 77
"""Elements of an op that is split: no multiple of anything."""


@pytest.fixture(scope="module")
def two() -> Iterator[Hosts]:
    with running(2) as hosts:
        yield hosts


def given(rank: int, count: int = LARGE) -> np.ndarray:
    return np.arange(count, dtype=np.float32) % 1021 + 5 * rank


def both(jobs: list[ultima.Job], count: int = LARGE, **asked: object) -> list[ultima.Receipt]:
    """An op of both ranks, in place; the result is looked at element by element."""

    def one(rank: int, job: ultima.Job) -> ultima.Receipt:
        array = given(rank, count)
        receipt = job.allreduce(array, "sum", **asked)
        assert (array == given(0, count) + given(1, count)).all()
        return receipt

    answers = everywhere(jobs, one)
    for answer in answers:
        assert isinstance(answer, ultima.Receipt), answer
    return answers


def test_split__values_numbers_receipts_and_what_is_told_afterwards(two: Hosts) -> None:
    before = [lanes_of(host) for host in two]
    with ranks(two, options=ultima.Options(split="always")) as jobs:
        assert {job.options["split"] for job in jobs} == {"always"}
        # A small one takes one number; a large one begins at an even number and takes two.
        counts = (100, LARGE, LARGE, 100, 100, 100, LARGE)
        numbers = (0, 2, 4, 6, 7, 8, 10)
        for count, number in zip(counts, numbers, strict=True):
            receipts = both(jobs, count)
            assert {receipt.op_seq for receipt in receipts} == {number}
            assert {receipt.portions for receipt in receipts} == {2 if count == LARGE else 1}
            assert all(receipt.complete and receipt.contributors == (0, 1) for receipt in receipts)
            assert len({receipt.digest for receipt in receipts}) == 1 and receipts[0].digest
            for receipt in receipts:
                assert receipt.bytes_expected == receipt.bytes_used
                (peer,) = (row for row in receipt.peers if sum(row.expected_bytes))
                assert sum(peer.expected_bytes) == receipt.bytes_expected
            # Of what is sent, and of what comes back, a half is each host's own.
            assert sum(receipt.bytes_expected for receipt in receipts) == 2 * 4 * count
        for rank, host in enumerate(two):
            assert moved(before[rank], lanes_of(host), "ops_complete") == [3 + 3, 3 + 1]
            half = 3 * LARGE * 4 // 2 // 1440
            assert all(packets >= half for packets in moved(before[rank], lanes_of(host), "data_used"))
        name, path = jobs[0].name, str(two[0].socket)
        for number in (None, 10, 2):
            answer = get_receipts(path, name, number)
            receipt, _, _ = decoded(answer)
            assert receipt.op_seq == (number or 10) and receipt.portions == 2 and receipt.complete
            assert receipt.bytes_expected + decoded(get_receipts(str(two[1].socket), name, number))[
                0
            ].bytes_expected == (2 * 4 * LARGE)
        (status,) = (job for job in get_status(path).jobs if job.job == name)
        assert status.ops_complete_count == len(counts)
        (life,) = get_ops(path, name).lives
        assert [(op.op_seq, op.bucket_bytes) for op in life.ops] == [
            (number, 4 * count) for number, count in zip(numbers, counts, strict=True)
        ]
        named = [event["name"] for event in chrome_trace([life])["traceEvents"] if event.get("cat") == "op"]
        assert sum(each.startswith("op 10 allreduce") for each in named) == 1 and "op 11" not in json.dumps(named)


@pytest.mark.parametrize("asked", [{"mode": "reliable"}, {"mode": "best_effort"}, {"agree": True}, {"out": True}])
def test_split__in_every_mode(two: Hosts, asked: dict[str, object]) -> None:
    with ranks(two, options=ultima.Options(split="always")) as jobs:

        def one(rank: int, job: ultima.Job) -> None:
            array = given(rank)
            out = np.zeros(LARGE, np.float32) if "out" in asked else array
            rest = {name: value for name, value in asked.items() if name != "out"}
            receipt = job.allreduce(array, "avg", out=out, **rest)
            assert receipt.complete and receipt.portions == 2
            assert (out == (given(0) + given(1)) / 2).all()
            assert out is array or (array == given(rank)).all()

        assert everywhere(jobs, one) == [None, None]


def test_split__many_at_once_in_the_arena_and_beside_it(two: Hosts) -> None:
    """As many calls as fill rings and arena, of both sizes: each meets its own."""
    with ranks(two, arena="32M", options=ultima.Options(split="always")) as jobs:

        def one(rank: int, job: ultima.Job) -> None:
            handles, arrays = [], []
            for i in range(10):
                count = LARGE if i % 3 else 1000
                array = job.empty(count) if i in (1, 8) else np.empty(count, np.float32)
                array[:] = given(rank, count) + i
                handles.append(job.allreduce_async(array, "sum"))
                arrays.append(array)
            for i, (handle, array) in enumerate(zip(handles, arrays, strict=True)):
                assert handle.wait().complete, i
                assert (array == given(0, array.size) + given(1, array.size) + 2 * i).all(), i

        assert everywhere(jobs, one) == [None, None]


def test_split__ranks_that_ask_for_different_things_hear_of_it(two: Hosts) -> None:
    """At once, though the second portion of the one has nobody to meet and waits for its deadline."""
    with ranks(two, options=ultima.Options(split="always")) as jobs:
        sizes = (LARGE, LARGE // 2)

        def one(rank: int, job: ultima.Job) -> ultima.Desync:
            array = given(rank, sizes[rank])
            with pytest.raises(ultima.Desync) as raised:
                job.allreduce(array, "sum")
            assert (array == given(rank, sizes[rank])).all(), "untouched"
            return raised.value

        first, second = everywhere(jobs, one)
        assert first.field == second.field == "split"
        assert first.mine == second.theirs == "1 of 2" and first.theirs == second.mine == "not split"
        assert jobs[0]._connection.session.is_flying(0), "the daemon is not through with it"


def test_split__a_rank_that_never_comes(two: Hosts) -> None:
    """One receipt, with the bytes of both portions; the result is the rank's own value."""
    with ranks(two, options=ultima.Options(split="always")) as jobs:
        array = given(0)
        receipt = jobs[0].allreduce(array, "sum", deadline="300ms")
        assert receipt.status is Status.INSUFFICIENT and receipt.portions == 2
        assert (array == given(0)).all() and receipt.culprit == (1,)
        assert receipt.bytes_missing == receipt.bytes_expected == 4 * LARGE
        with pytest.raises(ultima.DeadlineExceeded) as raised:
            jobs[0].allreduce(array, "sum", deadline="300ms", mode="reliable")
        assert raised.value.receipt is not None and raised.value.receipt.op_seq == 2
        assert (array == given(0)).all()


@pytest.mark.parametrize("anew", [True, False])
def test_split__a_rank_that_comes_back_joins_before_an_op_and_not_within(two: Hosts, anew: bool) -> None:
    """Its session breaks off, and the other rank calls two small ops alone, numbers 1 and 2. A new process then begins
    with number 4. One that did not hear of it calls what it has missed, and is answered alone up to there."""
    with ranks(two, options=ultima.Options(split="always")) as jobs:
        both(jobs, 100)
        lifeline = jobs[1]._connection.session._attachment.lifeline
        lifeline.shutdown(socket.SHUT_RDWR)
        alone = [jobs[0].allreduce(given(0, 10), "sum", deadline="200ms").op_seq for _ in range(2)]
        assert alone == [1, 2]
        if anew:
            asked = {"options": ultima.Options(split="always"), "arena": "16M", "timeout": 30, "deadline": 20}
            jobs[1] = ultima.connect(jobs[0].name, 1, 2, two[1].socket, two[0].rendezvous, **asked)
            assert jobs[1]._connection.session.next_op == 4, "3 may be the second half of an op"
        assert jobs[1].connected is anew  # who looks finds out
        missed = [jobs[1].allreduce(given(1, 10), "sum").op_seq for _ in range(0 if anew else 3)]
        assert missed == ([] if anew else [1, 2, 3])
        assert jobs[0].allreduce(given(0, 10), "sum", deadline="200ms").op_seq == 3

        def one(rank: int, job: ultima.Job) -> list[int]:
            numbers = []
            for _ in range(2):
                array = given(rank)
                receipt = job.allreduce(array, "sum")
                assert receipt.complete and (array == given(0) + given(1)).all()
                numbers.append(receipt.op_seq)
            return numbers

        assert everywhere(jobs, one) == [[4, 6], [4, 6]]


def test_split__is_settled_when_the_job_forms(two: Hosts) -> None:
    with ranks(two, options=ultima.Options(split="never")) as jobs:
        assert [receipt.portions for receipt in both(jobs)] == [1, 1]
        assert [receipt.op_seq for receipt in both(jobs)] == [1, 1]
    with pytest.raises(InvalidArgument, match=r"split.*auto.*partial"):
        ultima.connect(options=ultima.Options(split="always", policy="solo"))
    with pytest.raises(InvalidArgument, match="one of auto, never, always"):
        ultima.connect(options=ultima.Options(split="yes"))
    with ranks(two, options=ultima.Options(policy="full")) as jobs:

        def one(rank: int, job: ultima.Job) -> int:
            array = given(rank)
            receipt = job.allreduce(array, "sum")
            assert receipt.complete and (array == given(0) + given(1)).all()
            return receipt.portions

        assert everywhere(jobs, one) == [1, 1]
