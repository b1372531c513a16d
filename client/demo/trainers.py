# SPDX-License-Identifier: Apache-2.0
"""The demo's choice of what is sent and who is waited for: plain DDP, DDP with sparse gradients or with eager-SGD's
hook, RNA's optimizer, or coded gradients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from ultima import OuterSummary, Round
    from ultima.torch import RNA, CodedGradient, CodedSampler, PartialState, ReceiptSummary, SparseState
    from ultima.torch.partial.rounds import PartialSummary

MOMENTUM = 0.9
RNA_POLICIES = ("probe", "seeded")
Points = npt.NDArray[np.int64]
# How often a rank that sleeps in a coded step looks whether the step is over.
LOOK_S = 0.01


class Trainer(Protocol):
    """What the training loop sees."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def rounds(self) -> int: ...

    def sleep(self, seconds: float) -> None:
        """What makes this rank slow."""

    def shares(self, points: Points) -> Iterator[tuple[Points, float]]:
        """What this rank computes of a step's points, and what the mean loss of each of its batches counts for."""

    def step(self) -> None:
        """All gradients are there."""

    def finish(self) -> None: ...

    def receipts(self) -> ReceiptSummary: ...

    def account(self, seconds: float) -> dict[str, Any]: ...


def trainer_of(
    policy: str,
    model: nn.Module,
    learning_rate: float,
    coded: int,
    share: int,
    sparse: float | None = None,
    wire: str | None = None,
    every: int = 0,
) -> Trainer:
    """The trainer for a policy; "none" for plain DDP. |coded|: ranks of each group that may be late, 0 for no coded
    gradients; |share|: points of a step for each rank; |sparse|: share of each gradient that is sent, None for all of
    it; |wire|: the form in which gradients travel, None for float32; |every|: steps between two rounds of DiLoCo, 0 for
    averaging gradients in each step. Raises InvalidArgument.
    """
    if coded:
        return Coded(model, learning_rate, coded, share)
    if every:
        return Local(model, learning_rate, every, wire, share)
    if sparse is not None:
        return Sparse(model, learning_rate, sparse)
    if wire is not None:
        return Quantised(model, learning_rate, wire)
    if policy == "none":
        return Plain(model, learning_rate)
    if policy in RNA_POLICIES:
        return Rna(model, learning_rate, policy)
    return Eager(model, learning_rate, policy)


class OwnShare:
    """A rank computes its own slice of each step's points."""

    optimizer: torch.optim.Optimizer

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def shares(self, points: Points) -> Iterator[tuple[Points, float]]:
        share = len(points) // dist.get_world_size()
        yield points[dist.get_rank() * share :][:share], 1.0

    def step(self) -> None:
        self.optimizer.step()


class Plain(OwnShare):
    """Every rank in every round."""

    def __init__(self, model: nn.Module, learning_rate: float) -> None:
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate, momentum=MOMENTUM)
        self.rounds = 0

    def step(self) -> None:
        super().step()
        self.rounds += 1

    def finish(self) -> None: ...

    def receipts(self) -> ReceiptSummary:
        import ultima.torch

        return ultima.torch.receipt_summary()

    def account(self, seconds: float) -> dict[str, Any]:
        everybody = dict.fromkeys(range(dist.get_world_size()), 1.0)
        told = {"steps": self.rounds, "seconds": seconds, "averaged": self.rounds, "fresh": everybody, "stale": {}}
        return {**told, "sent_bytes": self.rounds * dense_bytes(self.model)}


class Sparse(Plain):
    """DDP as it is, and a hook that sends the largest entries. Momentum moves from the optimizer to the ranks."""

    def __init__(self, model: nn.Module, learning_rate: float, ratio: float) -> None:
        from ultima.torch import SparseState, sparse_hook

        self.model = DistributedDataParallel(model)
        self.state: SparseState = SparseState(ratio=ratio, momentum=MOMENTUM)
        self.model.register_comm_hook(self.state, sparse_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate)
        self.rounds = 0

    def account(self, seconds: float) -> dict[str, Any]:
        told = self.state.summary()
        base = super().account(seconds)
        # The averages under way are those of whole models; those of which entries went are counted by themselves.
        whole = base["sent_bytes"] - told.dense_bytes
        known = told.sparse_bytes or not told.sparse_ops  # sums in the network do not tell theirs
        sent = {"sent_bytes": whole + told.sparse_bytes if known else None, "ratio": told.ratio, "summary": str(told)}
        return {**base, **sent}


class Quantised(Plain):
    """DDP as it is, and a hook that sends each element in few bits."""

    def __init__(self, model: nn.Module, learning_rate: float, wire: str) -> None:
        from ultima.torch import QuantState, quantize_hook

        super().__init__(model, learning_rate)
        self.state: QuantState = QuantState(wire)
        self.model.register_comm_hook(self.state, quantize_hook)

    def account(self, seconds: float) -> dict[str, Any]:
        told = self.state.summary()
        base = super().account(seconds)
        # Both with their headers, as shares of what the same buckets would have been; the others went dense.
        share = told.wire_bytes / told.dense_bytes if told.dense_bytes else 1.0
        sent = round(base["sent_bytes"] * share) if told.quantised_ops == told.ops else None
        return {**base, "sent_bytes": sent, "summary": str(told)}


class Local(OwnShare):
    """No DDP: ranks train by themselves, and average how far they came."""

    def __init__(self, model: nn.Module, learning_rate: float, every: int, wire: str | None, share: int) -> None:
        from ultima.torch import DiLoCo
        from ultima.torch.backend.receipt_log import ReceiptLog

        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=MOMENTUM)
        # The wire has half of the steps between two rounds for one of them.
        self.outer: DiLoCo = DiLoCo(model, self.optimizer, every, delay=every // 2, wire=wire or "float32")
        self.outer.on_round = self._note
        self.rounds = 0
        self._share = share
        self._log = ReceiptLog()
        self._told: dict[str, Any] = {}

    def _note(self, told: Round) -> None:
        if told.receipt is not None:
            self._log.add(told.receipt)

    def step(self) -> None:
        self.optimizer.step()
        self.outer.step(tokens=self._share)
        self.rounds += 1

    def finish(self) -> None:
        told = self.outer.summary()
        self.outer.meet()
        self._close(told)

    def leave(self) -> None:
        """The others go on without this rank."""
        self.outer.finish()
        self._close(self.outer.summary())

    def _close(self, told: OuterSummary) -> None:
        self._told = {"computed": told.computed, "summary": str(told), "last": str(self.outer.last)}
        self.outer.close()

    def receipts(self) -> ReceiptSummary:
        return self._log.summary()

    def account(self, seconds: float) -> dict[str, Any]:
        return {"steps": self.rounds, "seconds": seconds, "sent_bytes": None, "ratio": None, **self._told}


class Rounds(OwnShare):
    """Averages come in rounds, which not every rank takes part in."""

    taking: PartialState | RNA
    """What takes part for this rank."""

    @property
    def rounds(self) -> int:
        return self.taking.rounds

    def finish(self) -> None:
        self.taking.finish()

    def receipts(self) -> ReceiptSummary:
        return self.taking.log.summary()

    def account(self, seconds: float) -> dict[str, Any]:
        return account_of(self.taking.summary(), seconds)


class Eager(Rounds):
    """DDP as it is, and a hook."""

    def __init__(self, model: nn.Module, learning_rate: float, policy: str) -> None:
        from ultima.torch import PartialState, partial_hook

        self.model = DistributedDataParallel(model)
        self.taking = PartialState(self.model, policy)
        self.model.register_comm_hook(self.taking, partial_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate, momentum=MOMENTUM)


class Rna(Rounds):
    """No DDP: nobody waits for an average."""

    def __init__(self, model: nn.Module, learning_rate: float, policy: str) -> None:
        from ultima.torch import RNA

        self.model = model
        # As many steps as the others make, of the same size: rates are for an average.
        inner = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=MOMENTUM)
        self.optimizer = self.taking = RNA(inner, policy, scale="mean")


class Coded:
    """No DDP: each rank computes more than its share, so that the sum is exact without the late ones."""

    def __init__(self, model: nn.Module, learning_rate: float, stragglers: int, share: int) -> None:
        from ultima.coded import Plan
        from ultima.torch import CodedGradient, CodedSampler

        world = dist.get_world_size()
        plan = Plan(world, stragglers)
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=MOMENTUM)
        self.coded: CodedGradient = CodedGradient(model, plan, share * world)
        self.sampler: CodedSampler = CodedSampler(share * world, plan, dist.get_rank(), batch=share)

    @property
    def rounds(self) -> int:
        return self.coded.number

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.coded.over():
            time.sleep(min(LOOK_S, left))

    def shares(self, points: Points) -> Iterator[tuple[Points, float]]:
        for indices, coefficient in self.sampler.batches(points):
            if self.coded.over():
                return
            yield indices.numpy(), coefficient * len(indices)  # gradients are those of sums here

    def step(self) -> None:
        self.coded.step(self.optimizer)

    def finish(self) -> None:
        self.coded.finish()

    def receipts(self) -> ReceiptSummary:
        return self.coded.log.summary()

    def account(self, seconds: float) -> dict[str, Any]:
        return {"seconds": seconds, **asdict(self.coded.summary())}


def dense_bytes(model: nn.Module) -> int:
    """What a rank sends for an average of all gradients: its share of the model to each owner, and back."""
    whole = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    world = dist.get_world_size()
    return 2 * whole * (world - 1) // world


def account_of(summary: PartialSummary, seconds: float) -> dict[str, Any]:
    """Steps of this rank, and in which share of the averages that it took each rank was, by its gift's state."""

    def share(counts: dict[int, int]) -> dict[int, float]:
        return {rank: count / summary.averaged for rank, count in sorted(counts.items())}

    return {
        "steps": summary.steps,
        "seconds": seconds,
        "averaged": summary.averaged,
        "fresh": share(summary.fresh),
        "stale": share(summary.stale),
        "sync_s": summary.sync.seconds,
    }
