# SPDX-License-Identifier: Apache-2.0
"""Sparse allreduces over real daemons: bit for bit what the entries add up to, alike on all ranks, and who differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, everywhere, ranks
from tests.seeds import seeds
from ultima.base.sparse_form import Floats, Indices, rounded
from ultima.base.words import FORMS

SIZE = 120_000


def entries(rank: int, step: int, density: float, group: int = 1, seed: int = 0) -> tuple[Indices, Floats]:
    """Values of few bits, so that a sum does not depend on its order; the same entries often meet."""
    rng = np.random.default_rng([seed, rank, step])
    units = SIZE // group
    indices = np.unique(rng.integers(0, max(1, int(units * min(1.0, 3 * density))), int(units * density)))
    values = rng.integers(-8, 9, (indices.size, group)).astype(np.float32)
    return indices.astype(np.uint32), values


def dense(given: list[tuple[Indices, Floats]], group: int, form: str) -> Floats:
    total = np.zeros((SIZE // group, group), np.float32)
    for indices, values in given:
        total[indices] += rounded(values.reshape(-1), form).reshape(values.shape)
    return total.reshape(-1)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("places", ["0", "01", "0123", "0012"])
def test_sparse__sums_are_exact_and_alike(four: Hosts, places: str, seed: int) -> None:
    with ranks([four[int(place)] for place in places], arena="8M") as jobs:
        assert "allreduce_sparse" in jobs[0].collectives
        cases = [(form, density, 1) for form in FORMS for density in (0.0, 0.01, 0.4)]
        cases += [("float32", 0.05, 3), ("float16", 0.05, 240), ("float32", 1.0, 1)]

        def train(rank: int, job: ultima.Job) -> list[Floats]:
            results = []
            for step, (form, density, group) in enumerate(cases):
                indices, values = entries(rank, step, density, group, seed)
                out = job.empty(SIZE) if step % 2 else np.full(SIZE, 9, np.float32)
                receipt = job.allreduce_sparse(
                    indices, values, out, op="sum", group=group, form=form, mode="reliable", deadline="20s", hint=step
                )
                assert receipt.complete, f"rank {rank}, {form} {density}: {receipt}"
                assert receipt.bytes_expected == receipt.bytes_used
                results.append(np.array(out))
            return results

        everyone = everywhere(jobs, train)
        for step, (form, density, group) in enumerate(cases):
            wanted = dense([entries(rank, step, density, group, seed) for rank in range(len(jobs))], group, form)
            for rank, results in enumerate(everyone):
                np.testing.assert_array_equal(results[step], wanted, err_msg=f"rank {rank}, {form} {density} {group}")


def test_sparse__answers_in_int8_are_near_and_alike(four: Hosts) -> None:
    with ranks([four[0], four[1], four[1]], arena="8M") as jobs:
        given = [entries(rank, 3, 0.05) for rank in range(3)]
        wanted = dense(given, 1, "float32") / np.float32(3)

        def train(rank: int, job: ultima.Job) -> tuple[list[Floats], list[ultima.Receipt]]:
            outs, receipts = [], []
            for down in (None, "int8"):
                out = job.empty(SIZE)
                receipts.append(job.allreduce_sparse(*given[rank], out, down=down, mode="reliable", deadline="20s"))
                outs.append(np.array(out))
            return outs, receipts

        everyone = everywhere(jobs, train)
        for outs, (exact, rounded_once) in everyone:
            np.testing.assert_array_equal(outs[0], wanted)
            np.testing.assert_array_equal(outs[1], everyone[0][0][1], err_msg="not the same bits on all ranks")
            assert (outs[1] == 0)[wanted == 0].all()
            step = np.abs(wanted).max() / 127 * 17 / 16
            assert 0 < np.abs(outs[1] - wanted).max() <= step
            assert exact.error_answer == 0 < rounded_once.error_answer < step
        # What is expected of rounding at random is what it does, within a quarter of it.
        did = float(np.sqrt(np.square(everyone[0][0][1] - wanted).mean()))
        assert abs(did / everyone[0][1][1].error_answer - 1) < 0.25
        given[1] = given[2] = (np.empty(0, np.uint32), np.empty(0, np.float32))
        failed = everywhere(jobs, lambda rank, job: job.allreduce_sparse(
            *given[1], np.empty(SIZE, np.float32), down="int8" if rank else None, deadline="20s"))  # fmt: skip
        assert all(isinstance(each, ultima.Desync) and each.field == "down" for each in failed), failed
        assert (failed[0].mine, failed[0].theirs) == (None, "int8")


def test_sparse__async_ops_among_dense_ones(four: Hosts) -> None:
    with ranks(four[:3], arena="16M") as jobs:

        def train(rank: int, job: ultima.Job) -> None:
            handles: list[tuple[ultima.Handle, Floats, Any]] = []
            for step in range(12):
                if step % 3 == 2:
                    out = np.full(1000, rank, np.float32)
                    handles.append((job.allreduce_async(out, "sum", deadline="20s"), out, np.full(1000, 3.0)))
                    continue
                given = [entries(other, step, 0.02) for other in range(3)]
                out = np.empty(SIZE, np.float32)
                handle = job.allreduce_sparse_async(*given[rank], out, op="avg", deadline="20s")
                handles.append((handle, out, dense(given, 1, "float32") / np.float32(3)))
            for handle, out, wanted in handles:
                assert handle.wait().complete
                np.testing.assert_array_equal(out, wanted)

        assert everywhere(jobs, train) == [None] * 3


def test_sparse__other_algorithms_refuse(four: Hosts) -> None:
    with ranks(four[:2], options=ultima.Options(algorithm="ring")) as jobs:
        out = np.zeros(4, np.float32)
        with pytest.raises(ultima.Unsupported, match="algorithm 'tar'"):
            jobs[0].allreduce_sparse(np.arange(1), out[:1], out)
