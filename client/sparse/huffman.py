# SPDX-License-Identifier: Apache-2.0
"""A static Huffman code over the four bytes of 32-bit indices, built from all indices of a tensor, so that both ends
have it without sending a table.

Every byte that occurs does so at least once in about 1,024 bytes (the lowest byte alone makes sure of it), so no code
is longer than 15 bits.
"""

from __future__ import annotations

import heapq
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ultima.sparse import kernels
from ultima.sparse.kernels import Indices

BITS_MAX = 15


def byte_counts(size: int) -> list[int]:
    """How often each byte value occurs in the little-endian u32 indices 0 to size - 1."""
    counts = [0] * 256
    for position in range(4):
        step = 256**position  # how many indices in a row have the same byte here
        whole, rest = divmod(size, 256 * step)
        for byte in range(256):
            counts[byte] += whole * step + min(max(rest - byte * step, 0), step)
    return counts


def code_lengths(counts: list[int]) -> list[int]:
    """Bits of each symbol's Huffman code, 0 for what does not occur. Ties fall to the lower symbol; one symbol alone
    takes a bit."""
    heap: list[tuple[int, int, tuple[int, ...]]]
    heap = [(count, symbol, (symbol,)) for symbol, count in enumerate(counts) if count]
    lengths = [0] * len(counts)
    if len(heap) == 1:
        lengths[heap[0][1]] = 1
        return lengths
    heapq.heapify(heap)
    while len(heap) > 1:
        (a, first, some), (b, _, others) = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in some + others:
            lengths[symbol] += 1
        heapq.heappush(heap, (a + b, first, some + others))
    return lengths


def canonical(lengths: list[int]) -> dict[int, tuple[int, int]]:
    """Symbol -> (length, code): shorter codes first, equal ones by symbol, each one above the one before."""
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length):
        code <<= length - before
        codes[symbol] = (length, code)
        code, before = code + 1, length
    return codes


@lru_cache(maxsize=16)
def _codes(size: int) -> Indices:
    """The code of tensors of `size` elements, as the encoder takes it."""
    table = np.zeros(256, np.uint32)
    for symbol, (length, code) in canonical(code_lengths(byte_counts(size))).items():
        table[symbol] = length << 16 | code
    return table


@lru_cache(maxsize=16)
def _table(size: int) -> npt.NDArray[np.uint16]:
    """What the next bits mean, as the decoder takes it."""
    codes = _codes(size)
    bits = int(codes.max() >> 16)
    table = np.zeros(1 << bits, np.uint16)
    for symbol, entry in enumerate(codes.tolist()):
        length, first = entry >> 16, (entry & 0xFFFF) << (bits - (entry >> 16))
        if length:
            table[first : first + (1 << (bits - length))] = length << 8 | symbol
    return table


def encode(indices: Indices, size: int) -> kernels.Bytes:
    """Indices below `size`, in any order."""
    return kernels.prefix_encode(indices.view(np.uint8), _codes(size))


def decode(data: kernels.Bytes, count: int, size: int) -> Indices | None:
    """`count` indices, in the order that they were given in and not checked; None for what no encoder writes."""
    if size == 0:
        return np.empty(0, np.uint32) if data.size == 0 else None
    found = kernels.prefix_decode(data, 4 * count, _table(size))
    return None if found is None else found.view(np.uint32)
