# SPDX-License-Identifier: Apache-2.0
"""Which tensors Ultima takes, and what it is given of them."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ultima.torch.backend.elements import dense, memory_of, op_named, pieces, reducible

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
