# SPDX-License-Identifier: Apache-2.0
"""The payload of a sparse allreduce, read by KINDS.md alone: a block of indices and values."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.dissector import quant

HEADER = struct.Struct("<BBHII")
FORMS = {0: ("float32", 4), 1: ("float16", 2), 2: ("bfloat16", 2), 3: ("float8", 1), 5: ("int8", 1)}


@dataclass(frozen=True)
class Block:
    """What one says: `who` has granules and a mask of hosts for each run; `units` maps an index, counted from the start
    of the chunk, to its values."""

    index: str
    form: str
    last: bool
    first: int
    granules: int
    who: list[tuple[int, int]]
    units: dict[int, list[float]]


def read(payload: bytes, units: int, group: int = 1) -> Block:
    """`units`: indices of the whole chunk. Raises ValueError or IndexError for what is no block of it."""
    kind, flags, entries, first, granules = HEADER.unpack_from(payload)
    each = -(-16 // group)
    covered = min(granules * each, units - first * each)
    form, size = FORMS[kind >> 4]
    at, scale = HEADER.size, 1.0
    if form == "float8":
        (scale,) = struct.unpack_from("<f", payload, at)
        at += 4
    who = []
    if flags & 2:
        (runs,) = struct.unpack_from("<H", payload, at)
        who = [struct.unpack_from("<HQ", payload, at + 2 + 10 * run) for run in range(runs)]
        at += 2 + 10 * runs
        if sum(run[0] for run in who) != granules:
            raise ValueError(f"runs {who} of {granules} granules")
    if kind & 15 == 0:
        names, after = list(range(covered)), at
    elif kind & 15 == 1:
        names, after = [i for i in range(covered) if _bit(payload[at:], i)], at + -(-covered // 8)
    else:
        low = flags >> 4
        high = at + -(-entries * low // 8)
        ones = [i for i in range(entries + (max(covered - 1, 0) >> low)) if entries and _bit(payload[high:], i)]
        lows = [sum(_bit(payload[at:], i * low + bit) << bit for bit in range(low)) for i in range(entries)]
        names = [(one - i) << low | lows[i] for i, one in enumerate(ones)]
        after = high + (-(-(entries + ((covered - 1) >> low)) // 8) if entries else 0)
    if kind & 15 and len(names) != entries:
        raise ValueError(f"{len(names)} indices of {entries} entries")
    if form == "int8":
        slot, n = payload[after:], len(names) * group
        values = [float(x) for x in quant.read(slot[: 2 + -(-n // 64) + n], n)] if n else []
    else:
        cut = (payload[after + i * size : after + (i + 1) * size] for i in range(len(names) * group))
        values = [_value(one, form) * scale for one in cut]
    told = {first * each + name: values[i * group : (i + 1) * group] for i, name in enumerate(names)}
    index = ("dense", "bitmap", "elias-fano")[kind & 15]
    return Block(index, form, bool(flags & 1), first, granules, who, told)


def _bit(data: bytes, at: int) -> int:
    return data[at // 8] >> at % 8 & 1


def _value(data: bytes, form: str) -> float:
    if form == "float32":
        return float(struct.unpack("<f", data)[0])
    if form == "float16":
        return float(struct.unpack("<e", data)[0])
    if form == "bfloat16":
        return float(struct.unpack("<f", b"\0\0" + data)[0])
    sign, exponent, fraction = data[0] >> 7, data[0] >> 3 & 15, data[0] & 7
    if data[0] & 0x7F == 0x7F:
        return float("nan")
    size = (8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0**-9
    return -size if sign else size
