# SPDX-License-Identifier: Apache-2.0
"""RNA: training that never waits for an average.

    optimizer = ultima.torch.RNA(torch.optim.SGD(model.parameters(), lr=0.01))
    while optimizer.rounds < 10_000:
        optimizer.zero_grad()
        loss_of(model, next(batches)).backward()
        optimizer.step()                # gives the gradient, takes the newest average if there is one
    optimizer.finish()

Two threads: the caller's computes, another one collects averages as they come. A step gives its gradient to the daemon
and goes on, with the averages that came meanwhile, if any. A round is started by the one of two ranks drawn at random
that is ready first, so a slow one holds up nobody.

The algorithm: Yang et al., "Mitigating stragglers in the decentralized training on heterogeneous clusters", 2020. Where
some machines are always slower than others, `hierarchy` groups them by speed (`ultima.speed_groups`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ultima import Job, Options
from ultima.api.partial import Partial
from ultima.base.checks import check_switch
from ultima.base.durations import Duration
from ultima.base.errors import DaemonLost, InvalidArgument
from ultima.base.warning import warn
from ultima.speed_groups.hierarchy import Hierarchy
from ultima.torch.partial.collector import Collector
from ultima.torch.partial.rounds import with_policy
from ultima.torch.partial.wrapped import WrappedOptimizer, loss_by

SYNC_EVERY = 100
SCALES = ("linear", "mean")


class RNA(WrappedOptimizer):
    """Wraps any optimizer of torch's. The same arguments, and parameters of the same sizes, on all ranks.

    policy: "probe" (a controller asks `Options(probes=2)` ranks drawn at random), or "seeded" (no controller, ranks
        drawn from a shared seed); any other works as well. options: more of the kind.
    job, group, deadline: as for `EagerSGD`.
    scale: "linear" (the paper's): a step with the average of n ranks has n times the learning rate, as many steps as
        they would have made alone. "mean": the learning rate is for the average, as under DDP.
    local: what a step does that finds no newer average. True (the paper's): it takes the rank's own gradient, which
        comes once more with an average later. Where steps are quicker than rounds replicas drift apart by that, so that
        sync_every must be small. False: the parameters stay; the gradient is given either way, and is not lost.
    sync_every: rounds after which all ranks meet and average their parameters, the one moment when this waits; 0 for
        never.
    hierarchy: group the ranks by speed; rounds are those of this rank's group. It takes effect with `regroup`, which
        is also when all ranks meet; sync_every must be 0. hier_period: steps between two exchanges of the model between
        the groups. window: steps that a rank's speed is measured over.

    Gradients are views of one vector that is shared with the daemon; use this object's zero_grad. Raises
    InvalidArgument, and what `ultima.connect` raises.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        policy: str = "probe",
        *,
        job: Job | None = None,
        group: dist.ProcessGroup | None = None,
        options: Options | None = None,
        deadline: Duration | None = None,
        scale: str = "linear",
        local: bool = False,
        sync_every: int | None = None,
        hierarchy: bool = False,
        hier_period: int = 1,
        window: int = 20,
    ) -> None:
        if scale not in SCALES:
            raise InvalidArgument("scale", scale, "one of " + ", ".join(SCALES))
        check_switch(local, "local")
        check_switch(hierarchy, "hierarchy")
        if hierarchy and sync_every:
            raise InvalidArgument("sync_every", sync_every, "0 with hierarchy: groups have rounds of their own")
        self._linear, self._local = scale == "linear", local
        self._hierarchy: Hierarchy | None = None
        self._collector: Collector | None = None
        self._stepped = 0.0
        super().__init__(
            optimizer,
            options=with_policy(options, policy),
            job=job,
            group=group,
            local_reduce="weighted",
            divisor="contributors",
            deadline=deadline,
            sync_every=sync_every if sync_every is not None else 0 if hierarchy else SYNC_EVERY,
            enter=not hierarchy,
        )
        rounds = self._rounds
        try:
            if hierarchy and rounds.base is not None:
                count = sum(parameter.numel() for parameter in rounds.parameters)
                self._model = torch.empty(count, dtype=torch.float32, device="cpu")
                self._hierarchy = Hierarchy(
                    rounds.base, count, options=rounds.options, period=hier_period, window=window, name=rounds.name
                )
                rounds.use(self._hierarchy.group_job)
                self.zero_grad()
            self._collect()
        except BaseException:
            self.close()
            raise

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Gives the gradient, and makes the inner optimizer's step with the averages that came since the last one, if
        any; with |local| with the gradient itself otherwise. Returns what |closure| returned, if any.

        Raises as `ultima.Partial.give` and `wait`, and InvalidArgument for sparse gradients and parameters of another
        size.
        """
        loss, rounds = loss_by(closure), self._rounds
        rounds.summary.steps += 1
        if rounds.partial is None or self._collector is None:
            self.inner.step()
            return loss
        if self._hierarchy is not None and self._stepped:
            self._hierarchy.note(time.monotonic() - self._stepped)
        rounds.flat.gather()
        self._give(rounds.partial)
        rate, receipts = self._collector.take(rounds.flat.vector)
        for receipt in receipts:
            rounds.took(receipt)
        rounds.summary.local += not receipts and self._local
        rounds.summary.idle += not receipts and not self._local
        rounds.summary.missed = self._collector.counter.missed
        if receipts or self._local:
            rounds.flat.scatter()
            with self._rate(rate or 1.0):
                self.inner.step()
        self._exchange()
        rounds.sync.if_due(self._collector.rounds)
        self._stepped = time.monotonic()
        return loss

    def _give(self, partial: Partial) -> None:
        """A gradient that a daemon short of CPU time does not take is in no round, as one that comes too late is."""
        try:
            partial.give(self._rounds.flat.vector, deadline=self._rounds.deadline)
        except DaemonLost as lost:
            if lost.reason != "unresponsive":
                raise
            warn(f"{lost}. The gradient of this step may be in no round")

    @property
    def rounds(self) -> int:
        """Rounds of the job, or of the group, up to the newest average that this rank has taken."""
        return self._rounds.count if self._collector is None else self._collector.rounds

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each group, the fastest group first; one group without hierarchy."""
        if self._hierarchy is not None:
            return self._hierarchy.groups
        return (tuple(range(self._rounds.base.world_size if self._rounds.base is not None else 1)),)

    def regroup(self) -> bool:
        """Groups the ranks by the speed of their last steps, and averages their parameters. All ranks must call it, at
        the end of an epoch, say. True if the groups have changed.
        """
        if self._hierarchy is None:
            raise InvalidArgument("hierarchy", False, "True, to have groups")
        self._stop()
        changed = self._hierarchy.regroup()
        if changed:
            self._rounds.use(self._hierarchy.group_job)
            self.zero_grad()
        self._rounds.sync.now()
        self._collect()
        self._stepped = 0.0
        return changed

    def finish(self) -> None:
        """As `EagerSGD.finish`; the thread that collects averages has ended by then."""
        self._leave()
        super().finish()

    def close(self) -> None:
        """Leaves without a meeting, and ends the thread that collects averages. Idempotent."""
        self._leave()
        super().close()

    def _collect(self) -> None:
        """Starts the other thread."""
        rounds = self._rounds
        if rounds.partial is not None:
            self._collector = Collector(rounds.partial, rounds.flat.job, rounds.flat.vector, self._linear)

    def _stop(self) -> None:
        if self._collector is not None:
            self._collector.stop()

    def _leave(self) -> None:
        self._stop()
        if self._hierarchy is not None:
            self._hierarchy.close()

    def _exchange(self) -> None:
        """Between the groups, where there are several: this rank's model for the mean of all."""
        if self._hierarchy is None or len(self._hierarchy.groups) == 1:
            return
        with torch.no_grad():
            torch.cat([parameter.reshape(-1).float().cpu() for parameter in self._rounds.parameters], out=self._model)
            if self._hierarchy.exchange(self._model.numpy()):
                parts = torch.split(self._model, [parameter.numel() for parameter in self._rounds.parameters])
                for parameter, part in zip(self._rounds.parameters, parts, strict=True):
                    parameter.copy_(part.view_as(parameter))

    @contextmanager
    def _rate(self, factor: float) -> Iterator[None]:
        """Learning rates times |factor|, in the block."""
        before = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, rate in zip(self.param_groups, before, strict=True):
                group["lr"] = rate
