# SPDX-License-Identifier: Apache-2.0
"""The allocator: no two blocks overlap, freed memory comes back whole, arrays outlive everything else."""

import gc
import os
import random
from pathlib import Path

import numpy as np
import pytest

from tests.seeds import seeds
from ultima.session.arena import ALIGNMENT, Arena, Block
from ultima.session.memory import SharedMap

PAGE = 4096


def make_arena(nbytes: int = 64 * PAGE) -> Arena:
    fd = os.memfd_create("test-arena")
    try:
        os.ftruncate(fd, nbytes)
        return Arena(SharedMap(fd, nbytes, writable=True))
    finally:
        os.close(fd)


def test_allocate__aligned_first_fit_and_exhausted() -> None:
    arena = make_arena(PAGE)
    first, second = arena.allocate(1), arena.allocate(100)
    assert first is not None and second is not None
    assert (first.offset, second.offset) == (0, ALIGNMENT)
    assert arena.allocate(PAGE) is None
    assert arena.free_bytes() == (PAGE - 3 * ALIGNMENT, PAGE - 3 * ALIGNMENT)
    del first
    third = arena.allocate(ALIGNMENT)
    assert third is not None and third.offset == 0, "the low pages are used again first"


def test_allocate__nothing_is_still_a_block() -> None:
    block = make_arena().allocate(0)
    assert block is not None and np.asarray(block).size == 0


def test_block__lives_as_long_as_any_view_of_it() -> None:
    arena = make_arena(PAGE)
    block = arena.allocate(PAGE)
    array = np.asarray(block).view(np.float32)
    del block
    tail = array[-1:]
    del array
    gc.collect()
    assert arena.allocate(1) is None, "a view still holds all of it"
    del tail
    assert arena.allocate(PAGE) is not None


def test_array__outlives_arena() -> None:
    arena = make_arena()
    array = np.asarray(arena.allocate(400)).view(np.float32)
    array[:] = 7
    del arena
    gc.collect()
    assert array.tolist() == [7.0] * 100
    array[:] = 8
    assert array.sum() == 800


def test_offset_of__only_what_lies_wholly_inside() -> None:
    arena = make_arena(PAGE)
    assert arena.offset_of(arena.address, PAGE) == 0
    assert arena.offset_of(arena.address + 8, PAGE - 8) == 8
    assert arena.offset_of(arena.address + 8, PAGE) is None
    assert arena.offset_of(arena.address - 8, 16) is None
    assert arena.offset_of(arena.address + PAGE, 1) is None


def test_touch__leaves_earlier_blocks_alone() -> None:
    arena = make_arena()
    first = arena.allocate(PAGE)
    assert first is not None
    arena.touch(first)
    np.asarray(first)[:] = 5
    arena.touch(first)
    second = arena.allocate(PAGE)
    assert second is not None
    arena.touch(second)
    assert np.asarray(first).min() == 5


def test_leave__what_is_held_stays_and_the_rest_goes(tmp_path: Path) -> None:
    """The daemon empties the file when the session has ended; arrays of the program are as before."""
    with (tmp_path / "memory").open("w+b") as file:
        file.truncate(4 * PAGE)
        arena = Arena(SharedMap(file.fileno(), 4 * PAGE, writable=True))
        blocks = [arena.allocate(PAGE) for _ in range(4)]
        arrays = [np.asarray(block) for block in blocks]
        for mark, array in enumerate(arrays, 1):
            array[:] = mark
        kept = [arrays[1], arrays[3]]
        del blocks, arrays, array
        arena.leave()
        file.seek(0)
        file.write(bytes(4 * PAGE))
        file.flush()
        assert [(int(array.min()), int(array.max())) for array in kept] == [(2, 2), (4, 4)]
        kept[0][:] = 7  # it is memory like any other
        assert file.seek(0) == 0 and file.read() == bytes(4 * PAGE)
        assert int(kept[0].sum()) == 7 * PAGE and int(kept[1].sum()) == 4 * PAGE


@pytest.mark.parametrize("seed", seeds(3))
def test_arena__random_use_against_a_model(seed: int) -> None:
    """Replay: put the seed that the name of the failed test shows into the list above."""
    rng = random.Random(seed)
    arena = make_arena()
    held: list[tuple[Block, int]] = []
    for step in range(2000):
        if held and rng.random() < 0.5:
            block, mark = held.pop(rng.randrange(len(held)))
            assert (np.asarray(block) == mark).all(), f"seed {seed} step {step}: somebody wrote into a live block"
            del block
        else:
            block_or_none = arena.allocate(rng.choice([1, 63, 64, 65, 1000, 5000, 30000]))
            if block_or_none is None:
                continue
            mark = step % 251
            np.asarray(block_or_none)[:] = mark
            held.append((block_or_none, mark))
            del block_or_none
    held.clear()
    assert arena.free_bytes() == (arena.nbytes, arena.nbytes), f"seed {seed}: the free extents did not join up again"
