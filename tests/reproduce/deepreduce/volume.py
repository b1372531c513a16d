# SPDX-License-Identifier: Apache-2.0
"""D1, D2, D3, D10: how many bytes a sparse gradient takes (Tables 2 and 6, Figure 1). Containers are counted whole,
with header and checksum. What they hold depends on shapes and densities alone, so no training is needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tests.reproduce.study import Grid, Row, Study
from ultima.sparse import encode, fit, kernels, top_entries

# Of the paper's LSTM for next word prediction: 4,053,428 parameters. One-dimensional tensors are sent as they are.
MATRICES = ((10004, 96), (2680, 96), (2680, 670), (96, 670), (10004, 96))
VECTORS = (2680, 2680, 96, 10004)
RATIO = 0.1
NCF_DENSITY, NCF_ELEMENTS = 0.6, 3_183_257  # a tenth of the paper's model: the share does not depend on it


@dataclass(frozen=True)
class Codec:
    name: str
    paper: float | None
    expected: float
    """By arithmetic from shapes and densities."""
    options: dict[str, Any]


CODECS = (
    Codec("Top-r", 0.2033, 0.2031, {"index": "raw", "value": "raw"}),
    Codec("BF-P0", 0.1425, 0.1422, {"index": "bloom-p0", "value": "raw"}),
    Codec("Fit-Poly", 0.1039, 0.1037, {"index": "raw", "value": "fit-poly"}),
    Codec("BF-P0 and QSGD", 0.0621, 0.0610, {"index": "bloom-p0", "value": "qsgd"}),
    Codec("delta", None, 0.1283, {"index": "delta", "value": "raw"}),
    Codec("delta and QSGD", None, 0.0542, {"index": "delta", "value": "qsgd"}),
)


def share(options: dict[str, Any], seed: int = 1) -> float:
    """Bytes of the whole model's containers, to those of the dense gradient."""
    rng, used = np.random.default_rng(seed), 4 * sum(VECTORS)
    for shape in MATRICES:
        chosen = top_entries(rng.laplace(size=prod(shape)).astype(np.float32), RATIO)
        used += len(encode(chosen.indices, chosen.values, chosen.size, seed=seed, **options))
    return used / (4 * (sum(map(prod, MATRICES)) + sum(VECTORS)))


def ncf_share(seed: int = 1) -> float:
    """Of a gradient that is itself 40 % zeros: error rate 0.6, 7 bits, buckets of 512."""
    rng = np.random.default_rng(seed)
    indices = np.flatnonzero(rng.random(NCF_ELEMENTS) < NCF_DENSITY)
    packed = encode(indices, rng.laplace(size=indices.size), NCF_ELEMENTS, index="bloom-p0", value="qsgd",
                    bloom_error=0.6, qsgd_bits=7)  # fmt: skip
    return len(packed) / (4 * NCF_ELEMENTS)


def figure_1_bits() -> int:
    """Bits of payload of the tensor of Figure 1: a bitmap, and a line through the four values."""
    values = np.array([5.8, 5.2, 4.6, 4.0], np.float32)
    _, line = fit.poly_encode(values, segments=1, degree=1)
    return 8 * (line.size + kernels.bitmap_encode(np.array([1, 2, 4, 7], np.uint32), 8).size)


def judge(found: dict[str, float], ncf: float, bits: int) -> list[Row]:
    rows = []
    for codec in CODECS:
        ours, paper = found[codec.name], codec.paper
        criterion = f"within 3 % of {paper}" if paper else "reported; not in the paper"
        holds = abs(ours / paper - 1) <= 0.03 if paper else None
        rows.append(Row(f"D1: volume of {codec.name} at 10 %", str(paper or "-"), f"{ours:.4f}", criterion, holds))
    ratio = found["Top-r"] / found["BF-P0 and QSGD"]
    rows += [
        Row('D2: "320 % less data"', "3.2 times", f"{ratio:.2f} times", "at least 3.2 times", ratio >= 3.2),
        Row("D3: volume of NCF's gradients, BF-P0 and QSGD", "0.2063", f"{ncf:.4f}", "within 2 %",
            abs(ncf / 0.2063 - 1) <= 0.02),
        Row("D3: the same with SKCompress", "0.2175", "not built", "optional", None),
        Row("D10: payload of Figure 1's tensor", "72 bits", f"{bits} bits", "exact", bits == 72),
    ]  # fmt: skip
    return rows


def run() -> Study:
    study = Study(
        "volume",
        "D1, D2, D3, D10: bytes of containers (Tables 2 and 6, Figure 1)",
        "Gradients drawn from a Laplace distribution in the shapes of the paper's LSTM, the largest 10 % of each "
        "matrix in a container of its own, vectors dense. Containers are counted whole. Bloom filters have the default "
        "error rate, a tenth of the density; QSGD has 8 bits and buckets of 512. Delta coding is not in the paper's "
        "table; it is here because it is smaller than a Bloom filter.",
    )
    found = {codec.name: share(codec.options) for codec in CODECS}
    grid = Grid("Share of the dense gradient's bytes", ("codec", "paper", "by arithmetic", "here"))
    for codec in CODECS:
        row = (codec.name, str(codec.paper or "-"), f"{codec.expected:.4f}", f"{found[codec.name]:.4f}")
        grid.rows.append(row)
    study.grids.append(grid)
    study.rows = judge(found, ncf_share(), figure_1_bits())
    return study
