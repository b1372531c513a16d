# SPDX-License-Identifier: Apache-2.0
"""Quantised allreduces of a Job on the fake daemon, which has the real core: to the bit, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ultima
from tests.quantised import drawn, reduced
from ultima.testing import FakeDaemon
from ultima.testing.lan import PACKET_BYTES

PAYLOAD = PACKET_BYTES - 32


@contextmanager
def jobs_of(ranks: int = 2, **options: Any) -> Iterator[list[ultima.Job]]:
    with FakeDaemon(ranks) as daemon, ExitStack() as stack:
        yield [stack.enter_context(daemon.connect(rank, arena="4M", **options)) for rank in range(ranks)]


def all_of(jobs: list[ultima.Job], arrays: list[Any], *args: Any, **said: Any) -> list[ultima.Receipt]:
    handles = [job.allreduce_async(array, *args, **said) for job, array in zip(jobs, arrays, strict=True)]
    return [handle.wait() for handle in handles]


@pytest.mark.parametrize(
    ("op", "wire", "answer"),
    [
        ("avg", "int16", None),
        ("sum", "int8", None),
        ("avg", "int4", None),
        ("sum", "int4", "int8"),
        ("avg", "int8", "int16"),
    ],
)
def test_result__to_the_bit(op: str, wire: str, answer: str | None) -> None:
    given = [drawn(rank, 9001) for rank in range(3)]
    given[1][77], given[2][4000] = np.inf, np.nan
    with jobs_of(3) as jobs:
        for nearest in (False, True):
            arrays = [array.copy() for array in given]
            said = {"wire": wire, "answer": answer, "rounding": "nearest" if nearest else None}
            receipts = all_of(jobs, arrays, op, **said)
            wanted = reduced(given, op, wire, answer, seq=receipts[0].op_seq, payload=PAYLOAD, nearest=nearest)
            for rank, (receipt, array) in enumerate(zip(receipts, arrays, strict=True)):
                np.testing.assert_array_equal(array, wanted)
                assert receipt.complete and receipt.nonfinite == 2 and receipt.nonfinite_given == min(rank, 1)
                assert receipt.wire == (f"{wire}/{answer}" if answer else wire)
                assert receipt.bytes_expected == receipt.bytes_used and abs(receipt.bytes_used - 48005) <= 8
                assert receipt.wire_sent < receipt.bytes_expected * 0.54
                finite = np.isfinite(wanted)
                exact = np.add.reduce(given)[finite] / (3 if op == "avg" else 1)
                off = np.sqrt(np.mean((wanted[finite] - exact) ** 2))
                scale = 1 if op == "sum" else 3
                told = np.sqrt(sum(r.error_given**2 for r in receipts)) / scale
                assert 0.7 < off / np.hypot(told, receipt.error_answer) < 1.4


def test_feedback__what_rounding_took_is_sent_later() -> None:
    given = [drawn(rank, 5000) for rank in range(2)]
    with jobs_of(2) as jobs:
        kept = [job.empty(5000) for job in jobs]
        twins = [np.zeros(5000, np.float32) for _ in jobs]
        for array in kept:
            array[:] = 0
        total = np.zeros(5000)
        for step in range(8):
            arrays = [array.copy() for array in given]
            handles = [
                job.allreduce_async(array, wire="int4", answer="int8", feedback=left)
                for job, array, left in zip(jobs, arrays, kept, strict=True)
            ]
            receipts = [handle.wait() for handle in handles]
            wanted = reduced(
                given, "avg", "int4", "int8", seq=receipts[0].op_seq, payload=PAYLOAD, nearest=True, left=twins
            )
            for array, left, twin in zip(arrays, kept, twins, strict=True):
                np.testing.assert_array_equal(array, wanted)
                np.testing.assert_array_equal(left, twin)
            total += wanted
            exact = (step + 1) * np.add.reduce(given) / 2
            error = np.sum((total - exact) ** 2) / np.sum(exact**2)
        assert error < 1e-3, "a sum of eight averages without feedback is 4e-3 off"


def test_ranks_of_one_host__are_added_before_they_are_rounded() -> None:
    given = [drawn(rank, 3000) for rank in range(2)]
    with FakeDaemon(2, ranks_per_host=2) as daemon, ExitStack() as stack:
        jobs = [stack.enter_context(daemon.connect(rank, arena="1M")) for rank in range(2)]
        arrays, kept = [array.copy() for array in given], [job.empty(3000) for job in jobs]
        for rank, left in enumerate(kept):
            left[:] = drawn(rank, 3000, seed=1) / 16
        joined = kept[0] + kept[1]
        handles = [
            job.allreduce_async(array, wire="int8", feedback=left)
            for job, array, left in zip(jobs, arrays, kept, strict=True)
        ]
        receipts = [handle.wait() for handle in handles]
        wanted = reduced(
            [given[0] + given[1]],
            "avg",
            "int8",
            seq=receipts[0].op_seq,
            payload=PAYLOAD,
            nearest=True,
            ranks=2,
            left=[joined],
        )
        for array in arrays:
            np.testing.assert_array_equal(array, wanted)
        np.testing.assert_array_equal(kept[0], joined)
        assert not kept[1].any()


def test_out__leaves_the_array_alone() -> None:
    given = [drawn(rank, 800) for rank in range(2)]
    with jobs_of(2) as jobs:
        outs = [np.empty(800, np.float32) for _ in jobs]
        handles = [
            job.allreduce_async(array, "sum", out=out, wire="int8")
            for job, array, out in zip(jobs, given, outs, strict=True)
        ]
        assert all(handle.wait().complete for handle in handles)
        np.testing.assert_array_equal(outs[0], outs[1])
        np.testing.assert_array_equal(given[0], drawn(0, 800))


def test_desync__another_form_and_none() -> None:
    for other in ("int4", None):
        with jobs_of(2) as jobs:
            handles = [
                job.allreduce_async(np.ones(8, np.float32), wire=wire)
                for job, wire in zip(jobs, ("int8", other), strict=True)
            ]
            for handle in handles:
                with pytest.raises(ultima.Desync) as caught:
                    handle.wait()
                assert caught.value.field == "wire"
                assert "int8" in str(caught.value) and (other or "none") in str(caught.value)


@pytest.mark.parametrize(
    ("said", "field", "text"),
    [
        ({"wire": "fp8"}, "wire", "one of int16, int8, int4"),
        ({"answer": "int8"}, "answer", "none without wire"),
        ({"rounding": "nearest"}, "rounding", "none without wire"),
        ({"feedback": np.zeros(8, np.float32)}, "feedback", "none without wire"),
        ({"wire": "int8", "answer": "int4"}, "answer", "int16, int8"),
        ({"wire": "int8", "rounding": "up"}, "rounding", "one of random, nearest"),
        ({"wire": "int8", "op": "max"}, "op", "one of avg, sum"),
        ({"wire": "int8", "array": np.ones(8, np.float64)}, "dtype", "float32"),
        ({"wire": "int8", "array": np.ones(8, np.int32)}, "dtype", "float32"),
        ({"wire": "int8", "feedback": np.zeros(8, np.float32)}, "feedback", "an array from Job.empty"),
        ({"wire": "int8", "feedback": np.zeros(7, np.float32)}, "feedback", "8 of float32"),
    ],
)
def test_refusals__name_the_argument_and_what_is_allowed(said: dict[str, Any], field: str, text: str) -> None:
    with jobs_of(1) as (job,):
        array = said.get("array", np.ones(8, np.float32))
        rest = {name: value for name, value in said.items() if name != "array"}
        with pytest.raises(ultima.InvalidArgument, match=text) as caught:
            job.allreduce(array, **rest)
        assert caught.value.field == field
        assert job.allreduce(np.ones(8, np.float32)).complete, "and no number was used"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"wire": "int8"}, r"wire = 'int8': allowed: int16, which .* know; host 1 \(127.0.0.2\) knows int16, int2$"),
        ({"wire": "int4", "answer": "int16"}, "wire = 'int4': allowed: int16"),
        ({"wire": "int4"}, "wire = 'int4': allowed: int16"),
    ],
)
def test_refusals__a_form_that_a_host_does_not_know(said: dict[str, Any], text: str) -> None:
    """Alike on all ranks, those of the host that knows it too, and before anything is sent."""
    with FakeDaemon(2) as daemon, ExitStack() as stack:
        daemon.hosts = (daemon.hosts[0], replace(daemon.hosts[1], wires=("int16", "int2")))
        jobs = [stack.enter_context(daemon.connect(rank, arena="4M")) for rank in range(2)]
        for job in jobs:
            with pytest.raises(ultima.Unsupported, match=text):
                job.allreduce_async(np.ones(8, np.float32), **said)
        handles = [job.allreduce_async(np.ones(8, np.float32), wire="int16") for job in jobs]
        assert [handle.wait().op_seq for handle in handles] == [0, 0], "and no number was used"


def test_refusals__other_jobs() -> None:
    for options in ({"algorithm": "ring"}, {"deterministic": "yes"}):
        with jobs_of(1, options=ultima.Options(**options)) as (job,), pytest.raises(ultima.Unsupported, match="wire"):
            job.allreduce(np.ones(8, np.float32), wire="int8")
