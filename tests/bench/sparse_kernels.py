# SPDX-License-Identifier: Apache-2.0
"""The kernels of sparse tensors against copying the same memory: `python -m tests.bench.sparse_kernels`, half a minute.

CPU time of one core, the least of several runs, each pair in turn; ratios carry over to other machines, rates do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ultima.base.native import lib
from ultima.sparse import bloom, decode, encode, kernels, top_entries

ELEMENTS = 25_000_000 // 4
RUNS = 9
ISAS = ("plain", "avx2", "avx512")


def least(call: Callable[[], object], prepare: Callable[[], object] = lambda: None, runs: int = RUNS) -> float:
    """CPU seconds of |call|, without those of |prepare|."""
    found = []
    for _ in range(runs):
        prepare()
        begun = time.process_time()
        call()
        found.append(time.process_time() - begun)
    return min(found)


def selection(gradient: kernels.Floats) -> None:
    kept, velocity, copy = (np.zeros(ELEMENTS, np.float32) for _ in range(3))
    copied = least(lambda: np.copyto(copy, gradient))

    def clear() -> None:
        kept[:] = 0
        velocity[:] = 0

    for ratio in (0.001, 0.01, 0.1):
        count = int(ratio * ELEMENTS)
        above, _ = kernels.kth_largest(gradient, count)
        room = count + 16
        into = np.zeros(room, np.uint32), np.zeros(room, np.float32)

        def fused(room: int = room, above: int = above, into: Any = into) -> None:
            kernels.keep(kept, gradient, above, 0, room, into=into)

        def moving(room: int = room, above: int = above, into: Any = into) -> None:
            kernels.keep(kept, gradient, above, 0, room, velocity=velocity, momentum=0.9, into=into)

        plain, momentum = least(fused, clear) / copied, least(moving, clear) / copied
        print(f"  add, select and keep at {ratio:.1%}: {plain:.2f} memcpy; with momentum {momentum:.2f}")
    exact = least(lambda: kernels.kth_largest(gradient, ELEMENTS // 100), runs=3)
    print(f"  exact threshold: {4 * ELEMENTS / exact / 1e9:.2f} GB/s")


def codecs(gradient: kernels.Floats) -> None:
    chosen, out = top_entries(gradient, 0.01), np.zeros(ELEMENTS, np.float32)
    count = chosen.indices.size
    for index in ("bitmap", "rle", "huffman", "delta", "bloom-p0", "bloom-p2"):
        packed = encode(chosen.indices, chosen.values, ELEMENTS, index=index)
        pack = least(lambda index=index: encode(chosen.indices, chosen.values, ELEMENTS, index=index), runs=3)
        back = least(lambda packed=packed: decode(packed, ELEMENTS), runs=3)
        print(f"  {index}, whole containers at 1 %: encode {8 * count / pack / 1e9:.3f} GB/s of entries, "
              f"decode {4 * ELEMENTS / back / 1e9:.1f} GB/s dense")  # fmt: skip
    added = least(lambda: kernels.scatter_add(out, chosen.indices, chosen.values))
    print(f"  scatter-add: {count / added / 1e6:.0f} M values/s")


def by_instructions(gradient: kernels.Floats) -> None:
    chosen = top_entries(gradient, 0.01)
    parameters, packed = bloom.build(chosen.indices, 0.001)
    for isa, name in enumerate(ISAS):
        if lib.ut_kernels_init(isa) != isa:
            continue
        asked = least(lambda: bloom.members("bloom-p0", parameters, packed, ELEMENTS, chosen.indices.size, 0), runs=2)
        coded = least(lambda: kernels.qsgd_encode(gradient, 512, 8, 1), runs=2)
        print(
            f"  {name}: Bloom {ELEMENTS / asked / 1e6:.0f} M elements/s, QSGD {ELEMENTS / coded / 1e6:.0f} M values/s"
        )


if __name__ == "__main__":
    values = np.random.default_rng(0).laplace(size=ELEMENTS).astype(np.float32)
    print(f"{ELEMENTS} elements, Laplace")
    selection(values)
    codecs(values)
    by_instructions(values)
