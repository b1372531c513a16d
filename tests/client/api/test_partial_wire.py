# SPDX-License-Identifier: Apache-2.0
"""Jobs with a policy whose gradients travel in few bits, on the fake: what an op makes of those that are in it, to the
bit; what comes too late; and residuals."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.api.slots import SEED, at_once, slots
from tests.client.api.test_partial import _later
from tests.quantised import drawn, reduced
from ultima.testing.lan import PACKET_BYTES

PAYLOAD, SIZE = PACKET_BYTES - 32, 7001
NOTHING = np.zeros(SIZE, np.float32)
FORMS = [("int16", None), ("int8", None), ("int4", None), ("int4", "int8")]


def made(given: list[Any], op: str, wire: str, answer: str | None, seq: int, ranks: int, **more: Any) -> Any:
    """Who gives nothing adds zeros, and is not counted."""
    return reduced(given, op, wire, answer, seq=seq, payload=PAYLOAD, ranks=ranks, **more)


@pytest.mark.parametrize(("wire", "answer"), FORMS)
@pytest.mark.parametrize("feeds", [False, True])
def test_allreduce__figure_7_in_few_bits(wire: str, answer: str | None, feeds: bool) -> None:
    """Rank 1 is alone in op 0; what rank 0 gave for it is added to what it gives next, and op 1 has both ranks."""
    with slots(2, "majority", policy_seed=SEED) as (_, (late, first)):
        old, new, theirs, newer = (drawn(0, SIZE), drawn(0, SIZE, 1), drawn(1, SIZE), drawn(1, SIZE, 1))
        kept = [job.empty(SIZE) for job in (late, first)]
        for rank, array in enumerate(kept):
            array[:] = drawn(rank, SIZE, 2) / 64
        twins: list[Any] = [array.copy() if feeds else None for array in kept]
        said: list[dict[str, Any]] = [
            {"wire": wire, "answer": answer, "feedback": array if feeds else None} for array in kept
        ]
        mine, other = old.copy(), theirs.copy()
        receipt = first.allreduce(other, **said[1])
        wanted = made([NOTHING, theirs], "avg", wire, answer, 0, 2, nearest=feeds, left=[None, twins[1]])
        np.testing.assert_array_equal(other, wanted)
        name = f"{wire}/{answer}" if answer else wire
        assert (receipt.included, receipt.fresh, receipt.wire, receipt.complete) == (1, (1,), name, True)
        assert receipt.bytes_used == receipt.bytes_expected > 1.8 * receipt.wire_received
        receipt = late.allreduce(mine, **said[0])
        np.testing.assert_array_equal(mine, wanted)
        assert receipt.kept and late.partial().pending == (0,)
        if feeds:
            np.testing.assert_array_equal(kept[0], twins[0], "no op has taken it")
        mine[:], other[:] = new, newer
        receipts = at_once(lambda: late.allreduce(mine, **said[0]), lambda: _later(late, first, other, **said[1]))
        wanted = made([old + new, newer], "avg", wire, answer, 1, 2, nearest=feeds, left=twins)
        for array, kept_one, twin in zip((mine, other), kept, twins, strict=True):
            np.testing.assert_array_equal(array, wanted)
            if feeds:
                np.testing.assert_array_equal(kept_one, twin)
        assert receipts[0].stale == (0,) and receipts[1].included == 2 and late.partial().pending == ()


def test_allreduce__sums_and_what_only_contributors_divide() -> None:
    for op, divisor, ranks in (("sum", None, 1), ("avg", "contributors", 1), ("avg", "world", 3)):
        with slots(3, "solo") as (_, jobs):
            for job in jobs:
                job.partial(divisor=divisor)
            mine = drawn(2, SIZE)
            receipt = jobs[2].allreduce(mine, op, wire="int8")
            given = [NOTHING, NOTHING, drawn(2, SIZE)]
            np.testing.assert_array_equal(mine, made(given, op, "int8", None, receipt.op_seq, ranks))
            assert receipt.contributors == (2,) and receipt.nonfinite == receipt.nonfinite_given == 0


def test_give__takes_rounds_and_keeps_what_they_took() -> None:
    """RNA's face: what the results lack of all that was given is in the residuals."""
    with slots(2, "full") as (_, jobs):
        faces = [job.partial(divisor="none") for job in jobs]
        kept = [job.empty(SIZE) for job in jobs]
        total, exact = np.zeros(SIZE), np.zeros(SIZE)
        for array in kept:
            array[:] = 0
        for step in range(6):
            for rank, face in enumerate(faces):
                face.give(drawn(rank, SIZE, step), wire="int4", answer="int16", feedback=kept[rank])
            results = [face.wait() for face in faces]
            assert results[0] is not None and results[1] is not None
            assert results[0].receipt.wire == "int4/int16"
            np.testing.assert_array_equal(results[0].array, results[1].array)
            total += results[0].array
            exact += sum(drawn(rank, SIZE, step) for rank in results[0].receipt.contributors)
            assert results[0].receipt.included == 2 and not any(face.pending for face in faces)
        left = sum(np.asarray(array, np.float64) for array in kept)
        assert np.abs(total + left - exact).max() < 2e-3 * np.abs(exact).max(), "what is lacking is in the residuals"


def test_bad_input__is_named() -> None:
    with slots(2, "solo") as (_, (job, _other)):
        mine, left = drawn(0, 100), job.empty(100)
        for field, words in {
            "wire": {"wire": "int3"},
            "answer": {"wire": "int8", "answer": "int4"},
            "rounding": {"wire": "int8", "rounding": "up"},
            "weight": {"wire": "int8", "weight": 2},
            "feedback": {"feedback": left},
        }.items():
            with pytest.raises(ultima.InvalidArgument) as raised:
                job.allreduce(mine, **words)
            assert raised.value.field == field
        for wrong in (job.empty(99), np.zeros(100, np.float32), job.empty(101)[1:]):
            with pytest.raises(ultima.InvalidArgument) as raised:
                job.allreduce(mine, wire="int8", feedback=wrong)
            assert raised.value.field == "feedback"
        for wrong in (np.zeros(4), np.zeros(4, np.int32)):
            with pytest.raises(ultima.InvalidArgument) as raised:
                job.partial().give(wrong, wire="int8")
            assert raised.value.field == "dtype"
        with pytest.raises(TypeError, match="wired"):
            job.partial().give(mine, wired="int8")  # type: ignore[call-arg]
        assert job.partial().step == 0, "nothing was given"


def test_ranks_that_differ__are_named() -> None:
    with slots(2, "full") as (_, (one, other)):
        errors: list[Exception] = []

        def call(job: Any, wire: str | None) -> None:
            with pytest.raises(ultima.Desync) as raised:
                job.allreduce(drawn(0, SIZE), wire=wire)
            errors.append(raised.value)

        threads = [threading.Thread(target=call, args=words) for words in ((one, "int8"), (other, None))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [error.field for error in errors] == ["wire", "wire"]  # type: ignore[attr-defined]
