# SPDX-License-Identifier: Apache-2.0
"""Bloom filters as an index codec (DeepReduce, section 4), and the policies that say which members carry values.

A filter answers for every element of the tensor whether it may be an entry. It never misses one, but adds some
falsely: `entries + error * (size - entries)` members are expected.

    naive  values of the entries, given to the first members: wrong from the first false one on (it is the paper's
           counter-example, and off by default)
    p0     a value for every member: exact
    p1     as many members as entries, drawn at random
    p2     the same number, drawn from the smallest conflict sets first: a member that sets a bit alone is an entry
"""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from ultima.base.checks import check_number
from ultima.base.errors import InvalidArgument
from ultima.sparse import kernels
from ultima.sparse.container import refused
from ultima.sparse.draw import drawn
from ultima.sparse.kernels import Bytes, Indices

PARAMETERS = struct.Struct("<BI")  # hashes, bits
POLICIES = ("bloom-naive", "bloom-p0", "bloom-p1", "bloom-p2")
ERROR_MIN, ERROR_MAX = 2.0**-24, 1 - 2.0**-24


def shape(entries: int, error: float) -> tuple[int, int]:
    """Hashes and bits of a filter for `entries` that adds others with the probability `error`; (0, 0) for none."""
    if entries == 0:
        return 0, 0
    wanted = math.log2(1 / error)
    return max(1, math.ceil(wanted)), math.ceil(entries * wanted / math.log(2))


def default_error(entries: int, size: int) -> float:
    """A tenth of the density."""
    return max(ERROR_MIN, 0.1 * entries / size) if size else ERROR_MIN


def check_error(error: float) -> None:
    """Raises InvalidArgument for an error rate that no filter has."""
    check_number(error, "bloom_error", ERROR_MIN, ERROR_MAX)


def build(indices: Indices, error: float) -> tuple[bytes, Bytes]:
    """The parameters and the filter's bytes."""
    hashes, bits = shape(indices.size, error)
    if bits == 0:
        return PARAMETERS.pack(0, 0), np.empty(0, np.uint8)
    if bits >= 2**32:
        raise InvalidArgument("bloom_error", error, f"fewer than 2^32 bits for {indices.size} entries")
    return PARAMETERS.pack(hashes, bits), kernels.bloom_build(indices, bits, hashes)[: (bits + 7) // 8]


def members(policy: str, parameters: bytes, packed: Bytes, size: int, entries: int, seed: int) -> Indices:
    """The indices that carry values, as sender and receiver compute them alike. `parameters` may be hostile.

    Raises InvalidArgument naming "container" for parameters that do not fit the filter, or fewer members than entries.
    """
    if len(parameters) != PARAMETERS.size:
        raise refused(f"{len(parameters)} bytes of parameters", f"{PARAMETERS.size} of a Bloom filter")
    hashes, bits = PARAMETERS.unpack(parameters)
    if entries == 0 and (hashes, bits, packed.size) == (0, 0, 0):
        return np.empty(0, np.uint32)
    if not 1 <= hashes <= kernels.HASHES_MAX or bits == 0 or packed.size != (bits + 7) // 8 or entries == 0:
        raise refused(f"a filter of {packed.size} bytes for {bits} bits, {hashes} hashes, {entries} entries",
                      f"one byte for 8 bits, and 1 to {kernels.HASHES_MAX} hashes")  # fmt: skip
    whole = np.zeros((bits + 31) // 32 * 4, np.uint8)
    whole[: packed.size] = packed
    room = entries if policy == "bloom-naive" else size
    found, count = kernels.bloom_members(whole, bits, hashes, size, room)
    if count < entries:
        raise refused(f"a filter with {count} members", f"{entries} or more: every entry is one")
    if policy in ("bloom-naive", "bloom-p0"):
        return found
    if policy == "bloom-p1":
        return found[drawn(found, entries, seed)]
    return found[_chosen(found, bits, hashes, entries, seed)]


def _chosen(found: Indices, bits: int, hashes: int, entries: int, seed: int) -> npt.NDArray[np.bool_]:
    """Takes memory for 4 bytes per member and hash, and 12 per bit of the filter."""
    if found.size * hashes >= 2**32:
        raise refused(f"{found.size} members of {hashes} hashes", "fewer than 2^32 together for policy p2; use p0")
    return kernels.bloom_choose(found, bits, hashes, entries, seed)
