# SPDX-License-Identifier: Apache-2.0
"""For which host the others wait while ops stay whole: read from the receipts of the newest ops.

An op that is whole blames nobody, however long it took. A receipt tells when each other host was heard to have called
the op. The host that holds it up calls it long after the median host has; what its round trip explains is taken off.
On that host itself nothing shows: all others were there before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

OPS = 32
"""Newest ops of a series that are looked at."""
READ = 16  # receipts of a series that are read at once: each waits for a turn of the engine
JUDGED_FROM = 4  # ops
LATE_US = 10_000  # by which a host calls later than the median host in half of the ops, and
LATE_SHARE = 0.25  # that share of the time of an op: then the others wait for it
NEVER_US = 2**32 - 1


class Late(NamedTuple):
    """Index of a host, and medians over `ops` ops in microseconds: how late it calls them, and how long they take."""

    host: int
    late_us: int
    took_us: int
    ops: int

    @property
    def text(self) -> str:
        """For people, after "it calls an op"."""
        late, took = (f"{us / 1e3:.0f}" for us in (self.late_us, self.took_us))
        return f"{late} ms later than the others, of {took} ms that one takes (medians of {self.ops} ops)"


class _Op(NamedTuple):
    op_seq: int
    took_us: int
    late_us: dict[int, int]
    """By host, of those that are late at all."""


class LateHosts:
    """See the module. It belongs to the event loop."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._series: list[deque[_Op]] = []

    def read(self, series: Sequence[Iterable[Any]]) -> None:
        """Takes the ops that have ended since the last call, from the series of `HostEngine.series`."""
        while len(self._series) < len(series):
            self._series.append(deque(maxlen=OPS))
        for ops, receipts in zip(self._series, series, strict=True):
            last = ops[-1].op_seq if ops else -1
            new: list[_Op] = []
            for raw in receipts:
                if raw.op_seq <= last:
                    break
                if len(new) == READ:
                    ops.clear()  # those between are not known: what is kept is not of now
                    break
                new.append(_Op(raw.op_seq, raw.elapsed_ns // 1000, self._late(raw)))
            ops.extend(reversed(new))

    def worst(self, rtt_us: Callable[[int], int] = lambda host: 0) -> Late | None:
        """The host that is latest, if it is late enough to be named; `rtt_us` is the round trip to one. It must be so
        in the older half of the ops and in the newer: hosts that are late in turns are late by chance."""
        ops = sorted((op for ops in self._series for op in ops), key=lambda op: op.op_seq)
        if len(ops) < JUDGED_FROM:
            return None
        found = [_latest(half, rtt_us) for half in (ops[: len(ops) // 2], ops[len(ops) // 2 :], ops)]
        both = found[2]
        return both if both is not None and all(one is not None and one.host == both.host for one in found) else None

    def _late(self, raw: Any) -> dict[int, int]:
        """Nobody, if a host never called the op: then it is not whole, and says itself who is to blame."""
        opened = [raw.peer[host].opened_us for host in range(self._hosts)]
        middle = sorted(opened)[(self._hosts - 1) // 2]
        if NEVER_US in opened:
            return {}
        return {host: us - middle for host, us in enumerate(opened) if us - middle >= LATE_US}


def _latest(ops: Sequence[_Op], rtt_us: Callable[[int], int]) -> Late | None:
    """The host that is latest in these ops, if it is late enough to be named."""
    took = median(op.took_us for op in ops)
    late = {host: median(op.late_us.get(host, 0) for op in ops) for host in {h for op in ops for h in op.late_us}}
    beyond = {host: us - rtt_us(host) for host, us in late.items() if us}
    worst = max(beyond, key=lambda host: (beyond[host], -host), default=None)
    if worst is None or beyond[worst] < max(LATE_US, LATE_SHARE * took):
        return None
    return Late(worst, int(beyond[worst]), int(took), len(ops))
