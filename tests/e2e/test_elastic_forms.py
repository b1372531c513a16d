# SPDX-License-Identifier: Apache-2.0
"""Weights and forms of few bits where hosts come and go: sums and receipts are of those that are in."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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

    try:
        right()
        jobs[3] = enter(hosts[3], hosts[0], name, most=4)
        right()
        jobs.pop(0).leave()
        right()
        hosts[1].kill()
        jobs.pop(1).close()
        right()
    finally:
        for job in jobs.values():
            job.close()
