# SPDX-License-Identifier: Apache-2.0
"""The newest ops of one job in a block of memory of fixed size: 56 bytes an op, written once when the op has ended."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

OPS_MAX = 4096
NOBODY = 0xFFFF


# generated: OpRecord (schema/)
FORM = struct.Struct("<QqQQQQHBBBBBx")


class Op(NamedTuple):
    """One op as it ended on this host."""

    op_seq: int
    """Number of the op in the job."""
    ended_ns: int
    """When the engine told of its end, in ns since 1970."""
    ended_monotonic_ns: int
    """The same by CLOCK_MONOTONIC."""
    elapsed_ns: int
    """From the first call on this host to its end, in ns."""
    bytes_missing: int
    """Bytes that never came in time."""
    bucket_bytes: int
    """Size of the bucket."""
    culprit: int
    """Index of the host to blame; 65535 for nobody."""
    status: int
    """Number of enum ut_status."""
    trouble: int
    """Number of enum ut_trouble: what the culprit has."""
    collective: int
    """Number of enum ut_collective."""
    dtype: int
    """Number of enum ut_dtype."""
    op: int
    """Number of enum ut_redop."""


# generated: end


OP_BYTES = FORM.size
_CULPRIT = Op._fields.index("culprit")


class OpRing:
    """See the module. The memory is asked for with the first op."""

    def __init__(self, ops_max: int = OPS_MAX) -> None:
        """`ops_max` ops are kept."""
        self._ops_max = ops_max
        self._memory = bytearray()
        self._next = 0

    def __len__(self) -> int:
        """Ops that are kept."""
        return min(self._next, self._ops_max)

    @property
    def total(self) -> int:
        """Ops that were ever put."""
        return self._next

    def put(self, op: Op) -> None:
        """Keeps one more; the oldest goes if there is no room."""
        if not self._memory:
            self._memory = bytearray(self._ops_max * OP_BYTES)
        FORM.pack_into(self._memory, self._next % self._ops_max * OP_BYTES, *op)
        self._next += 1

    def copy(self, newest: int = 0) -> bytes:
        """The newest ops, 0 for all that are kept, as one block for `ops_in`: it may be read in another thread."""
        at, size = self._next % self._ops_max * OP_BYTES, min(newest or self._ops_max, len(self)) * OP_BYTES
        if size <= at:
            return bytes(self._memory[at - size : at])
        return bytes(self._memory[at - size :] + self._memory[:at])


def culprits_in(block: bytes) -> list[int]:
    """Who was to blame for each of these ops, oldest first; NOBODY for none."""
    return [values[_CULPRIT] for values in FORM.iter_unpack(block)]


def ops_in(block: bytes) -> Iterator[Op]:
    """The ops in what `OpRing.copy` gave, oldest first."""
    for values in FORM.iter_unpack(block):
        yield Op(*values)
