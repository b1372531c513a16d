# SPDX-License-Identifier: Apache-2.0
"""`QuantState` and `quantize_hook`: gradients travel in 16, 8 or 4 bits an element.

    state = ultima.torch.QuantState("int8")
    model.register_comm_hook(state, ultima.torch.quantize_hook)      # DDP
    ultima.torch.hook_fsdp(model, state)                             # or FSDP2

All that a `HookState` does (modes, the loss budget, `guard`, averaging the parameters) it does, too. Replicas have the
same bits: all ranks use what the owners of the parts have sent.
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from ultima.base.checks import check_switch, check_whole
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument
from ultima.quant import FORMS, wire_bytes
from ultima.torch.backend.entries import NATIVE
from ultima.torch.backend.wire import Wire
from ultima.torch.hooks.allreduce import allreduce_hook
from ultima.torch.hooks.bucket_options import DENSE, BucketOptions, Policy
from ultima.torch.hooks.loss_budget import BucketKey, LossBudget
from ultima.torch.hooks.parts import Part
from ultima.torch.hooks.state import HookSummary
from ultima.torch.quant.residuals import Residuals
from ultima.torch.sparse.choice import Ways
from ultima.torch.sparse.remembering import FLOATS, RememberingState, Went

AUTO = "auto"
AUTO_WIRE = "int8"
"""What "auto" takes where it pays: the fewest bits of which the error is that of a bfloat16 gradient or less."""


@dataclass(slots=True)
class QuantSummary(HookSummary):
    """What `HookSummary` says, and how quantised buckets went. Of this rank."""

    quantised_ops: int = 0
    """Of `ops`, those that travelled in few bits."""
    quantised_s: float = 0.0
    """Time from those buckets' being ready to their averages."""
    dense_s: float = 0.0
    """The same of all others."""
    wire_bytes: int = 0
    """What a host sends for the quantised buckets where nothing is lost, headers included."""
    dense_bytes: int = 0
    """What it would send for the same buckets as dense ones."""

    def __str__(self) -> str:
        dense = self.ops - self.quantised_ops
        text = f"{self.quantised_ops} buckets quantised, {dense} dense"
        if self.quantised_ops:
            share = self.wire_bytes / max(1, self.dense_bytes)
            text += f"; quantised: {1e3 * self.quantised_s / self.quantised_ops:.2f} ms each, {share:.3f} of the bytes"
        if dense:
            text += f"; dense: {1e3 * self.dense_s / dense:.2f} ms each"
        return text


class QuantState(RememberingState):
    """The state of `quantize_hook`; one for each model. `allreduce_hook`, `hook_fsdp` and `guard` take it as well.

    wire: "int16", "int8" or "int4"; or "auto": dense or int8 for each bucket by what took less time, as all ranks
        measured it together; all dense in a job that has no such sums (another algorithm than "tar", a policy,
        deterministic). The ranks exchange times once a step then, whatever `budget` is.
    answer: the form of the results, as fine as `wire` or finer; None for `wire`, but "int8" for int4 with feedback:
        what is rounded there no rank can mend.
    feedback: whether each rank keeps what rounding took and sends it in the next step; None for int4 alone.
    dense_below: buckets of fewer bytes go dense: there packets are not what an op waits for.
    group, mode, deadline, policy, budget, sync_every: as for HookState. Buckets are not transformed (`hadamard`).

    Buckets of float64 go dense. So does a group of one rank. Can be pickled and saved (`state_dict`), on every rank.
    Raises InvalidArgument.
    """

    _travels = "quantised buckets travel as they are"
    _summary: QuantSummary
    _memories: Residuals

    def __init__(
        self,
        wire: str = "int8",
        group: dist.ProcessGroup | None = None,
        *,
        answer: str | None = None,
        feedback: bool | None = None,
        dense_below: int = 16384,
        mode: str | None = None,
        deadline: Duration | None = None,
        hadamard: bool = False,
        policy: Policy | None = None,
        budget: LossBudget | None = LossBudget(),
        sync_every: int = 100,
    ) -> None:
        if wire not in (*FORMS, AUTO):
            raise InvalidArgument("wire", wire, ", ".join((*FORMS, AUTO)))
        auto, form = wire == AUTO, AUTO_WIRE if wire == AUTO else wire
        finer = FORMS[: FORMS.index(form) + 1]
        if answer is not None and answer not in finer:
            raise InvalidArgument("answer", answer, f"as fine as wire, or finer: {', '.join(finer)}")
        check_switch(feedback, "feedback")
        check_whole(dense_below, "dense_below", 0)
        ways = Ways((DENSE, form), auto)
        super().__init__(
            group, Residuals(), ways, hadamard,
            mode=mode, deadline=deadline, policy=policy, budget=budget, sync_every=sync_every,
        )  # fmt: skip
        self._wire, self._dense_below = form, dense_below
        self._feedback = form == "int4" if feedback is None else bool(feedback)
        self._answer = answer or ("int8" if form == "int4" and self._feedback else form)
        self._summary = QuantSummary()

    def summary(self) -> QuantSummary:
        """What was lost, spent and sent so far."""
        return replace(self._summary)

    # How

    def _start(
        self, tensor: torch.Tensor, options: BucketOptions, key: BucketKey, parts: Callable[[], Sequence[Part]]
    ) -> Any:
        went = Went(key, self._way(tensor, key, options.wire))
        mode, deadline = options.mode, options.deadline
        if went.way != DENSE:
            went.work = self._start_quantised(tensor, went.way, mode, deadline, key, parts)
        else:
            if self._feedback and tensor.layout is torch.strided and tensor.dtype in FLOATS:
                self._give_back(tensor, self._parts_of(tensor, key, parts))
            went.work = self.group.allreduce_with(tensor, mode=mode, deadline=deadline)
        self._went.append(went)
        return went.work

    def _way(self, tensor: torch.Tensor, key: BucketKey, asked: str | None) -> str:
        """Alike on all ranks."""
        job = self.group.job
        if job is None or tensor.layout is not torch.strided or tensor.dtype not in FLOATS:
            return DENSE
        if asked is not None:
            return asked
        if tensor.nbytes < self._dense_below or (self._ways.auto and NATIVE not in job.collectives):
            return DENSE
        return self._ways.choice(key).way() if self._ways.auto else self._wire

    def _start_quantised(
        self,
        tensor: torch.Tensor,
        form: str,
        mode: str | None,
        deadline: Duration | None,
        key: BucketKey,
        parts: Callable[[], Sequence[Part]],
    ) -> Any:
        group, residual = self.group, None
        if self._feedback and group.job is not None:
            known = self._parts_of(tensor, key, parts)
            residual = self._memories.of(known, group.job)
            if residual is None:  # no room for it: then nothing may stay here either
                self._give_back(tensor, known)
        answer = FORMS[min(FORMS.index(form), FORMS.index(self._answer))]
        wire = Wire(form, answer, residual)
        work = group.allreduce_with(tensor, mode=mode, deadline=deadline, wire=wire)
        hosts = max(2, group.size())
        self._summary.quantised_ops += 1
        self._summary.wire_bytes += wire_bytes(tensor.numel(), form, answer, hosts=min(hosts, 64))
        self._summary.dense_bytes += wire_bytes(tensor.nbytes // 4, hosts=min(hosts, 64))
        return work

    def _took(self, way: str, seconds: float) -> None:
        if way == DENSE:
            self._summary.dense_s += seconds
        else:
            self._summary.quantised_s += seconds


def quantize_hook(state: QuantState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket that travels in few bits an element, as its |state| says.

        model.register_comm_hook(QuantState("int8"), quantize_hook)

    Raises InvalidArgument for another state, and as `allreduce_hook`.
    """
    if not isinstance(state, QuantState):
        raise InvalidArgument("state", state, "a QuantState")
    return allreduce_hook(state, bucket)
