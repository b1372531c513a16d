# SPDX-License-Identifier: Apache-2.0
"""The C kernels of sparse tensors (`transport_c/kernels/sparse.h`) over numpy arrays: one short function each.

Arrays are C-contiguous and one-dimensional: Floats are float32, Indices uint32, Bytes uint8. Callers see to that, and
check what they did not make themselves: these functions do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ultima.base.native import ffi, lib

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

HASHES_MAX: int = lib.UT_BLOOM_HASHES_MAX
NOTHING_ABOVE = 2**32 - 1
_NARROWING = ((20, 11), (9, 11), (0, 9))  # shift and bits of ut_magnitudes: three steps through the 31 bits


def _at(array: npt.NDArray[Any], kind: str, writable: bool = False) -> Any:
    return ffi.from_buffer(f"{kind}[]", array, require_writable=writable)


def _u32(array: Indices, writable: bool = False) -> Any:
    return _at(array, "uint32_t", writable)


def _u8(array: Bytes, writable: bool = False) -> Any:
    return _at(array, "uint8_t", writable)


def _f32(array: Floats, writable: bool = False) -> Any:
    return _at(array, "float", writable)


# Choosing what is sent


def magnitude_bits(value: float) -> int:
    """A float32's bits without the sign: the order of magnitudes as whole numbers, NaN above all."""
    return int(np.float32(value).view(np.uint32)) & 0x7FFFFFFF


def kth_largest(p: Floats, k: int) -> tuple[int, int]:
    """The magnitude (in bits) of the `k`-th largest of `p`, 1 <= k <= p.size, and how many of those that equal it
    belong to the `k` largest.
    """
    prefix, left = 0, k
    for shift, bits in _NARROWING:
        counts = np.zeros(1 << bits, np.uint64)
        lib.ut_magnitudes(_f32(p), p.size, prefix, shift, bits, _at(counts, "uint64_t", True))
        at_least = np.cumsum(counts[::-1])
        step = int(np.searchsorted(at_least, left))
        left -= int(at_least[step - 1]) if step else 0
        prefix = prefix << bits | (counts.size - 1 - step)
    return prefix, left


def keep(
    kept: Floats,
    add: Floats | None,
    above: int,
    ties: int,
    room: int,
    *,
    velocity: Floats | None = None,
    momentum: float = 0.0,
    into: tuple[Indices, Floats] | None = None,
) -> tuple[Indices, Floats]:
    """Adds `add` to `kept` and takes out what has a magnitude (in bits) above `above`, and the first `ties` that equal
    it; at most `room` entries, which are written to `into` (of `room` elements) or to new arrays. With `velocity` by
    momentum correction. See ut_keep and ut_keep_momentum.
    """
    indices, values = into or (np.empty(room, np.uint32), np.empty(room, np.float32))
    selection = ffi.new("ut_selection *")
    selection.above, selection.ties, selection.room = above, ties, room
    held = _u32(indices, True), _f32(values, True)
    selection.indices, selection.values = held
    given = ffi.NULL if add is None else _f32(add)
    if velocity is None:
        taken = lib.ut_keep(_f32(kept, True), given, kept.size, selection)
    else:
        taken = lib.ut_keep_momentum(_f32(kept, True), _f32(velocity, True), given, momentum, kept.size, selection)
    return indices[:taken], values[:taken]


def scatter_add(out: Floats, indices: Indices, values: Floats) -> int:
    """out[indices[i]] += values[i], up to the first index outside of `out`; returns how many were added."""
    return lib.ut_scatter_add(_f32(out, True), out.size, _u32(indices), _f32(values), indices.size)


# Indices


def first_bad(indices: Indices, size: int) -> int:
    """The first place that is not above the one before it, or not below `size`; indices.size if there is none."""
    return lib.ut_ascending(_u32(indices), indices.size, size)


def bitmap_encode(indices: Indices, size: int) -> Bytes:
    out = np.zeros((size + 7) // 8, np.uint8)
    lib.ut_bitmap_encode(_u8(out, True), _u32(indices), indices.size)
    return out


def bitmap_decode(data: Bytes, count: int, size: int) -> Indices | None:
    """`count` indices below `size`; None if that is not what the (size + 7) // 8 bytes of `data` hold."""
    out = np.empty(count, np.uint32)
    return None if lib.ut_bitmap_decode(_u32(out, True), count, size, _u8(data)) else out


def gaps_encode(indices: Indices) -> Bytes:
    out = np.empty(5 * indices.size, np.uint8)
    return out[: lib.ut_gaps_encode(_u8(out, True), _u32(indices), indices.size)]


def gaps_decode(data: Bytes, count: int, size: int) -> Indices | None:
    out = np.empty(count, np.uint32)
    return None if lib.ut_gaps_decode(_u32(out, True), count, size, _u8(data), data.size) else out


def runs_encode(indices: Indices, size: int) -> Bytes:
    out = np.empty(10 * indices.size + 11, np.uint8)
    return out[: lib.ut_runs_encode(_u8(out, True), _u32(indices), indices.size, size)]


def runs_decode(data: Bytes, count: int, size: int) -> Indices | None:
    out = np.empty(count, np.uint32)
    return None if lib.ut_runs_decode(_u32(out, True), count, size, _u8(data), data.size) else out


def bits_pack(values: Indices, width: int) -> Bytes:
    """Numbers below 2^width as `width` bits each, lowest bit first."""
    out = np.empty((values.size * width + 7) // 8, np.uint8)
    lib.ut_bits_pack(_u8(out, True), _u32(values), values.size, width)
    return out


def bits_unpack(data: Bytes, count: int, width: int) -> Indices:
    """`data` has (count * width + 7) // 8 bytes."""
    out = np.empty(count, np.uint32)
    lib.ut_bits_unpack(_u32(out, True), count, width, _u8(data))
    return out


def prefix_encode(data: Bytes, codes: Indices) -> Bytes:
    """`codes`: of each byte its length above 16 bits of code; every byte of `data` has one."""
    out = np.empty(2 * data.size + 8, np.uint8)
    return out[: lib.ut_prefix_encode(_u8(out, True), _u32(codes), _u8(data), data.size)]


def prefix_decode(data: Bytes, count: int, table: npt.NDArray[np.uint16]) -> Bytes | None:
    """`count` bytes, or None. `table` has 2^bits entries."""
    out = np.empty(count, np.uint8)
    bits = table.size.bit_length() - 1
    error = lib.ut_prefix_decode(_u8(out, True), count, _at(table, "uint16_t"), bits, _u8(data), data.size)
    return None if error else out


# Bloom filters


def murmur3(x: int, seed: int) -> int:
    return lib.ut_murmur3(x, seed)


def bloom_build(indices: Indices, bits: int, hashes: int) -> Bytes:
    """A filter of `bits` bits, in whole words of four bytes."""
    out = np.zeros((bits + 31) // 32 * 4, np.uint8)
    lib.ut_bloom_insert(_u8(out, True), bits, hashes, _u32(indices), indices.size)
    return out


def bloom_members(filter_: Bytes, bits: int, hashes: int, size: int, room: int) -> tuple[Indices, int]:
    """The first `room` numbers below `size` that the filter may hold, ascending, and how many there are in all."""
    out = np.empty(min(room, size), np.uint32)
    count = lib.ut_bloom_members(_u8(filter_), bits, hashes, size, _u32(out, True), out.size)
    return out[: min(count, out.size)], count


def bloom_choose(members: Indices, bits: int, hashes: int, count: int, seed: int) -> npt.NDArray[np.bool_]:
    """Policy P2's choice of `count` of `members`, as a mask."""
    scratch = np.empty(lib.ut_bloom_choose_words(members.size, bits, hashes), np.uint32)
    out = np.empty(members.size, np.uint8)
    lib.ut_bloom_choose(_u8(out, True), _u32(members), members.size, bits, hashes, count, seed, _u32(scratch, True))
    return out.astype(np.bool_)


# QSGD


def qsgd_encode(values: Floats, bucket: int, bits: int, seed: int) -> tuple[Floats, Indices]:
    """The norms of the buckets, and a code of `bits` bits for each value."""
    norms, codes = np.empty(-(-values.size // bucket), np.float32), np.empty(values.size, np.uint32)
    lib.ut_qsgd_encode(_f32(norms, True), _u32(codes, True), _f32(values), values.size, bucket, bits, seed)
    return norms, codes


def qsgd_decode(norms: Floats, codes: Indices, bucket: int, bits: int) -> Floats:
    out = np.empty(codes.size, np.float32)
    lib.ut_qsgd_decode(_f32(out, True), _f32(norms), _u32(codes), codes.size, bucket, bits)
    return out
