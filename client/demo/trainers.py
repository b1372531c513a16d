# SPDX-License-Identifier: Apache-2.0
"""The demo's choice of who is waited for: plain DDP, DDP with eager-SGD's hook, or RNA's optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from ultima.torch import PartialState, ReceiptSummary
    from ultima.torch.partial.rounds import PartialSummary

MOMENTUM = 0.9
RNA_POLICIES = ("probe", "seeded")


class Trainer(Protocol):
    """What the training loop sees."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def rounds(self) -> int: ...

    def stepped(self) -> None: ...

    def finish(self) -> None: ...

    def receipts(self) -> ReceiptSummary: ...

    def account(self, seconds: float) -> dict[str, Any]: ...


def trainer_of(policy: str, model: nn.Module, learning_rate: float) -> Trainer:
    """The trainer for a policy; "none" for plain DDP. Raises InvalidArgument."""
    if policy == "none":
        return Plain(model, learning_rate)
    if policy in RNA_POLICIES:
        return Rna(model, learning_rate, policy)
    return Eager(model, learning_rate, policy)


class Plain:
    """Every rank in every round."""

    def __init__(self, model: nn.Module, learning_rate: float) -> None:
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate, momentum=MOMENTUM)
        self.rounds = 0

    def stepped(self) -> None:
        self.rounds += 1

    def finish(self) -> None: ...

    def receipts(self) -> ReceiptSummary:
        import ultima.torch

        return ultima.torch.receipt_summary()

    def account(self, seconds: float) -> dict[str, Any]:
        everybody = dict.fromkeys(range(dist.get_world_size()), 1.0)
        return {"steps": self.rounds, "seconds": seconds, "averaged": self.rounds, "fresh": everybody, "stale": {}}


class Eager:
    """DDP as it is, and a hook."""

    def __init__(self, model: nn.Module, learning_rate: float, policy: str) -> None:
        from ultima.torch import PartialState, partial_hook

        self.model = DistributedDataParallel(model)
        self.state: PartialState = PartialState(self.model, policy)
        self.model.register_comm_hook(self.state, partial_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate, momentum=MOMENTUM)

    @property
    def rounds(self) -> int:
        return self.state.rounds

    def stepped(self) -> None: ...

    def finish(self) -> None:
        self.state.finish()

    def receipts(self) -> ReceiptSummary:
        return self.state.log.summary()

    def account(self, seconds: float) -> dict[str, Any]:
        return account_of(self.state.summary(), seconds)


class Rna:
    """No DDP: nobody waits for an average."""

    def __init__(self, model: nn.Module, learning_rate: float, policy: str) -> None:
        from ultima.torch import RNA

        self.model = model
        # As many steps as the others make, of the same size: rates are for an average.
        inner = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=MOMENTUM)
        self.optimizer = RNA(inner, policy, scale="mean")

    @property
    def rounds(self) -> int:
        return self.optimizer.rounds

    def stepped(self) -> None: ...

    def finish(self) -> None:
        self.optimizer.finish()

    def receipts(self) -> ReceiptSummary:
        return self.optimizer.log.summary()

    def account(self, seconds: float) -> dict[str, Any]:
        return account_of(self.optimizer.summary(), seconds)


def account_of(summary: PartialSummary, seconds: float) -> dict[str, Any]:
    """Steps of this rank, and in which share of the averages that it took each rank was, by its slot's state."""

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
