# SPDX-License-Identifier: Apache-2.0
"""RNA in virtual time: computing never waits, and a round starts when the first of q probed ranks has a gradient.

A rank's gradients come as a stream that no round can delay. The controller probes q ranks when a round has ended; a
probed rank answers when it has a gradient that no round has taken. Then every rank gives all it has.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.reproduce.partial.workload import Values

Picker = Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class Rounds:
    """Times by [round], from the start, in the unit of the compute times."""

    probed: Values
    """When the controller asked."""
    started: Values
    """When the first answer had come, and every rank's gradients were taken."""
    ended: Values
    taken: npt.NDArray[np.int64]
    """[round, rank]: gradients of that rank taken so far, this round included."""

    @property
    def response(self) -> Values:
        return self.started - self.probed

    @property
    def fresh(self) -> npt.NDArray[np.int64]:
        """[round, rank]: gradients that the rank gave to the round."""
        return np.diff(self.taken, axis=0, prepend=0)

    @property
    def contributors_mean(self) -> float:
        return float((self.fresh > 0).sum(axis=1).mean())

    @property
    def rate(self) -> float:
        return len(self.ended) / float(self.ended[-1])

    def until(self, time: float) -> Rounds:
        """Those that had ended by |time|."""
        count = int(np.searchsorted(self.ended, time, side="right"))
        return Rounds(self.probed[:count], self.started[:count], self.ended[:count], self.taken[:count])


def chooser(ranks: int, probes: int, rng: np.random.Generator) -> Picker:
    """|probes| distinct ranks, uniformly, for each round."""
    return lambda at: [int(rank) for rank in rng.choice(ranks, probes, replace=False)]


class Streams:
    """What each rank has computed, and how much of it rounds have taken."""

    def __init__(self, finished: Values) -> None:
        self._streams = [np.ascontiguousarray(finished[:, rank]) for rank in range(finished.shape[1])]
        self.taken = np.zeros(finished.shape[1], dtype=np.int64)

    def ready(self, rank: int) -> float:
        """When the rank has, or had, its first gradient that no round has taken. Raises ValueError at the end."""
        stream, taken = self._streams[rank], self.taken[rank]
        if taken == len(stream):
            raise ValueError(f"rank {rank} has only {len(stream)} gradients, the rounds need more")
        return float(stream[taken])

    def start(self, now: float, asked: Sequence[int], probe_time: float) -> float:
        """The start of a round that is probed for at |now|; takes what all ranks have then."""
        time = max(now, min(self.ready(rank) for rank in asked)) + probe_time
        self.taken = np.array([np.searchsorted(stream, time, side="right") for stream in self._streams])
        return time


def run(finished: Values, count: int, pick: Picker, op_time: float = 0.0, probe_time: float = 0.0) -> Rounds:
    """|count| rounds over streams of gradients that are ready at |finished| [iteration, rank], ascending by iteration.

    |probe_time|: from a gradient that is ready to the start of the op everywhere. |op_time|: of the op; the next round
    is probed for when it has ended. Raises ValueError when a stream is too short for the rounds.
    """
    probed, started, ended = (np.empty(count) for _ in range(3))
    taken = np.zeros((count, finished.shape[1]), dtype=np.int64)
    streams, now = Streams(finished), 0.0
    for at in range(count):
        probed[at], started[at] = now, streams.start(now, pick(at), probe_time)
        taken[at] = streams.taken
        now = ended[at] = started[at] + op_time
    return Rounds(probed, started, ended, taken)


@dataclass(frozen=True)
class Grouped:
    """Rounds of groups that train apart and share a parameter server."""

    ended: list[Values]
    """Of each group, the ends of its rounds."""
    waited: float
    """Mean time that a push-pull waited for the server."""

    def rate(self, group: int) -> float:
        ends = self.ended[group]
        return len(ends) / float(ends[-1]) if len(ends) else 0.0


def grouped(finished: Values, groups: Sequence[Sequence[int]], until: float, picks: Sequence[Picker],
            op_time: float = 0.0, server_time: float = 0.0) -> Grouped:  # fmt: skip
    """RNA's hierarchy: each group has rounds of its own until |until|, and each round ends with a push-pull of its
    initiator to a server, which takes |server_time| and serves one at a time, in the order in which they come.
    """
    streams = [Streams(finished[:, list(group)]) for group in groups]
    ended: list[list[float]] = [[] for _ in groups]
    waits: list[float] = []
    pushes = [(streams[at].start(0.0, picks[at](0), 0.0) + op_time, at) for at in range(len(groups))]
    heapq.heapify(pushes)
    free = 0.0
    while pushes:
        time, at = heapq.heappop(pushes)
        waits.append(max(0.0, free - time))
        free = max(time, free) + server_time
        if free > until:
            continue
        ended[at].append(free)
        heapq.heappush(pushes, (streams[at].start(free, picks[at](len(ended[at])), 0.0) + op_time, at))
    return Grouped([np.array(ends) for ends in ended], float(np.mean(waits)))


def independent(ranks: int, rounds: int, low: float, high: float, probes: int, rng: np.random.Generator) -> Values:
    """Response times when every round starts all tasks anew: the plain reading of RNA's Figure 10."""
    tasks = rng.uniform(low, high, (rounds, ranks))
    asked = np.argsort(rng.random((rounds, ranks)), axis=1)[:, :probes]
    return np.asarray(np.take_along_axis(tasks, asked, axis=1).min(axis=1))


def independent_contributors(ranks: int, rounds: int, probes: int, rng: np.random.Generator) -> float:
    """Mean ranks that are ready when the fastest of |probes| is, tasks anew in every round."""
    tasks = rng.random((rounds, ranks))
    asked = np.argsort(rng.random((rounds, ranks)), axis=1)[:, :probes]
    first = np.take_along_axis(tasks, asked, axis=1).min(axis=1)
    return float((tasks <= first[:, None]).sum(axis=1).mean())
