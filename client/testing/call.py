# SPDX-License-Identifier: Apache-2.0
"""What a rank asks its engine for: the part of an op that stands in a submission ring."""

from __future__ import annotations

from dataclasses import dataclass

from ultima.base.sparse_form import SparseCall
from ultima.base.words import DType
from ultima.session.attachment import Asked
from ultima.session.op import Layout


@dataclass(frozen=True, slots=True)
class Call:
    """See `ultima.session.attachment.Asked`. A copy of an op's, which a test or a stand-in may change."""

    seq: int
    src: int
    dst: int
    count: int
    deadline_ns: int
    kind: DType
    redop: int
    mode: int
    flags: int
    layout: Layout
    wanted: int
    steps: tuple[int, int]
    portions: int = 1

    @classmethod
    def of(cls, op: Asked, deadline_ns: int) -> Call:
        """What `op` asks for, with another deadline."""
        return cls(
            op.seq,
            op.src,
            op.dst,
            op.count,
            deadline_ns,
            op.kind,
            op.redop,
            op.mode,
            op.flags,
            op.layout,
            op.wanted,
            op.steps,
        )

    @property
    def sparse(self) -> SparseCall | None:
        """Of a sparse allreduce."""
        return self.layout.sparse
