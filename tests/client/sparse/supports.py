# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors of every kind for the tests of containers, and containers whose checksum is right again."""

import zlib

import numpy as np

from ultima.sparse import Sparse
from ultima.sparse.container import _CRC

DENSITIES = (0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0)


def random_sparse(rng: np.random.Generator, size: int, density: float) -> Sparse:
    """Any support: with runs, gaps, the first and the last element, or nothing at all."""
    held = rng.random(size) < density
    if size and density and rng.random() < 0.3:
        held[: rng.integers(size)] = rng.random() < 0.5
    indices = np.flatnonzero(held).astype(np.uint32)
    return Sparse(indices, rng.laplace(scale=1e-3, size=indices.size).astype(np.float32), size)


def resealed(data: bytes) -> bytes:
    """With the checksum of what stands there now: a stranger can compute one, too."""
    body = data[: -_CRC.size]
    return body + _CRC.pack(zlib.crc32(body))
