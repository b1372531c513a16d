# SPDX-License-Identifier: Apache-2.0
"""Collectives of Gloo's: the note of each, the same wherever the same was called and another one wherever it was not,
and when Gloo gets it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402

from ultima.base.errors import ClosedHandle, Desync, RanksGone  # noqa: E402
from ultima.torch.backend import accompanied  # noqa: E402
from ultima.torch.backend.accompanied import BITS, CALLS, DTYPES, Accompanied, Line, in_words, note_of  # noqa: E402


def options(kind: Any, **fields: Any) -> Any:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


FOUR, FIVE, LONG = torch.ones(4), torch.ones(5), torch.ones(4, dtype=torch.int64)
TO_0, TO_1 = (options(dist.GatherOptions, rootRank=root) for root in range(2))
SUM, MAX = (options(dist.ReduceOptions, reduceOp=op, rootRank=3) for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX))


@pytest.mark.parametrize(
    ("call", "on_root", "elsewhere"),
    [
        ("gather", ([[FOUR, FOUR]], [FOUR], TO_1), ([], [FOUR], TO_1)),
        ("gather", ([[FOUR, FOUR]], [FOUR], TO_1), ([], FOUR, 1)),
        ("scatter", ([FOUR], [[FOUR, FOUR]], TO_0), ([FOUR], [], TO_0)),
        ("reduce", ([FOUR], MAX), (FOUR, 3, dist.ReduceOp.MAX)),
        ("alltoall_base", (FOUR, FIVE, [2, 2], [3, 2]), (FIVE, FOUR, [3, 2], [2, 2])),
        ("reduce_scatter", ([FOUR], [[FOUR, FIVE]]), ([FIVE], [[FOUR, FIVE]])),
    ],
)
def test_note__is_the_same_on_ranks_that_give_different_tensors(call: str, on_root: Any, elsewhere: Any) -> None:
    assert note_of(call, on_root) == note_of(call, elsewhere) != 0


@pytest.mark.parametrize(
    ("field", "mine", "theirs", "here", "there"),
    [
        ("collective", ("gather", ([], [FOUR], TO_0)), ("scatter", (FIVE, [])), "gather (Gloo's)", "scatter (Gloo's)"),
        ("collective", ("reduce", ([FIVE], MAX)), None, "reduce (Gloo's)", "barrier"),
        ("root", ("gather", ([FIVE], TO_0)), ("gather", ([LONG], TO_1)), 0, 1),
        ("op", ("reduce", ([LONG], SUM)), ("reduce", ([FIVE], MAX)), "SUM", "MAX"),
        ("dtype", ("reduce", ([LONG], SUM)), ("reduce", ([FIVE], SUM)), "int64", "float32"),
        ("dtype", ("gather", ([FOUR], TO_0)), ("gather", ([FOUR.bool()], TO_0)), "float32", "bool"),
        ("count", ("reduce", ([FOUR], SUM)), ("reduce", ([FIVE], SUM)), 4, 5),
        ("count", ("_allgather_base", (torch.ones(8), FOUR)), ("_allgather_base", (torch.ones(10), FIVE)), 4, 5),
    ],
)  # fmt: skip
def test_note__that_differs_names_the_first_field_that_does(
    field: str, mine: Any, theirs: Any, here: Any, there: Any
) -> None:
    """In the order of what a reader would look for: who calls something else also has other sizes."""
    found = in_words(Desync(1, "note", note_of(*mine), note_of(*theirs) if theirs else 0, 7))
    assert (found.rank, found.field, found.mine, found.theirs, found.op_seq) == (1, field, here, there, 7)


def test_note__has_room_for_every_word() -> None:
    assert sum(BITS.values()) == 64
    for field, words in accompanied.WORDS.items():
        assert len(words) < 1 << BITS[field], f"and for what is none of them: {field}"
        assert len(set(words)) == len(words)
    assert note_of(CALLS[-1], [torch.empty(0), 8191]) < 1 << 64
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES[1:])


def test_note__of_an_element_type_that_is_no_word() -> None:
    strange = torch.empty(4, dtype=torch.bits16)
    found = in_words(Desync(1, "note", note_of("gather", ([strange], TO_0)), note_of("gather", ([FOUR], TO_0))))
    assert (found.field, found.mine, found.theirs) == ("dtype", accompanied.OTHER, "float32")


def test_desync__of_another_kind_stays_as_it_is() -> None:
    error = Desync(1, "mode", "bounded", "reliable", 7)
    assert in_words(error) is error


class Met:
    """A barrier that passes, or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def wait(self) -> None:
        if self._error is not None:
            raise self._error


def in_line(*met: Met) -> tuple[list[Accompanied], list[str]]:
    """Collectives called a, b, ... in this order, and those that Gloo has got."""
    line, begun = Line(), list[str]()

    def begin(call: str) -> Any:
        begun.append(call)
        return Met()

    return [Accompanied(call, one, partial(begin, call), line) for call, one in zip("abc", met, strict=False)], begun  # type: ignore[arg-type]


def test_line__gloo_gets_them_in_the_order_of_the_calls_whoever_is_waited_for() -> None:
    (first, second, third), begun = in_line(Met(), Met(), Met())
    assert begun == [], "before the ranks have met"
    second.wait()
    assert begun == ["a", "b"]
    first.wait()
    second.wait()
    third.wait()
    assert begun == ["a", "b", "c"]


def test_line__after_one_that_not_all_came_to_gloo_gets_none() -> None:
    """On another rank it may have got that one, and would take the next for it."""
    (first, second, third), begun = in_line(Met(), Met(RanksGone("gone", (1,))), Met())
    with pytest.raises(ClosedHandle, match="c: not every rank came to b, which was called before it"):
        third.wait()
    for _ in range(2):
        with pytest.raises(RanksGone, match="gone"):
            second.wait()
    first.wait()
    assert begun == ["a"]


def test_line__what_gloo_refuses_is_that_one_s_error_alone() -> None:
    line = Line()
    refused, taken = (
        Accompanied("reduce", Met(), lambda: 1 // 0, line),  # type: ignore[arg-type]
        Accompanied("reduce", Met(), Met, line),  # type: ignore[arg-type]
    )
    taken.wait()
    with pytest.raises(ZeroDivisionError):
        refused.wait()


def test_line__gloo_writes_results_and_records_nothing() -> None:
    """Views of one tensor are the outputs of many a collective; with autograd on they may not be written to."""
    whole = torch.zeros(4, requires_grad=True) * 1.0

    def begin() -> Any:
        whole.split(2)[0].copy_(FOUR[:2])
        return Met()

    Accompanied("allgather", Met(), begin, Line()).wait()  # type: ignore[arg-type]
    assert whole.tolist() == [1.0, 1.0, 0.0, 0.0]
