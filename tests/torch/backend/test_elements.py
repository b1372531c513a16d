# SPDX-License-Identifier: Apache-2.0
"""Which tensors Ultima takes, and what it is given of them."""

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ultima import InvalidArgument
from ultima.torch.backend.elements import (
    Copies,
    check_written,
    dense,
    memory_of,
    op_named,
    packed,
    packed_in_place,
    pieces,
    plain,
    reducible,
)

WORDS = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "prod"}


@pytest.mark.parametrize("name", sorted(dist.ReduceOp.RedOpType.__members__))
def test_op_named__is_ours_for_five_and_none_for_the_others(name: str) -> None:
    op = dist.ReduceOp.RedOpType.__members__[name]
    options = dist.AllreduceOptions()
    options.reduceOp = dist._make_nccl_premul_sum(2.0) if name == "PREMUL_SUM" else op
    assert op_named(options.reduceOp) == WORDS.get(name)
    assert op_named(op) == WORDS.get(name)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64])
def test_memory_of__is_the_tensors_own(kind: torch.dtype) -> None:
    run = torch.zeros(5, dtype=kind)
    array = memory_of(run)
    assert isinstance(array, np.ndarray)
    array[3] = 7
    assert run[3] == 7


def test_memory_of__leaves_what_numpy_cannot_say_to_the_client() -> None:
    narrow = torch.zeros(3, dtype=torch.bfloat16)
    negated = torch.ones(3, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    assert memory_of(narrow) is narrow
    assert memory_of(negated) is negated


@pytest.mark.parametrize("length", [0, 1, 4, 5, 8, 9])
@pytest.mark.parametrize("most", [3, 16, 17, 19])
def test_pieces__are_the_whole_in_order_and_fit(length: int, most: int) -> None:
    run = torch.arange(length, dtype=torch.int32)
    parts = pieces(run, most)
    assert torch.equal(torch.cat(list(parts)), run)
    assert len(parts) == max(1, -(-length // max(1, most // 4)))
    assert all(part.nbytes <= max(most, 4) for part in parts)


def test_dense__is_memory_of_this_host_with_every_element_in_its_place() -> None:
    plain, sparse, nowhere = torch.ones(3), torch.ones(3).to_sparse(), torch.ones(3, device="meta")
    assert dense() and dense(plain) and dense(plain, plain)
    assert not dense(plain, sparse) and not dense(nowhere, plain)
    assert reducible(plain, "min") and not reducible(sparse, "sum") and not reducible(nowhere, "sum")


@pytest.mark.parametrize("sizes", [(0, 3), (1, 1), (2, 3), (3, 2), (2, 2, 2), (1, 4)])
def test_check_written__refuses_where_two_elements_are_one(sizes: tuple[int, ...]) -> None:
    """Against a count of the places themselves, for all small strides."""
    memory, checked = torch.arange(64), {True: 0, False: 0}
    for strides in itertools.product(range(7), repeat=len(sizes)):
        tensor = memory.as_strided(sizes, strides)
        apart = tensor.unique().numel() == tensor.numel()
        checked[apart] += 1
        if apart:
            check_written(tensor)
            continue
        for way in (
            check_written,
            lambda it: packed(it, []),
            lambda it: packed_in_place(it, []),
            lambda it: plain(it, []),
        ):
            with pytest.raises(InvalidArgument, match="share memory"):
                way(tensor)
        assert torch.equal(plain(tensor, None), tensor), "read it may be"
    assert checked[True] and (checked[False] or 1 in sizes or 0 in sizes)


def test_plain__copies_what_does_not_lie_as_it_reads() -> None:
    copies: Copies = []
    whole, sparse = torch.ones(3), torch.ones(3).to_sparse()
    assert plain([whole, [sparse], "word", 3], copies) == [whole, [sparse], "word", 3] and copies == []
    turned = torch.arange(6.0).view(2, 3).t()
    odd = torch.tensor([1 + 2j, 3 + 4j]).conj()
    runs = plain([[turned], odd, odd.imag], copies)
    assert [each.is_contiguous() for each in (runs[0][0], *runs[1:])] == [True] * 3
    assert not runs[1].is_conj() and not runs[2].is_neg()
    assert runs[0][0].tolist() == turned.tolist() and runs[1].tolist() == odd.tolist()
    assert [target.data_ptr() for target, _ in copies] == [each.data_ptr() for each in (turned, odd, odd.imag)]
