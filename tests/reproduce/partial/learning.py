# SPDX-License-Identifier: Apache-2.0
"""What ranks learn when their ops happen at the times of a simulated job: every rank with a replica of its own.

The times come from blocking.py and rounds.py; here gradients are computed, kept, combined and applied in that order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.reproduce.partial.blocking import Run
from tests.reproduce.partial.rounds import Rounds
from tests.reproduce.partial.tasks import Task
from tests.reproduce.partial.workload import Values

# What happens first among things that happen at the same time.
ARRIVE, ACTIVATE, LEAVE, SYNC = range(4)


@dataclass
class Learned:
    """The replicas in the end, [rank, parameter], and the loss of their mean over time."""

    replicas: Values
    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def mean(self) -> Values:
        return np.asarray(self.replicas.mean(axis=0))

    def time_to(self, loss: float) -> float:
        """When the loss was at most |loss| and stayed there for two points; infinite when it never was."""
        good = [one <= loss for one in self.losses]
        for at in range(len(good)):
            if all(good[at : at + 2]):
                return self.times[at]
        return float("inf")

    def look(self, task: Task, time: float) -> None:
        self.times.append(time)
        self.losses.append(task.loss(self.mean))


def eager(task: Task, run: Run, sync: int = 0, look_every: float = 0.0) -> Learned:
    """eager-SGD over the times of |run|, which was made with the same |sync|. The divisor is the number of ranks.

    A rank that comes too late takes the newest result there is, and its gradient stays in its slot for the next op;
    later ones add to it. |look_every|: time between points of the loss; 0: none.
    """
    steps, ranks = run.arrived.shape
    start = task.start()
    learned = Learned(np.tile(start, (ranks, 1)))
    slots = np.zeros_like(learned.replicas)
    results = np.zeros((steps, len(start)))
    ended = run.ended.tolist()
    next_look = 0.0
    for time, kind, step, rank in _blocking_events(run, sync):
        while look_every and next_look <= time:
            learned.look(task, next_look)
            next_look += look_every
        if kind == ARRIVE:
            slots[rank] += task.gradient(learned.replicas[rank], rank, step)
        elif kind == ACTIVATE:
            results[step] = slots.sum(axis=0) / ranks
            slots[:] = 0
        elif kind == LEAVE:
            newest = bisect_right(ended, time) - 1
            assert newest >= step, "a rank leaves no op that has not ended"
            learned.replicas[rank] -= task.rate * results[newest]
        else:
            learned.replicas[:] = learned.mean
    return learned


def _blocking_events(run: Run, sync: int) -> Iterator[tuple[float, int, int, int]]:
    steps, ranks = run.arrived.shape
    events = [(float(time), ACTIVATE, step, 0) for step, time in enumerate(run.started)]
    for step in range(steps):
        events += [(float(run.arrived[step, rank]), ARRIVE, step, rank) for rank in range(ranks)]
        events += [(float(run.left[step, rank]), LEAVE, step, rank) for rank in range(ranks)]
        if sync and (step + 1) % sync == 0:
            events.append((float(run.left[step].max()), SYNC, step, 0))
    return iter(sorted(events))


def local_reduce(pending: list[tuple[int, Values]], eta: int) -> tuple[Values, int]:
    """RNA's weighted mean of a rank's pending gradients, (iteration, gradient) oldest first, and the largest gap tau.

    What is more than |eta| iterations older than the newest is dropped. The newest weighs tau + 1, the oldest 1.
    """
    newest = pending[-1][0]
    kept = [(at, gradient) for at, gradient in pending if newest - at <= eta]
    gap = newest - kept[0][0]
    weights = [at - (newest - gap) + 1 for at, _ in kept]
    return np.average([gradient for _, gradient in kept], axis=0, weights=weights), gap


@dataclass
class RnaLearned(Learned):
    gaps: list[int] = field(default_factory=list)
    """tau of every contribution."""
    local_steps: int = 0
    """Iterations that found no newer result and used their own gradient."""


def rna(task: Task, finished: Values, rounds: Rounds, eta: int = 4, every_result: bool = True, sync: float = 0.0,
        look_every: float = 0.0) -> RnaLearned:  # fmt: skip
    """RNA's cross-iteration training over the times of |rounds| and the streams |finished| [iteration, rank].

    After each iteration a rank uses the results that are newer than what it has seen, or its own gradient if there is
    none. |every_result|: all of them, as a communication thread that collects them does; or the newest alone, as the
    paper's buffer, where outputs overwrite outputs. A result is the sum of the weights' gradients: the mean by
    contributors times the learning rate that is scaled by their number. |sync|: time between synchronizations of the
    model, which here cost nothing; 0: never.
    """
    ranks = finished.shape[1]
    learned = RnaLearned(np.tile(task.start(), (ranks, 1)))
    pending: list[list[tuple[int, Values]]] = [[] for _ in range(ranks)]
    seen = [0] * ranks
    results: list[Values] = []
    ended = rounds.ended.tolist()
    # A gradient of the whole group's batch has the mean of all ranks' gradients: one rank's step is a share of it.
    rate = task.rate / ranks
    next_look, next_sync = 0.0, sync
    for time, kind, at, rank in _rna_events(finished, rounds):
        while look_every and next_look <= time:
            learned.look(task, next_look)
            next_look += look_every
        if sync and time >= next_sync:
            learned.replicas[:] = learned.mean
            next_sync += sync
        if kind == ACTIVATE:
            total = np.zeros(learned.replicas.shape[1])
            for own in pending:
                if own:
                    gradient, gap = local_reduce(own, eta)
                    total += gradient
                    learned.gaps.append(gap)
                    own.clear()
            results.append(total)
            continue
        gradient = task.gradient(learned.replicas[rank], rank, at)
        pending[rank].append((at, gradient))
        known = min(bisect_right(ended, time), len(results))
        if known > seen[rank]:
            new = results[seen[rank] if every_result else known - 1 : known]
            learned.replicas[rank] -= rate * sum(new)
            seen[rank] = known
        else:
            learned.replicas[rank] -= rate * gradient
            learned.local_steps += 1
    return learned


def _rna_events(finished: Values, rounds: Rounds) -> Iterator[tuple[float, int, int, int]]:
    until = float(rounds.ended[-1])
    events = [(float(time), ACTIVATE, at, 0) for at, time in enumerate(rounds.started)]
    for rank in range(finished.shape[1]):
        events += [(float(time), ARRIVE, at, rank) for at, time in enumerate(finished[:, rank]) if time <= until]
    return iter(sorted(events))
