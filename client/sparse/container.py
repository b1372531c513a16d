# SPDX-License-Identifier: Apache-2.0
"""The container: a header, the parameters of the two codecs, packed indices, packed values and the reorder map, and a
checksum. All numbers are little-endian.

    bytes  field
    2      magic "DR"
    1      version, 1
    1      index codec        `INDEX_CODECS`
    1      value codec        `VALUE_CODECS`
    1      flags              1 reordered, 2 values from the dense tensor, 4 scaled; others 0
    4      size               elements of the tensor ("d" in the DeepReduce paper)
    4      entries            of the sparse tensor ("r"), 0 to size
    4      values             that travel ("nvals"): more than entries for Bloom filters with policy P0
    4      seed               of what both ends draw alike
    2      bytes of the parameters
    4      bytes of the packed indices
    4      bytes of the packed values
    4      bytes of the reorder map
    ...    those four parts, one behind the other
    4      CRC-32 (zlib's) of all that stands before

Parameters stand apart from the payload, so that the payload is what the paper counts.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ultima.base.errors import InvalidArgument
from ultima.sparse.kernels import Bytes

REORDERED, FROM_DENSE, SCALED = 1, 2, 4  # flags
INDEX_CODECS = {
    "raw": 0,
    "bitmap": 1,
    "rle": 2,
    "huffman": 3,
    "delta": 4,
    "bloom-naive": 5,
    "bloom-p0": 6,
    "bloom-p1": 7,
    "bloom-p2": 8,
}
"""How indices are packed: name -> number in a container. `docs/sparse.md` compares them."""
VALUE_CODECS = {"raw": 0, "deflate": 1, "qsgd": 2, "fit-poly": 3, "fit-dexp": 4}
"""How values are packed: name -> number in a container."""
INDEX_NAMES = {code: name for name, code in INDEX_CODECS.items()}
VALUE_NAMES = {code: name for name, code in VALUE_CODECS.items()}

VERSION = 1
SIZE_MAX = 2**32 - 1
_HEADER = struct.Struct("<2sBBBB4IH3I")
_CRC = struct.Struct("<I")
OVERHEAD = _HEADER.size + _CRC.size
"""Bytes of a container that are neither parameters nor payload."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container, taken apart. Its `Bytes` are uint8 arrays, views of the bytes that it was read from.

    index, value: names of the codecs, of INDEX_CODECS and VALUE_CODECS.
    flags: bits: 1 reordered, 2 from_dense, 4 scaled.
    size: elements of the tensor.
    entries: how many of them were chosen.
    values: how many values are packed: more than `entries` where a Bloom filter adds some.
    seed: of the draws and hashes, 0 to 2^32 - 1.
    parameters: of the codecs, a few bytes.
    packed_indices, packed_values: what the codecs made.
    order: where each value belongs, if they are reordered; else empty.
    """

    index: str
    value: str
    flags: int
    size: int
    entries: int
    values: int
    seed: int
    parameters: bytes
    packed_indices: Bytes
    packed_values: Bytes
    order: Bytes

    @property
    def reordered(self) -> bool:
        """Values travel in another order than their indices: largest first."""
        return bool(self.flags & REORDERED)

    @property
    def from_dense(self) -> bool:
        """What a Bloom filter adds falsely carries the dense tensor's values, not zeros."""
        return bool(self.flags & FROM_DENSE)

    @property
    def scaled(self) -> bool:
        """Values were multiplied by size / entries, for entries that were drawn at random."""
        return bool(self.flags & SCALED)

    @property
    def payload_bits(self) -> int:
        """Of indices, values and map, without header and parameters."""
        return 8 * (self.packed_indices.size + self.packed_values.size + self.order.size)

    def __bytes__(self) -> bytes:
        head = _HEADER.pack(
            b"DR", VERSION, INDEX_CODECS[self.index], VALUE_CODECS[self.value], self.flags, self.size, self.entries,
            self.values, self.seed, len(self.parameters), self.packed_indices.size, self.packed_values.size,
            self.order.size,
        )  # fmt: skip
        parts = (self.packed_indices, self.packed_values, self.order)
        body = b"".join([head, self.parameters, *(part.tobytes() for part in parts)])
        return body + _CRC.pack(zlib.crc32(body))


def refused(value: object, allowed: str) -> InvalidArgument:
    """What is raised of a container that nobody here would write."""
    return InvalidArgument("container", value, allowed)


def parse(data: bytes | bytearray | memoryview | Bytes, size: int | None = None) -> Container:
    """Takes a container apart and checks all that its header says; the codecs check their own parts when they decode.

    data: what `encode` returned, as bytes or anything with a buffer.
    size: elements that the tensor must have, if that is known. Raises InvalidArgument naming "container" for a wrong
    magic, version, codec, flag, length, count or checksum.
    """
    raw = np.frombuffer(data, np.uint8)
    if raw.size < OVERHEAD:
        raise refused(f"{raw.size} bytes", f"{OVERHEAD} bytes or more")
    magic, version, index, value, flags, elements, entries, values, seed, *lengths = _HEADER.unpack_from(raw.data)
    if magic != b"DR" or version != VERSION:
        raise refused(f"{magic!r}, version {version}", f"b'DR', version {VERSION}")
    if raw.size != OVERHEAD + sum(lengths):
        raise refused(f"{raw.size} bytes", f"the {OVERHEAD + sum(lengths)} bytes that its header announces")
    if _CRC.unpack_from(raw.data, raw.size - _CRC.size)[0] != zlib.crc32(raw[: -_CRC.size].data):
        raise refused("damaged bytes", "bytes that match their checksum")
    if index not in INDEX_NAMES or value not in VALUE_NAMES or flags & ~(REORDERED | FROM_DENSE | SCALED):
        raise refused(f"codecs {index} and {value}, flags {flags}", f"codecs to {max(INDEX_NAMES)} and "
                      f"{max(VALUE_NAMES)}, flags to 7")  # fmt: skip
    if size is not None and elements != size:
        raise refused(f"of a tensor of {elements} elements", f"{size} elements")
    most = elements if INDEX_NAMES[index] == "bloom-p0" else entries
    if entries > elements or not entries <= values <= most:
        raise refused(f"{entries} entries and {values} values of {elements} elements",
                      "no more entries than elements, and a value for each entry")  # fmt: skip
    ends = np.cumsum([_HEADER.size, *lengths])
    parameters, *parts = (raw[low:high] for low, high in pairwise(ends.tolist()))
    return Container(
        INDEX_NAMES[index], VALUE_NAMES[value], flags, elements, entries, values, seed, parameters.tobytes(), *parts
    )
