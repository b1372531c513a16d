# SPDX-License-Identifier: Apache-2.0
"""The newest ops of one job in a block of memory of fixed size: 56 bytes an op, written once when the op has ended."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

OPS_MAX = 4096
_FORM = struct.Struct("<QqQQQQHBBBBBx")
OP_BYTES = _FORM.size
NOBODY = 0xFFFF


@dataclass(frozen=True, slots=True)
class Op:
    """One op as it ended on this host. Times in nanoseconds."""

    op_seq: int
    ended_ns: int
    """Since 1970, when the daemon heard of its end."""
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

    def put(self, op: Op) -> None:
        """Keeps one more; the oldest goes if there is no room."""
        if not self._memory:
            self._memory = bytearray(self._ops_max * OP_BYTES)
        values = (op.op_seq, op.ended_ns, op.ended_monotonic_ns, op.elapsed_ns, op.bytes_missing, op.bucket_bytes)
        words = (op.culprit, op.status, op.trouble, op.collective, op.dtype, op.op)
        _FORM.pack_into(self._memory, self._next % self._ops_max * OP_BYTES, *values, *words)
        self._next += 1

    def copy(self) -> bytes:
        """All that is kept as one block, for `ops_in`: it may be read in another thread."""
        at = self._next % self._ops_max * OP_BYTES
        whole = self._next >= self._ops_max
        return bytes(self._memory[at:] + self._memory[:at]) if whole else bytes(self._memory[:at])


def ops_in(block: bytes) -> Iterator[Op]:
    """The ops in what `OpRing.copy` gave, oldest first."""
    for values in _FORM.iter_unpack(block):
        yield Op(*values)
