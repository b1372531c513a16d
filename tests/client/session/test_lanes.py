# SPDX-License-Identifier: Apache-2.0
"""Which lanes an op uses, and which ops are split: by what all ranks know alike, and nothing else."""

import numpy as np
import pytest

from ultima.base.words import COLLECTIVES, DTYPE_BY_CODE, RING_ENTRIES
from ultima.session.lanes import BURST_BYTES, PORTION_BYTES, Lanes
from ultima.session.op import Layout, Op


def op_of(nbytes: int, collective: str = "allreduce") -> Op:
    array = np.zeros(nbytes // 4, np.float32)
    return Op(array, array, array, DTYPE_BY_CODE[1], 1, 1, 0, 0, layout=Layout(COLLECTIVES[collective], nbytes))


def test_portions_of__large_dense_allreduces() -> None:
    lanes = Lanes(2, 2, 4)
    assert lanes.portions_of(op_of(2 * PORTION_BYTES)) == 2
    assert lanes.portions_of(op_of(2 * PORTION_BYTES - 4)) == 1
    assert lanes.portions_of(op_of(2 * PORTION_BYTES, "all_gather")) == 1
    assert Lanes(2, 1, 4).portions_of(op_of(64 * PORTION_BYTES)) == 1
    many = Lanes(4, 4, 64)
    assert many.portions_of(op_of(4 * 64 * BURST_BYTES)) == 4
    assert many.portions_of(op_of(4 * 64 * BURST_BYTES - 4)) == 1


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_lanes__room_in_all_that_an_op_uses(lanes: int) -> None:
    counts = Lanes(lanes, lanes, 2)
    small = op_of(4)
    small.seq = lanes - 1
    for _ in range(RING_ENTRIES):
        assert counts.have_room(small)
        counts.submitted(small)
    assert not counts.have_room(small)
    large = op_of(lanes * PORTION_BYTES)
    large.portions, large.seq = lanes, 10 * lanes
    assert list(counts.of(large)) == list(range(lanes)) and not counts.have_room(large)
    counts.ended(small)
    assert counts.have_room(large)
    counts.submitted(large)
    assert not counts.have_room(small) and not counts.have_room(large)
    counts.ended(large)
    assert counts.have_room(small)
