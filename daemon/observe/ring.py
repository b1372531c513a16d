# SPDX-License-Identifier: Apache-2.0
"""The newest ops of one job in a block of memory of fixed size: 56 bytes an op, written once when the op has ended."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

OPS_MAX = 4096
_FORM = struct.Struct("<QqQQQQHBBBBBx")
OP_BYTES = _FORM.size
_CULPRIT = 6  # place of the field in that form
NOBODY = 0xFFFF


class Op(NamedTuple):
    """One op as it ended on this host. Times in nanoseconds."""

    op_seq: int
    ended_ns: int
    """Since 1970, when the engine told of its end."""
    ended_monotonic_ns: int
    elapsed_ns: int
    bytes_missing: int
    bucket_bytes: int
    culprit: int
    """Index of the host; NOBODY for none."""
    status: int
    trouble: int
    collective: int
    dtype: int
    op: int
    """Number of the reduction."""


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
        values = (op.op_seq, op.ended_ns, op.ended_monotonic_ns, op.elapsed_ns, op.bytes_missing, op.bucket_bytes)
        words = (op.culprit, op.status, op.trouble, op.collective, op.dtype, op.op)
        _FORM.pack_into(self._memory, self._next % self._ops_max * OP_BYTES, *values, *words)
        self._next += 1

    def copy(self, newest: int = 0) -> bytes:
        """The newest ops, 0 for all that are kept, as one block for `ops_in`: it may be read in another thread."""
        at, size = self._next % self._ops_max * OP_BYTES, min(newest or self._ops_max, len(self)) * OP_BYTES
        if size <= at:
            return bytes(self._memory[at - size : at])
        return bytes(self._memory[at - size :] + self._memory[:at])


def culprits_in(block: bytes) -> list[int]:
    """Who was to blame for each of these ops, oldest first; NOBODY for none."""
    return [values[_CULPRIT] for values in _FORM.iter_unpack(block)]


def ops_in(block: bytes) -> Iterator[Op]:
    """The ops in what `OpRing.copy` gave, oldest first."""
    for values in _FORM.iter_unpack(block):
        yield Op(*values)
