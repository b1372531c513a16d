# SPDX-License-Identifier: Apache-2.0
"""`SparseState` and `sparse_hook`: each rank sends the entries that matter most, and keeps the others for later steps.

    state = ultima.torch.SparseState(ratio=0.01)
    model.register_comm_hook(state, ultima.torch.sparse_hook)        # DDP
    ultima.torch.hook_fsdp(model, state)                             # or FSDP2

All that a `HookState` does (modes, the loss budget, `guard`, averaging the parameters) it does, too. What differs is
what travels: of each parameter the `ratio` largest elements of gradient and memory; all of parameters of one dimension
and of small ones.
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from ultima.base.checks import check_switch, check_whole
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument
from ultima.base.words import DOWNS, FORMS
from ultima.sparse import Feedback
from ultima.torch.hooks.allreduce import allreduce_hook
from ultima.torch.hooks.bucket_options import BucketOptions, Policy
from ultima.torch.hooks.loss_budget import BucketKey, LossBudget
from ultima.torch.hooks.parts import Part
from ultima.torch.hooks.state import HookSummary
from ultima.torch.sparse.choice import Ways
from ultima.torch.sparse.memory import Chosen, Floats, Memories
from ultima.torch.sparse.remembering import FLOATS, RememberingState, Went

DENSE, SPARSE = "dense", "sparse"


@dataclass(slots=True)
class SparseSummary(HookSummary):
    """What `HookSummary` says, and how sparse buckets went. Of this rank."""

    sparse_ops: int = 0
    """Of `ops`, those of which entries were sent."""
    elements: int = 0
    """Of the buckets that went sparse."""
    entries: int = 0
    """Of these, how many this rank sent."""
    select_s: float = 0.0
    """Time spent choosing entries."""
    sparse_s: float = 0.0
    """Time from sparse buckets' being ready, choosing included, to their averages."""
    dense_s: float = 0.0
    """The same of all others."""
    sparse_bytes: int = 0
    """What this rank sent for sparse buckets, as far as that is known; 0 where no op said it."""
    dense_bytes: int = 0
    """What the same buckets would have sent as dense ones."""
    returned: int = 0
    """Entries that were not delivered, and went back into the memory."""

    @property
    def ratio(self) -> float:
        """Share of the elements that was sent of the buckets that went sparse."""
        return self.entries / self.elements if self.elements else 0.0

    def __str__(self) -> str:
        dense = self.ops - self.sparse_ops
        text = f"{self.sparse_ops} buckets sparse, {dense} dense"
        if self.sparse_ops:
            each, choosing = 1e3 * self.sparse_s / self.sparse_ops, 1e3 * self.select_s / self.sparse_ops
            text += f"; sparse: {self.ratio:.2%} of the elements, {each:.2f} ms each, {choosing:.2f} ms of it choosing"
            if self.sparse_bytes:
                text += f", {self.sparse_bytes / max(1, self.dense_bytes):.3f} of a dense bucket's bytes"
        if dense:
            text += f"; dense: {1e3 * self.dense_s / dense:.2f} ms each"
        return text


class SparseState(RememberingState):
    """The state of `sparse_hook`; one for each model. `allreduce_hook`, `hook_fsdp` and `guard` take it as well.

    ratio: share of a parameter's elements that is sent in a step.
    start_step: so many steps go dense first, while gradients are large everywhere.
    warmup_steps: after those, so many steps send more: from a quarter the share falls by the same factor each step.
    dense_below: parameters with fewer elements are sent whole, as all of one dimension are.
    momentum: 0, or the factor of a momentum that is applied here, before the choice. Then the optimizer is plain SGD
        without momentum: every step must have it once.
    values: how values travel: "float32", "float16", "bfloat16" or "float8". What rounding takes away is sent later.
    down: how averages come back: None as the values, or "int8", a quarter of float32's bytes, as `allreduce_sparse` has
        it. What is rounded there no memory keeps; rounding at random has no bias.
    choose: "sampled" looks at some elements and goes over a gradient once, with the threshold that they suggest;
        "exact" sends the largest exactly.
    auto: whether each bucket goes dense or sparse by what took less time, as all ranks measured it together. The ranks
        exchange times once a step then, whatever `budget` is.
    group, mode, deadline, policy, budget, sync_every: as for HookState. Buckets are not transformed (`hadamard`).

    Buckets of float64 go dense. So does a group of one rank. Can be pickled and saved (`state_dict`), on every rank.
    Raises InvalidArgument.
    """

    _travels = "entries travel as they are"
    _summary: SparseSummary
    _memories: Memories

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        ratio: float = 0.01,
        start_step: int = 10,
        warmup_steps: int = 0,
        dense_below: int = 1000,
        momentum: float = 0.0,
        values: str = "float32",
        down: str | None = None,
        choose: str = "sampled",
        auto: bool = False,
        mode: str | None = None,
        deadline: Duration | None = None,
        hadamard: bool = False,
        policy: Policy | None = None,
        budget: LossBudget | None = LossBudget(),
        sync_every: int = 100,
    ) -> None:
        check_whole(start_step, "start_step", 0)
        check_whole(dense_below, "dense_below", 0)
        check_switch(auto, "auto")
        if values not in FORMS:
            raise InvalidArgument("values", values, ", ".join(FORMS))
        if down is not None and down not in DOWNS:
            raise InvalidArgument("down", down, "None or one of " + ", ".join(DOWNS))
        rules = Feedback(0, ratio, momentum=momentum, choose=choose, warmup_steps=warmup_steps)
        super().__init__(
            group, Memories(rules, dense_below, values), Ways((DENSE, SPARSE), bool(auto)), hadamard,
            mode=mode, deadline=deadline, policy=policy, budget=budget, sync_every=sync_every,
        )  # fmt: skip
        self._form, self._down, self._start_step, self._momentum = values, down, start_step, momentum
        self._summary = SparseSummary()

    def summary(self) -> SparseSummary:
        """What was lost, spent and sent so far."""
        return replace(self._summary)

    # How

    def _start(
        self, tensor: torch.Tensor, options: BucketOptions, key: BucketKey, parts: Callable[[], Sequence[Part]]
    ) -> Any:
        self._refuse_wire(options)
        mode, deadline = options.mode, options.deadline
        went = Went(key, DENSE)
        if tensor.layout is not torch.strided or tensor.dtype not in FLOATS:
            if self._momentum:
                allowed = f"dense tensors of {', '.join(map(str, FLOATS))} with a momentum"
                raise InvalidArgument("tensor", f"a {tensor.layout} tensor of {tensor.dtype}", allowed)
            went.work = self.group.allreduce_with(tensor, mode=mode, deadline=deadline)
        else:
            known = self._parts_of(tensor, key, parts)
            if self._goes_sparse(key, known):
                went.way = SPARSE
                went.work = self._start_sparse(tensor, known, mode, deadline, went)
            else:
                self._give_back(tensor, known)
                went.work = self.group.allreduce_with(tensor, mode=mode, deadline=deadline)
        self._went.append(went)
        return went.work

    def _goes_sparse(self, key: BucketKey, parts: Sequence[Part]) -> bool:
        """Alike on all ranks."""
        if self.group.job is None or all(self._memories.whole(part) for part in parts):
            return False
        if self._memories.steps(parts) < self._start_step:
            return False
        return not self._ways.auto or self._ways.choice(key).way() == SPARSE

    def _start_sparse(
        self,
        tensor: torch.Tensor,
        parts: Sequence[Part],
        mode: str | None,
        deadline: Duration | None,
        went: Went,
    ) -> Any:
        began, group, flat = time.monotonic(), self.group, tensor.detach().reshape(-1)
        chosen = self._memories.choose(flat.float(), parts)
        self._summary.select_s += time.monotonic() - began
        self._summary.sparse_ops += 1
        self._summary.elements += flat.numel()
        self._summary.entries += chosen.indices.size
        self._summary.dense_bytes += 2 * tensor.nbytes * (group.size() - 1) // group.size()
        try:
            return group.average_entries(
                tensor, chosen.indices, chosen.values, partial(self._ended, chosen, went), form=self._form,
                down=self._down, hint=chosen.expected, mode=mode, deadline=deadline,
            )  # fmt: skip
        except Exception:
            chosen.put_back(slice(0, chosen.indices.size))
            raise

    def _ended(self, chosen: Chosen, went: Went, run: slice, back: Floats | None, sent: int) -> None:
        went.ended_ns = time.monotonic_ns()
        if back is not None:
            chosen.put_back(run, back)
            self._summary.returned += int((back != 0).sum())
        self._summary.sparse_bytes += max(0, sent)

    def _took(self, way: str, seconds: float) -> None:
        if way == DENSE:
            self._summary.dense_s += seconds
        else:
            self._summary.sparse_s += seconds


def sparse_hook(state: SparseState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of which each rank sends the entries that matter most, as its |state| says.

        model.register_comm_hook(SparseState(...), sparse_hook)

    Raises InvalidArgument for another state, and as `allreduce_hook`.
    """
    if not isinstance(state, SparseState):
        raise InvalidArgument("state", state, "a SparseState")
    return allreduce_hook(state, bucket)
