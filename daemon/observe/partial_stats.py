# SPDX-License-Identifier: Apache-2.0
"""How each rank takes part in the ops of a partial job, from the receipts of the newest ones.

An op of a partial job goes on without those who have given nothing, so nobody stands still to show who is slow. That
shows only over many ops: the *straggler* is the rank that is in the fewest of them; or, where all are in about as many
because what comes late is taken along by the next op, the rank that is in time (fresh) in the fewest. It is named if
that is less than half of what the median rank has, and if the median rank has `JUDGED_FROM`: below that, chance alone
makes such differences (under SOLO, say, where one rank of many is in each op).

Under FULL all are in all ops, in time, and wait for each other. There the straggler is whoever the others wait for
alone during more than half of the op, in more than half of the ops; its own host does not see that.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median
from typing import Any

from ultima.daemon.engine.engine import Status
from ultima.v1 import admin_pb2, partial_pb2, types_pb2

WINDOW_OPS = 256
JUDGED_FROM = 20
RATE_OPS = 16
NOBODY = -1
NEVER_US = 2**32 - 1


@dataclass(frozen=True, slots=True)
class _Op:
    """What is kept of a receipt. Masks are per host, bit per place among its ranks."""

    op_seq: int
    initiator: int
    fresh: tuple[int, ...]
    stale: tuple[int, ...]
    included: int
    waited_ns: int
    awaited: int
    """Host for which all others waited more than half of the op, under FULL; NOBODY for none."""
    heard_at: float
    coded: _Coded | None = None


@dataclass(frozen=True, slots=True)
class _Coded:
    """What is kept of a step of a coded job. Masks of hosts."""

    exact: bool
    late: int
    unused: int
    used_bytes: int
    redundant_bytes: int
    residual: float


class PartialStats:
    """See the module."""

    def __init__(self, ranks: Sequence[tuple[int, ...]], clock: Callable[[], float] = time.monotonic) -> None:
        """`ranks` of each host by its index, ascending."""
        self._ranks, self._clock = ranks, clock
        self._ops: deque[_Op] = deque(maxlen=WINDOW_OPS)

    def read(self, receipt: Callable[[int], Any | None]) -> None:
        """Takes the ops that have ended since the last call; `receipt` gives the struct of the n-th newest or None."""
        last = self._ops[-1].op_seq if self._ops else NOBODY
        new: list[_Op] = []
        for back in itertools.count():
            raw = receipt(back)
            if raw is None or raw.op_seq <= last:
                break
            if raw.status != Status.FAILED:
                new.append(self._kept(raw))
        self._ops.extend(reversed(new))

    def ops_per_second(self) -> float:
        """Of the newest ops up to now: of a job that stands still it sinks. 0 while there are no two."""
        newest = list(self._ops)[-RATE_OPS:]
        seconds = self._clock() - newest[0].heard_at if newest else 0.0
        return (len(newest) - 1) / seconds if seconds > 0 else 0.0

    def fill(self, status: admin_pb2.JobStatus) -> None:
        """Writes what is known into the job's status."""
        rows = self._rows()
        status.ranks.extend(rows)
        status.partial_ops = len(self._ops)
        status.straggler_rank = straggler(rows)
        if status.straggler_rank == NOBODY:
            status.straggler_rank = self._awaited()
        if self._ops:
            status.included_mean = fmean(op.included for op in self._ops)
            status.waited_p50_us = int(median(op.waited_ns for op in self._ops)) // 1000
        if steps := self._steps():
            status.coded.exact_count = sum(step.exact for step in steps)
            status.coded.late_count = sum(step.late != 0 for step in steps)
            status.coded.unused_count = sum(step.unused != 0 for step in steps)
            status.coded.used_bytes = sum(step.used_bytes for step in steps)
            status.coded.redundant_bytes = sum(step.redundant_bytes for step in steps)
            status.coded.residual_max = max(step.residual for step in steps)

    def _kept(self, raw: Any) -> _Op:
        hosts = range(len(self._ranks))
        return _Op(
            op_seq=raw.op_seq,
            initiator=raw.initiator,
            fresh=tuple(raw.peer[host].fresh for host in hosts),
            stale=tuple(raw.peer[host].stale for host in hosts),
            included=raw.included,
            waited_ns=raw.waited_ns,
            awaited=awaited_host(raw, len(self._ranks)) if raw.policy == types_pb2.POLICY_FULL else NOBODY,
            heard_at=self._clock(),
            coded=_coded(raw) if raw.policy == types_pb2.POLICY_CODED else None,
        )

    def _steps(self) -> list[_Coded]:
        return [op.coded for op in self._ops if op.coded is not None]

    def _awaited(self) -> int:
        """The one rank of the host for which the others wait; NOBODY if there is none, or it has several."""
        for host, ranks in enumerate(self._ranks):
            count = sum(op.awaited == host for op in self._ops)
            if len(ranks) == 1 and count >= JUDGED_FROM and 2 * count > len(self._ops):
                return ranks[0]
        return NOBODY

    def _rows(self) -> list[partial_pb2.RankStatus]:
        rows, steps = [], self._steps()
        for host, ranks in enumerate(self._ranks):
            initiated = sum(op.initiator == host for op in self._ops)
            for place, rank in enumerate(ranks):
                fresh = [op.op_seq for op in self._ops if op.fresh[host] >> place & 1]
                stale = [op.op_seq for op in self._ops if op.stale[host] >> place & 1]
                rows.append(
                    partial_pb2.RankStatus(
                        rank=rank,
                        fresh_count=len(fresh),
                        stale_count=len(stale),
                        null_count=len(self._ops) - len(fresh) - len(stale),
                        initiated_count=initiated,
                        last_op_seq=max(fresh[-1:] + stale[-1:], default=NOBODY),
                        late_count=sum(step.late >> host & 1 for step in steps),
                        unused_count=sum(step.unused >> host & 1 for step in steps),
                    )
                )
        return sorted(rows, key=lambda row: row.rank)


def _coded(raw: Any) -> _Coded:
    return _Coded(
        exact=raw.exact == types_pb2.EXACT_YES,
        late=raw.late_mask,
        unused=raw.unused_mask,
        used_bytes=raw.bytes_used,
        redundant_bytes=raw.bytes_redundant,
        residual=sqrt(raw.residual_squared),
    )


def awaited_host(raw: Any, hosts: int) -> int:
    """The host for which all others waited alone during more than half of an op, by a receipt; NOBODY for none."""
    opened = {host: raw.peer[host].opened_us for host in range(hosts) if raw.peer[host].opened_us != NEVER_US}
    *before, last = sorted(opened, key=lambda host: opened[host]) or [NOBODY]
    alone_us = opened[last] - opened[before[-1]] if before else 0
    return last if 2000 * alone_us > raw.elapsed_ns else NOBODY


def straggler(rows: Sequence[partial_pb2.RankStatus]) -> int:
    """The rank that holds the others up or would, -1 for none; see the module. Of several alike the lowest."""
    for count in (
        {row.rank: row.fresh_count + row.stale_count for row in rows},
        {row.rank: row.fresh_count for row in rows},
    ):
        if not count:
            break
        slowest, middle = min(count, key=lambda rank: (count[rank], rank)), median(count.values())
        if middle >= JUDGED_FROM and 2 * count[slowest] < middle:
            return slowest
    return NOBODY
