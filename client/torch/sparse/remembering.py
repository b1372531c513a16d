# SPDX-License-Identifier: Apache-2.0
"""What a state of a hook has that keeps something of each parameter for later steps: where that lies, which parameters
are in a bucket, in which of several ways a bucket goes, and how long it took in each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist

from ultima.base.errors import InvalidArgument
from ultima.torch.hooks.bucket_options import BucketOptions
from ultima.torch.hooks.loss_budget import BucketKey
from ultima.torch.hooks.parts import Part, covered
from ultima.torch.hooks.state import HookState
from ultima.torch.sparse.choice import Ways

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""What can go in another way than dense."""


class Memory(Protocol):
    """What is kept of all parameters of one model on one rank."""

    def name_parameters(self, model: torch.nn.Module) -> None:
        """Keeps what there is by the names that parameters have in |model|."""

    def take_all(self, flat: torch.Tensor, parts: Sequence[Part]) -> None:
        """Adds what is kept to a bucket, flat float32, in place, and keeps nothing."""

    def kept(self) -> dict[str, float]:
        """Sum of the magnitudes of what is kept, by parameter."""

    def state_dict(self) -> dict[str, Any]:
        """Numbers and tensors alone."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""


@dataclass(slots=True)
class Went:
    """A bucket under way, for the account of times. `ended_ns`: where its work has no receipts; 0: not yet."""

    key: BucketKey
    way: str
    work: Any = None
    ended_ns: int = 0
    began_ns: int = field(default_factory=time.monotonic_ns)


class RememberingState(HookState):
    """A HookState with a `Memory` and several `Ways`, the first of which is dense. Buckets are not transformed."""

    _travels: ClassVar[str]
    """What is said of buckets to whoever asks for `hadamard`."""

    _memories: Memory

    def __init__(
        self, group: dist.ProcessGroup | None, memories: Memory, ways: Ways, hadamard: bool, **said: Any
    ) -> None:
        super().__init__(group, **said)
        if hadamard:
            raise InvalidArgument("hadamard", hadamard, f"False: {self._travels}")
        self._memories, self._ways = memories, ways
        self._went: list[Went] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_went": []}

    def name_parameters(self, model: torch.nn.Module) -> None:
        """Has what is kept named as the parameters are in |model|, in the place of numbers: then a state that was saved
        fits a model in which parameters were added or moved. Before the first step, before loading, and again for a
        copy that was pickled. Raises InvalidArgument afterwards."""
        self._memories.name_parameters(model)

    def kept(self) -> dict[str, float]:
        """Sum of the magnitudes of what this rank has not sent yet, by parameter."""
        return self._memories.kept()

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, but for the budget's account: names, numbers and tensors alone. It belongs
        to its rank; save it on each, between steps."""
        return self._memories.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the |state| that `state_dict` gave. Raises InvalidArgument, which names the entry, before anything
        is changed.
        """
        self._memories.load_state_dict(state)

    # How

    def _mixes(self, options: BucketOptions) -> bool | None:
        if options.hadamard:
            raise InvalidArgument("hadamard", options.hadamard, f"False in the policy of a {type(self).__name__}")
        return False

    def _parts_of(self, tensor: torch.Tensor, key: BucketKey, parts: Callable[[], Sequence[Part]]) -> Sequence[Part]:
        known = parts()
        if covered(known, tensor.numel()):
            return known
        # A bucket of which nobody says what is in it: one parameter, by the bucket's own memory.
        return [Part(f"bucket {key.index} of {tensor.numel()} elements", 0, tensor.numel(), 2)]

    def _give_back(self, tensor: torch.Tensor, parts: Sequence[Part]) -> None:
        """All that is kept of a bucket goes with it: it is dense this time."""
        flat = tensor.detach().reshape(-1)
        wide = flat if flat.dtype is torch.float32 else flat.float()
        self._memories.take_all(wide, parts)
        if wide is not flat:
            flat.copy_(wide)

    def _fold(self) -> None:
        super()._fold()
        went, self._went = self._went, []
        for each in went:
            ended = max((receipt.ended_ns for receipt in getattr(each.work, "receipts", ())), default=each.ended_ns)
            seconds = max(0.0, (ended - each.began_ns) / 1e9)
            self._took(each.way, seconds)
            self._ways.ended(each.key, each.way, seconds)

    def _took(self, way: str, seconds: float) -> None:
        """A bucket that went so took so long."""
        raise NotImplementedError

    def _exchanges(self) -> bool:
        return self._ways.auto or super()._exchanges()

    def _facts(self, key: BucketKey) -> tuple[float, ...]:
        return self._ways.facts(key)

    def _learn(self, key: BucketKey, sums: Sequence[float]) -> None:
        self._ways.learn(key, sums)
