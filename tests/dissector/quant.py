# SPDX-License-Identifier: Apache-2.0
"""The payload of a quantised allreduce, read and written by KINDS.md alone: a slot of codes and scales."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

FORMS = {4: ("int16", 32767, 64, 3840), 5: ("int8", 127, 64, 3968), 6: ("int4", 7, 32, 4034)}
FORM = {row[0]: (number, *row[1:]) for number, row in FORMS.items()}
MASK = 2**64 - 1

Floats = npt.NDArray[np.float32]


def code_bytes(form: str, n: int) -> int:
    return {"int16": 2 * n, "int8": n, "int4": -(-n // 2)}[form]


def elements(form: str, payload: int) -> int:
    """K: the most of one slot, in eights."""
    block = FORM[form][2]
    fits = (k for k in range(0, 2 * payload, 8) if 2 + -(-k // block) + code_bytes(form, k) <= payload)
    return max(fits)


def read(slot: bytes, n: int) -> Floats:
    """The elements of a slot of `n`. Raises ValueError for what is none."""
    name, levels, block, _ = FORMS.get(slot[0] & 15, ("", 0, 1, 0))
    blocks = -(-n // block)
    end = 2 + blocks + (code_bytes(name, n) if name else 0)
    if not name or slot[0] & 0x70 or slot[1] > 239 or len(slot) < end or any(slot[end:]):
        raise ValueError(slot[:2].hex())
    scales = np.frombuffer(slot, np.uint8, blocks, 2).astype(np.uint32)
    values = np.where(scales == 0, 0, (scales + 16 * slot[1]) << 19).astype(np.uint32).view(np.float32)
    raw = np.frombuffer(slot, np.uint8)[2 + blocks : end]
    if name == "int4":
        codes = np.stack([raw & 15, raw >> 4], 1).reshape(-1)[:n].astype(np.int32)
        codes = np.where(codes > 7, codes - 16, codes)
    else:
        codes = raw.view("<i2" if name == "int16" else np.int8).astype(np.int32)
    ret = codes.astype(np.float32) * values[np.arange(n) // block]
    return np.where((codes == -levels - 1) & bool(slot[0] & 0x80), np.float32(np.nan), ret).astype(np.float32)


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def key(op_seq: int, stage: int, host: int, chunk: int, slot: int) -> int:
    return mix(mix(op_seq + 0x7175616E74 & MASK) ^ (stage << 62 | host << 56 | chunk << 48 | slot))


def draws(of: int, n: int) -> Floats:
    """d of the elements of a slot, each between -1/2 and 1/2."""
    i = np.arange(n, dtype=np.uint32)
    with np.errstate(over="ignore"):
        z = np.uint32(of & 0xFFFFFFFF) + (i // 32 * 16 + i % 16 + 1).astype(np.uint32) * np.uint32(0x9E3779B9)
        z = (z ^ z >> np.uint32(16)) * np.uint32(0x7FEB352D)
        z ^= np.uint32(of >> 32)
        z = (z ^ z >> np.uint32(15)) * np.uint32(0x846CA68B)
    z ^= z >> np.uint32(16)
    r = np.where(i % 32 < 16, z & np.uint32(0xFFFF), z >> np.uint32(16))
    return ((r.astype(np.float32) - np.float32(32767.5)) / np.float32(65536)).astype(np.float32)


def write(form: str, values: Floats, of: int | None = None, divisor: int = 1) -> bytes:
    """A slot of `values`, rounded to the nearest, or by the key `of` at random."""
    number, levels, block, most = FORM[form]
    y = values.astype(np.float32) / np.float32(divisor)
    finite = np.isfinite(y)
    bounds = [*range(0, len(y), block), len(y)]
    w = []
    for a, b in pairwise(bounds):
        m = np.max(np.abs(np.where(finite[a:b], y[a:b], 0)), initial=np.float32(0)).astype(np.float32)
        up = (int((m / np.float32(levels)).astype(np.float32).view(np.uint32)) + 0x7FFFF) >> 19
        w.append(min(up, most) if m >= 2.0**-100 else 0)
    exponent = max(0, -(-(max(w, default=0) - 255) // 16))
    u = [max(x - 16 * exponent, 1) if x else 0 for x in w]
    codes = np.full(len(y), -levels - 1, np.int32)
    dither = np.zeros(len(y), np.float32) if of is None else draws(of, len(y))
    for at, (a, b) in enumerate(pairwise(bounds)):
        scale = np.uint32((u[at] + 16 * exponent) << 19).view(np.float32)
        inverse = np.float32(1) / scale if u[at] else np.float32(0)
        t = np.rint(np.where(finite[a:b], y[a:b], 0) * inverse + dither[a:b] * bool(u[at]))
        codes[a:b] = np.where(finite[a:b], np.clip(t, -levels, levels), -levels - 1)
    head = bytes([number | (0 if finite.all() else 0x80), exponent, *u])
    if form != "int4":
        return head + codes.astype("<i2" if form == "int16" else np.int8).tobytes()
    nibbles = np.append(codes & 15, np.zeros(len(codes) % 2, np.int32)).astype(np.uint8)
    return head + (nibbles[::2] | nibbles[1::2] << 4).tobytes()
