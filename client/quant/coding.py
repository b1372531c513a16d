# SPDX-License-Identifier: Apache-2.0
"""Quantised slots over numpy arrays: `transport_c/kernels/quant.h` says what is in them, and what draws follow from.

A slot is what one packet carries. A chunk is the part of a tensor that one host sums: slots of equal size, the last one
may be shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ultima.base.checks import check_whole_between
from ultima.base.errors import InvalidArgument
from ultima.base.native import ffi, lib

Floats = npt.NDArray[np.float32]

FORMS = ("int16", "int8", "int4")
"""The forms in which a tensor can travel, finest first."""
PAYLOAD = 1440
"""Bytes of a full packet's payload at the usual MTU of 1500; sealed packets have 16 less."""
HEADERS = 74
"""Bytes around a payload: 32 of Ultima's header, 8 of UDP, 20 of IPv4, 14 of Ethernet."""

_CODES = {"int16": 4, "int8": 5, "int4": 6}
_DENSE = "float32"
_PAYLOAD_LEAST, _PAYLOAD_MOST = 64, 9216
_HOSTS_MOST = 64
_WHOLE_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Draws:
    """What rounding at random follows from: numbers that are on the wire, so that anybody can foretell each bit.

    op_seq: the op's number in the job, as in `Receipt.op_seq`.
    host: the number of the host that encodes.
    chunk: number of the chunk; with N hosts, element i of E is in chunk i * N // E or next to it.
    answer: whether it is the answer of a chunk's owner, and not a contribution.
    """

    op_seq: int
    host: int = 0
    chunk: int = 0
    answer: bool = False

    def __post_init__(self) -> None:
        check_whole_between(self.op_seq, "op_seq", 0, _WHOLE_MOST)
        check_whole_between(self.host, "host", 0, _HOSTS_MOST - 1)
        check_whole_between(self.chunk, "chunk", 0, 255)

    def key(self, slot: int) -> int:
        """The key of slot `slot` of the chunk."""
        return lib.ut_quant_key(self.op_seq, int(self.answer), self.host, self.chunk, slot)


def slot_elements(wire: str, payload: int = PAYLOAD) -> int:
    """The elements of a full slot of `payload` bytes in the form `wire`. Raises InvalidArgument."""
    check_whole_between(payload, "payload", _PAYLOAD_LEAST, _PAYLOAD_MOST)
    return lib.ut_quant_elements(code_of(wire), payload)


def encode(
    values: Any, wire: str, key: int | None = None, *, residual: Floats | None = None, divisor: int = 1
) -> bytes:
    """One slot: `values` / `divisor` + `residual`, rounded to nearest, or at random by `key`.

    values: float32 of any shape, at most 18432 elements: an array, or what numpy makes one without a copy.
    wire: one of FORMS.
    residual: as many elements, contiguous; what rounding takes is left in it. An element that is not finite travels as
        NaN, and its residual stays as it was.

    Raises InvalidArgument.
    """
    code, flat = code_of(wire), floats_of(values, "values")
    if flat.size > lib.UT_QUANT_ELEMENTS_MAX:
        raise InvalidArgument("values", f"{flat.size} elements", f"at most {lib.UT_QUANT_ELEMENTS_MAX} in one slot")
    check_whole_between(divisor, "divisor", 1, 2**24)
    if key is not None:
        check_whole_between(key, "key", 0, 2**64 - 1)
    kept = ffi.NULL
    if residual is not None:
        if floats_of(residual, "residual").size != flat.size:
            raise InvalidArgument("residual", f"{residual.size} elements", f"{flat.size}, as values")
        if not residual.flags.c_contiguous or not residual.flags.writeable:
            raise InvalidArgument(
                "residual", "an array that is not contiguous, or cannot be written to", "one that can"
            )
        kept = ffi.from_buffer("float[]", residual, require_writable=True)
    rounding = ffi.new("ut_quant_rounding *", {"key": key or 0, "nearest": key is None, "divisor": float(divisor)})
    slot = bytearray(lib.ut_quant_bytes(code, flat.size))
    out, x = ffi.from_buffer("uint8_t[]", slot), ffi.from_buffer("float[]", flat)
    lib.ut_quant_encode(code, out, x, kept, flat.size, rounding, ffi.NULL)
    return bytes(slot)


def decode(data: bytes | bytearray | memoryview, size: int, wire: str) -> Floats:
    """The `size` elements of `data`, a slot of the form `wire`. Zeros may follow it.

    Raises InvalidArgument for bytes that are no such slot.
    """
    code = code_of(wire)
    check_whole_between(size, "size", 0, lib.UT_QUANT_ELEMENTS_MAX)
    slot, out = ffi.from_buffer("uint8_t[]", data), np.empty(size, np.float32)
    if not lib.ut_quant_takes(code, slot, len(slot), size):
        raise InvalidArgument("data", f"{len(slot)} bytes that are no slot", f"a slot of {size} elements of {wire}")
    lib.ut_quant_decode(code, ffi.from_buffer("float[]", out), slot, size)
    return out


def rounded(
    values: Any, wire: str, draws: Draws | None = None, *, residual: Floats | None = None, payload: int = PAYLOAD
) -> Floats:
    """What arrives of a chunk that travels as `wire`: float32 of the shape of `values`.

    draws: None rounds to nearest, as contributions are with a feedback; else at random, as they are without one.
    residual: as for `encode`.
    payload: bytes of a full slot. Elements that share a packet also share a range of scales, 2^15 wide.

    Raises InvalidArgument.
    """
    each, flat = slot_elements(wire, payload), floats_of(values, "values")
    if residual is not None and (residual.dtype != np.float32 or residual.shape != np.shape(values)):
        raise InvalidArgument(
            "residual", f"{residual.dtype} of shape {residual.shape}", "float32 of the shape of values"
        )
    if residual is not None and not residual.flags.c_contiguous:
        raise InvalidArgument("residual", "an array that is not contiguous", "one that is")
    kept = None if residual is None else residual.reshape(-1)
    out = np.empty(flat.size, np.float32)
    for slot, at in enumerate(range(0, flat.size, each)):
        part = slice(at, min(at + each, flat.size))
        key = None if draws is None else draws.key(slot)
        data = encode(flat[part], wire, key, residual=None if kept is None else kept[part])
        out[part] = decode(data, part.stop - part.start, wire)
    return out.reshape(np.shape(values))


def encoded_bytes(size: int, wire: str = _DENSE, *, hosts: int = 2, payload: int = PAYLOAD) -> int:
    """The payload bytes of `size` float32 elements that travel as `wire`, in chunks for so many hosts.

    Raises InvalidArgument, as `wire_bytes`.
    """
    return sum(_chunk_bytes(chunk, wire, payload, 0) for chunk in _chunks(size, hosts))


def wire_bytes(
    size: int,
    wire: str = _DENSE,
    answer: str | None = None,
    *,
    hosts: int = 2,
    payload: int = PAYLOAD,
    headers: int = HEADERS,
) -> int:
    """The bytes that a host sends in one allreduce of `size` float32 elements in which nothing is lost; of hosts that
    differ the most.

    wire, answer: the forms of contributions and of answers, "float32" among them; None for `answer`: as `wire`.
    hosts: 1 to 64.
    payload: bytes of a full packet's payload.
    headers: bytes around each payload: 74 of Ultima, UDP, IPv4 and Ethernet together; 0 counts payloads alone.

    Raises InvalidArgument.
    """
    chunks = _chunks(size, hosts)
    check_whole_between(payload, "payload", _PAYLOAD_LEAST, _PAYLOAD_MOST)
    check_whole_between(headers, "headers", 0, 2**16)
    given = [_chunk_bytes(chunk, wire, payload, headers) for chunk in chunks]
    told = [_chunk_bytes(chunk, answer or wire, payload, headers) for chunk in chunks]
    return max(sum(given) - given[host] + (hosts - 1) * told[host] for host in range(hosts))


def code_of(wire: str, name: str = "wire") -> int:
    """The number of a form on the wire. Raises InvalidArgument."""
    if wire not in _CODES:
        raise InvalidArgument(name, wire, ", ".join(FORMS))
    return _CODES[wire]


def floats_of(values: Any, name: str) -> Floats:
    """`values` as one contiguous dimension. Raises InvalidArgument for all but float32."""
    found = np.asarray(values)
    if found.dtype != np.float32:
        raise InvalidArgument(name, f"elements of {found.dtype}", "float32")
    return np.ascontiguousarray(found).reshape(-1)


def _chunks(size: int, hosts: int) -> list[int]:
    check_whole_between(size, "size", 0, 2**40)
    check_whole_between(hosts, "hosts", 1, _HOSTS_MOST)
    return [end - begin for begin, end in pairwise(chunk * size // hosts for chunk in range(hosts + 1))]


def _chunk_bytes(elements: int, wire: str, payload: int, headers: int) -> int:
    """Full slots are padded to the payload; the last one is not."""
    if not elements:
        return 0
    each = payload // 4 if wire == _DENSE else slot_elements(wire, payload)
    full = (elements - 1) // each
    left = elements - full * each
    last = 4 * left if wire == _DENSE else lib.ut_quant_bytes(code_of(wire), left)
    return full * (payload + headers) + last + headers
