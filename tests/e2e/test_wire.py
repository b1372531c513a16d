# SPDX-License-Identifier: Apache-2.0
"""Quantised allreduces over real daemons: to the bit what the page says, alike on all hosts, and receipts count."""

from __future__ import annotations

import numpy as np
import pytest

import ultima
from tests.dissector.quant import Floats
from tests.e2e.hosts import Hosts, everywhere, ranks
from tests.quantised import drawn, reduced
from ultima.admin.calls import get_status

SIZE = 30_000
pytestmark = pytest.mark.check


@pytest.mark.parametrize("places", ["01", "0123", "0012"])
def test_wire__results_are_to_the_bit(four: Hosts, places: str) -> None:
    cases = [("int16", None, "sum"), ("int8", None, "avg"), ("int4", None, "sum"), ("int4", "int8", "avg")]
    hosts = sorted(set(places))
    moved: list[list[tuple[str | None, int, int, int]]] = [[] for _ in places]
    with ranks([four[int(place)] for place in places], arena="8M") as jobs:

        def train(rank: int, job: ultima.Job) -> list[tuple[int, Floats]]:
            results = []
            for step, (wire, answer, op) in enumerate(cases):
                array = drawn(rank, SIZE, step)
                receipt = job.allreduce(array, op, wire=wire, answer=answer, mode="reliable", deadline="30s")
                assert receipt.complete and receipt.wire == (f"{wire}/{answer}" if answer else wire)
                assert receipt.bytes_expected == receipt.bytes_used > 1.9 * receipt.wire_received - 8192
                results.append((receipt.op_seq, array))
                moved[rank].append((receipt.wire, receipt.wire_sent, receipt.wire_received, receipt.bytes_used))
            return results

        everyone = everywhere(jobs, train)
        for error in everyone:
            assert isinstance(error, list), error
        for step, (wire, answer, op) in enumerate(cases):
            given = [
                np.add.reduce([drawn(rank, SIZE, step) for rank, place in enumerate(places) if place == host])
                for host in hosts
            ]
            seq = everyone[0][step][0]
            # Calls take turns in lanes, of which each has numbers of its own.
            wanted = [reduced(given, op, wire, answer, seq=seq // lanes, ranks=len(places)) for lanes in (1, 2)]
            for rank, results in enumerate(everyone):
                assert any(np.array_equal(results[step][1], each) for each in wanted), f"rank {rank}, {wire}, {answer}"
                np.testing.assert_array_equal(results[step][1], everyone[0][step][1])
        for rank, place in enumerate(places):
            (job,) = get_status(str(four[int(place)].socket), jobs[rank].name).jobs
            told = [(row.wire, row.sent_bytes, row.received_bytes, row.value_bytes) for row in job.wires]
            assert told == sorted(moved[rank]), "the status says what the receipts say"


def test_wire__feedback_and_async_ops_among_dense_ones(four: Hosts) -> None:
    with ranks(four[:2], arena="16M") as jobs:

        def train(rank: int, job: ultima.Job) -> Floats:
            left, total = job.empty(SIZE), np.zeros(SIZE)
            left[:] = 0
            for step in range(6):
                dense, array = np.full(100, rank, np.float32), drawn(rank, SIZE)
                handles = [
                    job.allreduce_async(dense, "sum", deadline="20s"),
                    job.allreduce_async(array, wire="int4", answer="int8", feedback=left, deadline="20s"),
                ]
                assert all(handle.wait().complete for handle in handles) and (dense == 1).all(), step
                total += array
            return total / 6

        mine, theirs = everywhere(jobs, train)
        exact = (drawn(0, SIZE) + drawn(1, SIZE)) / 2
        np.testing.assert_array_equal(mine, theirs)
        assert np.sum((mine - exact) ** 2) / np.sum(exact**2) < 2e-3, "one int4 average is 2e-2 off"


def test_wire__gifts_of_a_job_with_a_policy(four: Hosts) -> None:
    """All wait for all, so what is in each op is known; residuals are what rounding took, on every rank."""
    options = ultima.Options(policy="full")
    left = [np.zeros(SIZE, np.float32) for _ in range(3)]
    with ranks(four[:3], arena="16M", options=options) as jobs:

        def train(rank: int, job: ultima.Job) -> list[tuple[int, Floats, Floats]]:
            kept, results = job.empty(SIZE), []
            kept[:] = 0
            for step in range(3):
                array = drawn(rank, SIZE, step)
                receipt = job.allreduce(
                    array, wire="int4", answer="int8", feedback=kept, mode="reliable", deadline="30s"
                )
                assert receipt.complete and receipt.included == 3 and receipt.wire == "int4/int8"
                assert receipt.bytes_used > 4 * receipt.wire_received - 8192
                results.append((receipt.op_seq, array, kept.copy()))
            return results

        everyone = everywhere(jobs, train)
        for error in everyone:
            assert isinstance(error, list), error
        for step in range(3):
            given = [drawn(rank, SIZE, step) for rank in range(3)]
            wanted = reduced(given, "avg", "int4", "int8", seq=everyone[0][step][0], nearest=True, left=left)
            for rank, results in enumerate(everyone):
                np.testing.assert_array_equal(results[step][1], wanted)
                np.testing.assert_array_equal(results[step][2], left[rank])
