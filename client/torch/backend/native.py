# SPDX-License-Identifier: Apache-2.0
"""The collectives besides all-reduce that Ultima does itself, always in reliable mode.

Every rank must choose alike between Ultima and Gloo, or one would wait for a packet and another for a connection. So
the choice looks only at what is the same on all ranks: the job, the form of the call, sizes and types. All-to-all with
sizes of its own for each rank is Gloo's for that reason, even where they happen to be equal.

What is only moved may be of any type. Strided memory and lists of tensors go through one contiguous copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceScatterOptions,
    Work,
)

import ultima
from ultima.base.errors import DeadlineExceeded, Desync
from ultima.torch.backend.accelerator import devices_of
from ultima.torch.backend.accompanied import Accompanied, Line, in_words, note_of
from ultima.torch.backend.delegate import DELEGATED, OF_THE_HOST, PEER_TO_PEER, WITHOUT_FUTURE
from ultima.torch.backend.elements import (
    PIECE_BYTES_MAX,
    Copies,
    as_real,
    check_reducible,
    check_written,
    dense,
    flat,
    op_named,
    packed,
    packed_in_place,
    pieces,
    plain,
    reducible,
)
from ultima.torch.backend.forms import FormsProcessGroup
from ultima.torch.backend.work import Part, TorchPart


class NativeProcessGroup(FormsProcessGroup):
    """A process group that asks its job first and Gloo second. A subclass has the job.

    Torch's stubs know one of the overloaded forms of each method; here all of them are taken, hence `Any` and the
    comments for mypy.
    """

    _line: Line

    def _live_job(self) -> ultima.Job | None:
        """The job; None for a group of one rank, or one that was destroyed."""
        raise NotImplementedError

    def _deadline(self, timeout: timedelta) -> Any:
        """How long an op may take, as `ultima` wants it, when its call said |timeout|."""
        raise NotImplementedError

    def _received(self, tensors: list[torch.Tensor], work: Work, copies: Copies) -> Work:
        """A Work of its own whose result is |tensors| once torch's |work| has ended and |copies| were made."""
        raise NotImplementedError

    def _call_gloo(self, name: str, *args: Any, **named: Any) -> Work:
        """Gloo's collective |name|, once the ranks have met to do the same. Gloo takes memory for a run of elements,
        whatever the strides: it gets only such memory. What comes first among the arguments is what it writes.
        """
        given = (*args, *named.values())
        on_host = name in OF_THE_HOST and bool(devices_of(given))
        if name in PEER_TO_PEER:
            return self._with_a_peer(name, args, named) if on_host else super()._call_gloo(name, *args, **named)
        opts = next((each for each in given if hasattr(each, "asyncOp")), None)
        result, copies = args[0] if args and args[0] is not opts else [], Copies()
        taken = [plain(each, None if at else copies, on_host) for at, each in enumerate(args)]
        more = {
            word: plain(each, None if word.startswith("input") else copies, on_host) for word, each in named.items()
        }
        begin, job = partial(super()._call_gloo, name, *taken, **more), self._live_job()
        if job is None and not copies and DELEGATED.get(name, name) not in WITHOUT_FUTURE:
            return begin()
        if job is None:
            part: Part = TorchPart(begin())
        else:
            deadline, call = self._deadline(timedelta(0) if opts is None else opts.timeout), DELEGATED.get(name, name)
            met = job.barrier_async(deadline=deadline, note=note_of(call, given))
            part = Accompanied(call, met, begin, self._line, devices_of(given))
        return self._work(
            [result] if isinstance(result, torch.Tensor) else result, [part], copies, opts is None or opts.asyncOp
        )

    def _with_a_peer(self, name: str, args: Sequence[Any], named: dict[str, Any]) -> Work:
        """Sends or receives a tensor on an accelerator, through memory of the host."""
        copies = None if name == "send" else Copies()
        taken = [plain(each, copies, on_host=True) for each in args]
        more = {word: plain(each, copies, on_host=True) for word, each in named.items()}
        work = super()._call_gloo(name, *taken, **more)
        return work if copies is None else self._received([target for target, _ in copies], work, copies)

    def broadcast(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Work:  # type: ignore[override]
        """Gives every rank the tensor of rank |opts.rootRank|, in place."""
        if not isinstance(opts, BroadcastOptions) or len(tensors) != 1 or not dense(tensors[0]):
            return super().broadcast(tensors, opts, *more, **named)
        job = self._job_for("broadcast", 0, tensors[0])
        copies: Copies = []
        run = packed_in_place(tensors[0], copies)
        if job is None:
            # Gloo does not know every type.
            return self._work(
                tensors, [TorchPart(super().broadcast([run.view(torch.uint8)], opts))], copies, opts.asyncOp
            )
        deadline = self._deadline(opts.timeout)
        handles = [
            job.broadcast_async(piece, opts.rootRank, deadline=deadline) for piece in pieces(run, job.bucket_bytes_max)
        ]
        return self._work(tensors, handles, copies, opts.asyncOp)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, **named: Any) -> Work:
        """Puts the tensors of all ranks one behind the other into |output|, of world size times as many elements."""
        opts = opts or AllgatherOptions()
        job = self._job_for("all_gather", 1, output, input)
        if job is None or output.dtype != input.dtype or output.numel() != input.numel() * self.size():
            return super().all_gather_single(output, input, opts, **named)
        copies: Copies = []
        handle = job.all_gather_async(flat(input), packed(output, copies), deadline=self._deadline(opts.timeout))
        return self._work([output], [handle], copies, opts.asyncOp)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any, **named: Any) -> Work:  # type: ignore[override]
        """`all_gather_single` into a list of tensors of one size; Gloo says what is wrong with others."""
        if isinstance(opts, AllgatherOptions) and len(outputs) == len(inputs) == 1:
            mine, theirs = inputs[0], outputs[0]
            job = self._job_for("all_gather", self.size(), mine, *theirs)
            if job is not None and len(theirs) == self.size() and _alike(mine, theirs):
                check_written(*theirs)
                whole = mine.new_empty((self.size(), *mine.shape))
                handle = job.all_gather_async(flat(mine), whole.view(-1), deadline=self._deadline(opts.timeout))
                copies = [(tensor.detach(), row) for tensor, row in zip(theirs, whole, strict=True)]
                return self._work(outputs, [handle], copies, opts.asyncOp)
        return super().allgather(outputs, inputs, opts, *more, **named)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, **named: Any) -> Work:  # type: ignore[override]
        """Reduces |input| over all ranks and puts this rank's equal part of it into |output|."""
        opts = opts or ReduceScatterOptions()
        op = op_named(opts.reduceOp)
        job = self._live_job()
        fits = output.dtype == input.dtype and input.numel() == output.numel() * self.size()
        if job is None or op is None or not fits or not dense(output) or not reducible(input, op):
            check_reducible([input])
            return super().reduce_scatter_single(output, input, opts, **named)
        copies: Copies = []
        deadline = self._deadline(opts.timeout)
        if self._job_for("reduce_scatter", 1, input, output) is not None:
            run, into = as_real(flat(input)), as_real(packed(output, copies))
            return self._work(
                [output], [job.reduce_scatter_async(run, into, op, deadline=deadline)], copies, opts.asyncOp
            )
        # As an all-reduce of which each rank keeps its part; Gloo does no other.
        check_written(output)
        whole = input.detach().reshape(self.size(), -1).clone()
        handles = [
            job.allreduce_async(piece, op, mode="reliable", deadline=deadline)
            for piece in pieces(as_real(whole).view(-1), job.bucket_bytes_max)
        ]
        copies.append((output.detach(), whole[self.rank()].view(output.shape)))
        return self._work([output], handles, copies, opts.asyncOp)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any, **named: Any) -> Work:  # type: ignore[override]
        """`reduce_scatter_single` of a list of tensors, of equal sizes; else by Gloo."""
        if isinstance(opts, ReduceScatterOptions) and len(outputs) == len(inputs) == 1:
            mine, theirs = outputs[0], inputs[0]
            if len(theirs) == self.size() and dense(mine, *theirs) and _alike(mine, theirs):
                return self.reduce_scatter_single(mine, torch.stack([part.detach() for part in theirs]), opts)
        return super().reduce_scatter(outputs, inputs, opts, *more, **named)

    def reduce(self, tensors: Any, *args: Any, **named: Any) -> Work:  # type: ignore[override]
        """Reduces a tensor to one rank: by Gloo."""
        check_reducible([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        return super().reduce(tensors, *args, **named)

    def alltoall_base(  # type: ignore[override]
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
        **named: Any,
    ) -> Work:
        """Gives rank r the r-th part of |input|: equal parts by Ultima, those of given sizes by Gloo."""
        opts = opts or AllToAllOptions()
        job = self._job_for("all_to_all", 1, input, output)
        equal = not output_split_sizes and not input_split_sizes and input.numel() % self.size() == 0
        if job is None or not equal or output.numel() != input.numel() or output.dtype != input.dtype:
            return super().alltoall_base(output, input, output_split_sizes, input_split_sizes, opts, **named)
        copies: Copies = []
        handle = job.all_to_all_async(flat(input), packed(output, copies), deadline=self._deadline(opts.timeout))
        return self._work([output], [handle], copies, opts.asyncOp)

    def barrier(self, opts: Any = None, *more: Any, **named: Any) -> Work:  # type: ignore[override]
        """Ends when every rank has called it."""
        job = self._live_job()
        if job is None or not isinstance(opts, BarrierOptions):
            return super().barrier(*(() if opts is None else (opts,)), *more, **named)
        return self._work([], [_Barrier(job.barrier_async(deadline=self._deadline(opts.timeout)))], [], opts.asyncOp)

    # The same by their other names.
    _allgather_base: Any = all_gather_single
    _reduce_scatter_base: Any = reduce_scatter_single
    all_to_all_single: Any = alltoall_base

    def _job_for(self, name: str, times: int, *tensors: torch.Tensor) -> ultima.Job | None:
        """The job, where it does the collective |name| with such tensors, in a bucket |times| the first of them."""
        job = self._live_job()
        if job is None or name not in job.collectives or not dense(*tensors):
            return None
        return job if times * tensors[0].nbytes <= min(job.bucket_bytes_max, PIECE_BYTES_MAX) else None


class _Barrier:
    """A barrier under way. Scripts look for the word timeout in what a barrier ends with."""

    def __init__(self, handle: ultima.Handle) -> None:
        self._handle = handle

    def wait(self) -> ultima.Receipt:
        try:
            return self._handle.wait()
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"barrier: its timeout has passed; {error}", error.receipt) from None
        except Desync as error:
            raise in_words(error) from None


def _alike(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    return all(other.shape == tensor.shape and other.dtype == tensor.dtype for other in others)
