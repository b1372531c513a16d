# SPDX-License-Identifier: Apache-2.0
"""Ranks of different speed, grouped: gradients are averaged within a group, models between the groups.

A random initiator hides slowness that comes and goes, not a machine that is always slower. So the ranks are grouped by
the iteration times that they measure (grouping.py), and each group has a partial job of its own for its gradients. Its
speaker, the first rank of the group unless that one falls silent, carries the model between the groups:

    push        it puts its model, times the ranks of its group, into one partial job of all ranks as its gift, where it
                stays (sticky) until the next one
    pull        the op that this starts adds up all gifts: the mean of the newest model of each group,
                weighted by ranks. It waits for no trainer, only for the daemons
    broadcast   it puts the mean into a second partial job of the group; the others take the newest result

That is RNA's parameter server, but on no host: each daemon holds its own group's model, adds up a shard, and keeps the
newest sum. When a host dies, the sums go on without its gift. A group never waits for another one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from ultima.api.job import Job
from ultima.api.partial import Partial
from ultima.base.buffers import AnyArray
from ultima.base.durations import Duration, duration_s
from ultima.base.errors import InvalidArgument, RanksGone
from ultima.base.receipt import Receipt, Status, Why
from ultima.settings.options import Options
from ultima.speed_groups import grouping

# Calls of `exchange` without a broadcast, after which the next rank of the group speaks for it; for the one after it
# twice as many, and so on.
SILENCE = 10
ARENA_VECTORS = 8
# Elements of a block of a shared model, the weights at both ends included: fewer than a packet holds.
BLOCK = 128
# A host that has died, and one of which nothing is missing.
AWAY = {Why.NOTHING, Why.ABSENT}
# How long a meeting waits for the slowest rank to come.
MEETING_DEADLINE = "30m"


class Hierarchy:
    """This rank's place in the groups of a job. Not thread-safe, but for `partial`.

    job: an ordinary job of all ranks; further ones are opened beside it.
    count, dtype: elements of the model, "float32" or "float64".
    options: of the partial job within a group; policy "probe" by default.
    period: `exchange` does something in each call of that number.
    window: iterations that a rank's speed is measured over.
    deadline: of a pull; when it passes, the speaker goes on with its own model.
    name: of the jobs that are opened beside `job`, behind its name.

    All ranks make it alike, and begin as one group. Raises InvalidArgument and what `connect` raises.
    """

    def __init__(
        self,
        job: Job,
        count: int,
        dtype: str = "float32",
        *,
        options: Options | None = None,
        period: int = 1,
        window: int = grouping.WINDOW,
        deadline: Duration = "10s",
        name: str = "hier",
    ) -> None:
        numbers: tuple[tuple[str, object], ...] = (("count", count), ("period", period), ("window", window))
        for field, value in numbers:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidArgument(field, value, "a whole number of 1 or more")
        if dtype not in ("float32", "float64"):
            raise InvalidArgument("dtype", dtype, "'float32' or 'float64'")
        given = options or Options()
        self._options = given if given.policy is not None else replace(given, policy="probe")
        self._job, self._name = job, name
        self._count, self._dtype = count, dtype
        self._period, self._deadline = period, deadline
        self._times: deque[float] = deque(maxlen=window)
        self._models: SharedModel | None = None
        self._broadcast: SharedModel | None = None
        self._calls = self._silent = 0
        self.epoch = 0
        """How often the ranks were grouped anew."""
        self.groups: tuple[tuple[int, ...], ...] = (tuple(range(job.world_size)),)
        """The ranks of each group, the fastest group first."""
        self.speaker = 0
        """The rank that carries the model of this rank's group."""
        self.group_job: Job
        """The partial job behind `partial`."""
        self.partial: Partial
        """Face of the partial job of this rank's group, for its gradients. Another one after `regroup` said True."""
        self._talk = job.beside(f"{name}/talk", Options(policy="none"))
        self._enter()

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks of this rank's group, ascending."""
        return next(group for group in self.groups if self._job.rank in group)

    @property
    def speaks(self) -> bool:
        """Whether this rank carries its group's model."""
        return self.speaker == self._job.rank

    # Speed

    def note(self, seconds: float) -> None:
        """An iteration of this rank took so many `seconds`, without what it waited for others."""
        self._times.append(seconds)

    def regroup(self) -> bool:
        """Tells the ranks each other's times and groups them anew; all ranks must call it, at the end of an epoch, say.

        True if the groups have changed: then `partial` is another one. Without a time from every rank, and once a rank
        is gone for good, they stay as they are.
        """
        told = self._talk.empty(self._job.world_size, "float64")
        told[:] = 0.0
        if self._times:
            told[self._job.rank] = grouping.iteration_time(list(self._times), self._times.maxlen or grouping.WINDOW)
        try:
            self._talk.allreduce(told, "sum", mode="reliable", deadline=MEETING_DEADLINE)
        except RanksGone:
            return False
        if not all(told):
            return False
        found = tuple(tuple(group) for group in grouping.groups(told.tolist()))
        if found == self.groups:
            return False
        self.groups = found
        self.epoch += 1
        self._leave()
        self._enter()
        return True

    # Models

    def exchange(self, model: AnyArray) -> bool:
        """Puts into `model` the mean over the groups, if a new one is there. True if it did.

        The speaker pushes `model` and takes the mean that holds it; that waits for the daemons alone. The others take
        the newest mean that the speaker had, at once. Nothing happens while all ranks are one group.
        """
        self._calls += 1
        if self._models is None or self._calls % self._period:
            return False
        heard = self._listen(model)
        if not self.speaks:
            if heard is not None:
                model[:] = heard
            return heard is not None
        mean = self._models.push_pull(model, len(self.group), self._deadline)
        if mean is None:
            return False
        model[:] = mean
        if self._broadcast is not None:
            self._broadcast.push(mean, 1, self._deadline)
        return True

    def close(self) -> None:
        """Leaves all jobs but the one that it was made with. Idempotent."""
        self._leave()
        self._talk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # How

    def _enter(self) -> None:
        """Joins the jobs of the group, and that of the models."""
        group, nbytes = self.group, self._count * np.dtype(self._dtype).itemsize
        name = f"{self._name}/{self.epoch}.{self.groups.index(group)}"
        self.group_job = self._job.beside(
            name, self._options, ranks=group, arena_bytes=ARENA_VECTORS * nbytes, bucket_bytes=nbytes
        )
        self.partial = self.group_job.partial()
        self.speaker = group[0]
        self._silent = 0
        if len(self.groups) > 1:
            # A new one in each epoch: what speakers of the one before left must not count any more.
            self._models = SharedModel(self._job, self._count, self._dtype, f"{self._name}/{self.epoch}/models")
            if len(group) > 1:
                self._broadcast = SharedModel(self._job, self._count, self._dtype, f"{name}/mean", group)

    def _leave(self) -> None:
        for each in (self.group_job, self._models, self._broadcast):
            if each is not None:
                each.close()
        self._models = self._broadcast = None

    def _listen(self, model: AnyArray) -> AnyArray | None:
        """The newest broadcast of another rank. Finds out who speaks for the group."""
        found = self._broadcast.newest(model) if self._broadcast is not None else None
        if found is None:
            self._silent += 1
            ahead = (self.group.index(self._job.rank) - self.group.index(self.speaker)) % len(self.group)
            if self._silent > SILENCE * ahead > 0:
                self.speaker, self._silent = self._job.rank, 0
            return None
        mean, places = found
        spoke = [self.group[place] for place in places]
        if mean is None or not spoke or spoke == [self._job.rank]:
            return None
        self._silent = 0
        first = min(spoke)
        if self.speaks and first < self._job.rank:
            # Two gifts for one group would count it twice.
            assert self._models is not None and self._broadcast is not None
            self._models.withdraw()
            self._broadcast.withdraw()
        if not self.speaks or first < self._job.rank:
            self.speaker = first
        return mean


class SharedModel:
    """A partial job whose gifts are models, each times its weight, and the weights along with them.

    Ranks that have no model to tell put one of weight 0 there: they are never absent, and nobody waits for them.

    Until others take it over, the shard of a host that is gone comes from nobody: what this rank gave stands there. So
    the weights stand at both ends of each block of the vector, which is smaller than a shard: where they are the same
    they hold for all of it, and where a shard ends within a block they differ. A sum of which anything else is missing
    is not taken.
    """

    def __init__(self, job: Job, count: int, dtype: str, name: str, ranks: Sequence[int] | None = None) -> None:
        blocks = -(-count // (BLOCK - 2))
        nbytes = blocks * BLOCK * np.dtype(dtype).itemsize
        self._job = job.beside(
            name,
            Options(policy="solo"),
            ranks=ranks,
            arena_bytes=ARENA_VECTORS * nbytes,
            bucket_bytes=nbytes,
        )
        self._partial = self._job.partial(local_reduce="sum", divisor="none")
        self._count = count
        self._vector = self._job.empty((blocks, BLOCK), dtype)
        self._sum = self._job.empty((blocks, BLOCK), dtype)
        self.withdraw()

    def push(self, model: AnyArray, weight: int, deadline: Duration) -> int:
        """Makes a model this rank's gift, and starts an op; the number of the first one that has it."""
        self._vector[:, 1:-1] = self._blocks_of(model)
        self._vector[:, 1:-1] *= weight
        self._vector[:, 0] = self._vector[:, -1] = weight
        return self._partial.give(self._vector, sticky=True, deadline=deadline)

    def withdraw(self) -> None:
        """From now on this rank's gift counts nothing."""
        self._vector[:] = 0
        self._partial.give(self._vector, sticky=True)

    def push_pull(self, model: AnyArray, weight: int, deadline: Duration) -> AnyArray | None:
        """Makes a model this rank's gift and returns the mean over all gifts, this one among them; None when there
        is none by the deadline.
        """
        until = time.monotonic() + duration_s(deadline, "deadline")
        first = self.push(model, weight, deadline)
        found = self._partial.wait(first - 1, deadline=max(0.0, until - time.monotonic()), out=self._sum)
        return None if found is None else self._mean(found.receipt, model)

    def newest(self, model: AnyArray) -> tuple[AnyArray | None, tuple[int, ...]] | None:
        """The mean over all gifts, None if it is not to be had or all weigh nothing, and the ranks that pushed or
        withdrew just before; None if there is no newer one than the last time. `model` stands for what is missing.
        """
        found = self._partial.poll(out=self._sum)
        return None if found is None else (self._mean(found.receipt, model), found.receipt.fresh)

    def close(self) -> None:
        self._job.close()

    def _mean(self, receipt: Receipt, model: AnyArray) -> AnyArray | None:
        """The mean where it is known, and `model` elsewhere."""
        gone = receipt.status is Status.PARTIAL and self._vector.size >= receipt.world_size * BLOCK
        if receipt.status is not Status.COMPLETE and not (gone and {peer.why for peer in receipt.peers} <= AWAY):
            return None
        weights = self._sum[:, 0]
        known = (weights > 0) & (weights == self._sum[:, -1])
        if not known.any():
            return None
        blocks = self._blocks_of(model)
        np.divide(self._sum[:, 1:-1], weights[:, None], out=blocks, where=known[:, None])
        mean: AnyArray = blocks.reshape(-1)[: self._count]
        return mean

    def _blocks_of(self, model: AnyArray) -> AnyArray:
        """A copy of the model, without the weights, in blocks."""
        blocks = np.zeros((len(self._vector), BLOCK - 2), self._vector.dtype)
        blocks.reshape(-1)[: self._count] = model
        return blocks
