# SPDX-License-Identifier: Apache-2.0
"""Weights, forms of few bits and entries where hosts come and go: sums and receipts are of those that are in."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.elastic import Jobs, enter, enter_all, whole_soon
from tests.e2e.hosts import Hosts, everywhere, new_job_name
from ultima import Receipt

N = 10_000
WEIGHTS = {0: 3, 1: 5, 2: 0, 3: 8}
SEED = 20261128


def gift(number: int, op_seq: int) -> np.ndarray:
    draw = np.random.default_rng([SEED, number, op_seq])
    return draw.integers(-(2**10), 2**10, N).astype(np.float32)


def one_each(jobs: Jobs, op_seq: int, **call: Any) -> dict[int, tuple[Receipt, np.ndarray]]:
    """One op on each of these hosts at once."""

    def one(_: int, number: int) -> tuple[Receipt, np.ndarray]:
        data = gift(number, op_seq)
        said = {"weight": WEIGHTS[number]} if "wire" not in call else call
        return jobs[number].allreduce(data, "avg", deadline="5s", **said), data

    return dict(zip(jobs, everywhere(list(jobs), one), strict=True))


def level(jobs: Jobs) -> None:
    """All stand before the same op."""
    whole_soon(jobs)
    most = max(job._connection.session.calls_next for job in jobs.values())
    for job in jobs.values():
        job._skip(most)


def weighted_right(jobs: Jobs, op_seq: int) -> None:
    found = one_each(jobs, op_seq)
    total = sum(WEIGHTS[number] for number in jobs)
    exact = sum(WEIGHTS[number] * gift(number, op_seq).astype(np.float64) for number in jobs) / total
    for receipt, data in found.values():
        assert receipt.complete and receipt.weight_due == receipt.weight_in == total, f"seed {SEED}: {receipt!r}"
        assert receipt.world_size == len(jobs) and np.allclose(data, exact, rtol=1e-6, atol=1e-3), f"seed {SEED}"
    assert len({data.tobytes() for _, data in found.values()}) == 1


def quantised_right(jobs: Jobs, op_seq: int, wire: str) -> None:
    """Within a step of each contribution and one of the result, and the same bits everywhere."""
    found = one_each(jobs, op_seq, wire=wire)
    exact = sum(gift(number, op_seq).astype(np.float64) for number in jobs) / len(jobs)
    step = 2.0**10 / {"int16": 2**15 - 1, "int8": 127, "int4": 7}[wire]
    for receipt, data in found.values():
        assert receipt.complete and receipt.wire == wire and len(receipt.contributors) == len(jobs), repr(receipt)
        assert np.abs(data - exact).max() <= 2 * 2 * step, f"seed {SEED}"
    assert len({data.tobytes() for _, data in found.values()}) == 1


def entries_right(jobs: Jobs, op_seq: int, **forms: Any) -> None:
    """Each gives a tenth of its whole numbers, of which two hosts name the same places. Without forms the sum is exact;
    always it has the same bits everywhere, and nothing is returned."""

    def one(_: int, number: int) -> tuple[Receipt, np.ndarray, int]:
        where = np.flatnonzero((np.arange(N) + op_seq) % 10 == number // 2)
        out = np.empty(N, np.float32)
        given = gift(number, op_seq)[where]
        handle = jobs[number].allreduce_sparse_async(where, given, out, op="sum", deadline="5s", **forms)
        return handle.wait(), out, handle.returned[0].size

    found = everywhere(list(jobs), one)
    exact = np.zeros(N)
    for number in jobs:
        where = np.flatnonzero((np.arange(N) + op_seq) % 10 == number // 2)
        exact[where] += gift(number, op_seq)[where]
    for receipt, out, returned in found:
        assert receipt.complete and len(receipt.contributors) == len(jobs) and not returned, f"seed {SEED}: {receipt!r}"
        assert np.abs(out - exact).max() <= (2 * 2.0**11 / 127 if forms else 0), f"seed {SEED}"
    assert len({out.tobytes() for _, out, _ in found}) == 1


@pytest.mark.check
def test_elastic__weights_and_forms_are_of_those_that_are_in(daemons: Callable[[int], Hosts]) -> None:
    hosts, name = dict(enumerate(daemons(4))), new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1], 2: hosts[2]}, hosts[0], name, most=4)

    def right() -> None:
        level(jobs)
        for op_seq in range(2):
            weighted_right(jobs, op_seq)
            for wire in ("int16", "int8", "int4"):
                quantised_right(jobs, op_seq, wire)
            entries_right(jobs, op_seq)
            entries_right(jobs, op_seq, form="bfloat16", down="int8")

    try:
        right()
        jobs[3] = enter(hosts[3], hosts[0], name, most=4)
        right()
        jobs.pop(0).leave()
        right()
        for field, value in (("agree", True), ("mode", "reliable")):
            with pytest.raises(ultima.InvalidArgument, match=f"{field} is .* where hosts come and go"):
                out = np.empty(N, np.float32)
                jobs[1].allreduce_sparse(np.arange(1), np.ones(1, np.float32), out, **{field: value})  # type: ignore[arg-type]
        assert "allreduce_sparse" in jobs[1].collectives
        hosts[1].kill()
        jobs.pop(1).close()
        right()
    finally:
        for job in jobs.values():
            job.close()


@pytest.mark.check
def test_elastic__a_broadcast_is_the_roots_to_the_bit_or_nothing(daemons: Callable[[int], Hosts]) -> None:
    hosts, name = dict(enumerate(daemons(3))), new_job_name()
    jobs = enter_all(hosts, hosts[0], name, most=3)
    draw = np.random.default_rng(SEED)
    sent = draw.integers(0, 256, 10_003, np.uint8)  # of all bits, as NaN and -0.0 are moved too

    def all_at_once(roots: dict[int, int]) -> dict[int, Any]:
        def one(_: int, number: int) -> Any:
            data = sent.copy() if jobs[number].rank == roots[number] else np.full_like(sent, number)
            try:
                return jobs[number].broadcast(data, roots[number], deadline="3s"), data
            except ultima.UltimaError as error:
                return error, data

        return dict(zip(jobs, everywhere(list(jobs), one), strict=True))

    try:
        level(jobs)
        for root in range(3):
            for receipt, data in all_at_once(dict.fromkeys(jobs, root)).values():
                assert receipt.complete and np.array_equal(data, sent), f"seed {SEED}"
        found = all_at_once({number: job.rank % 2 for number, job in jobs.items()})
        assert all(isinstance(error, ultima.Desync) and error.field == "root" for error, _ in found.values()), found
        gone = jobs.pop(2)
        root = gone.rank
        gone.leave()
        level(jobs)
        for number, (error, data) in all_at_once(dict.fromkeys(jobs, root)).items():
            assert isinstance(error, ultima.RanksGone) and error.ranks == (root,), error
            assert np.array_equal(data, np.full_like(sent, number)), "it is as it was"
        for wrong in (-1, 64, True, 1.0):
            with pytest.raises(ultima.InvalidArgument, match=r"root is .*; allowed: a rank, 0 to 63"):
                jobs[0].broadcast(sent, wrong)  # type: ignore[arg-type]
    finally:
        for job in jobs.values():
            job.close()
