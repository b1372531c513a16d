# SPDX-License-Identifier: Apache-2.0
"""Collectives that are another one in a different form: a list of tensors instead of one, several at once.

Gloo has no all-to-all of lists and no coalesced forms of the collectives on single tensors; torch's functional
collectives, FSDP and the coalescing manager ask for them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, ReduceScatterOptions, Work

from ultima.torch.backend.delegate import DelegatingProcessGroup
from ultima.torch.backend.elements import Copies, check_written
from ultima.torch.backend.work import Part, TorchPart


class FormsProcessGroup(DelegatingProcessGroup):
    """A process group with all forms of each collective. A subclass says what a Work is."""

    _coalesced: list[Work] | None = None

    @abstractmethod
    def _work(self, tensors: list[Any], parts: Sequence[Part], copies: Copies, asynchronous: bool) -> Work:
        """A Work of |parts|, whose result is |tensors| once |copies| were made; started when |asynchronous|."""

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """Sends inputs[r] to rank r and receives outputs[r] from it; any shapes, of one dtype."""
        opts = opts if isinstance(opts, AllToAllOptions) else AllToAllOptions()
        check_written(*outputs)
        given = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
        taken = given.new_empty(sum(tensor.numel() for tensor in outputs))
        sizes = [tensor.numel() for tensor in outputs]
        work = self.alltoall_base(taken, given, sizes, [tensor.numel() for tensor in inputs], opts)
        copies = [
            (target.detach(), source.view(target.shape))
            for target, source in zip(outputs, torch.split(taken, sizes), strict=True)
        ]
        return self._work(outputs, [TorchPart(work)], copies, opts.asyncOp)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """`all_gather_single` of each pair, with one Work for all."""
        opts = opts or AllgatherOptions()
        works = [self.all_gather_single(out, into, opts) for out, into in zip(outputs, inputs, strict=True)]
        return self._joined(outputs, works, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """`reduce_scatter_single` of each pair, with one Work for all."""
        opts = opts or ReduceScatterOptions()
        works = [self.reduce_scatter_single(out, into, opts) for out, into in zip(outputs, inputs, strict=True)]
        return self._joined(outputs, works, opts)

    # The same by their older names.
    allgather_into_tensor_coalesced: Any = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced: Any = reduce_scatter_single_coalesced

    def _start_coalescing(self, device: Any) -> None:
        """What is called until `_end_coalescing` is under way at once; that returns the Work of all of it."""
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return self._joined([], works, AllToAllOptions())

    def _joined(self, tensors: list[Any], works: list[Work], opts: Any) -> Work:
        """One Work for several."""
        return self._collected(self._work(tensors, [TorchPart(work) for work in works], [], opts.asyncOp))

    def _collected(self, work: Work) -> Work:
        """|work|, which `_end_coalescing` waits for: each form for several tensors at once gives its Work here."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work
