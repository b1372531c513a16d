# SPDX-License-Identifier: Apache-2.0
"""The process group "ultima" on stock torch: its own collectives, and Gloo for the rest.

A subclass of `ProcessGroup` replaces torch's own wrapper altogether, so it must answer for every collective. Those that
are not here go to an inner Gloo group (delegate.py), which takes as well the all-reduces that Ultima has no elements or
operation for.

How long an op may take: what ULTIMA_MODE is about as long as ULTIMA_DEADLINE says; all else, and that too where the
variable is not set, the timeout of the group (30 minutes unless you say otherwise), so a script that names no deadline
is as patient as it was with Gloo. A timeout on the call itself goes first.

What may be lossy: sums and averages of floating-point numbers, in the mode that ULTIMA_MODE names (bounded). Integers
are counts and indices, MIN, MAX and PRODUCT have no meaning in part: they always go in reliable mode.
"""

from __future__ import annotations

import atexit
import math
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceCoalescedOptions, AllreduceOptions, PrefixStore, Store, Work

import ultima
from ultima.base.durations import DURATION_MAX_S, NO_DEADLINE, Duration, deadline_s
from ultima.base.errors import ClosedHandle, InvalidArgument, UltimaError
from ultima.launch.reach import own_address
from ultima.session.attachment import ENGINE_SHARE
from ultima.settings.config import DEFAULT_SOCKET, mode_named, socket_path
from ultima.torch.backend import coo
from ultima.torch.backend.accelerator import device_of
from ultima.torch.backend.accompanied import Line
from ultima.torch.backend.elements import (
    FLOATS,
    INTEGERS,
    PIECE_BYTES_MAX,
    Copies,
    as_real,
    check_reducible,
    check_written,
    copier,
    dense,
    flat,
    memory_of,
    op_named,
    packed_in_place,
    pieces,
    reducible,
)
from ultima.torch.backend.entries import NATIVE, Ended, Floats, Indices, average_entries
from ultima.torch.backend.interrupt import InterruptWatch
from ultima.torch.backend.mixed import UltimaBackend, group_in, has_other_backends
from ultima.torch.backend.native import NativeProcessGroup
from ultima.torch.backend.order import Order
from ultima.torch.backend.receipt_log import ReceiptLog
from ultima.torch.backend.rendezvous import Meeting, meet
from ultima.torch.backend.staging import StagedWork, Stages
from ultima.torch.backend.wire import Wire, widened
from ultima.torch.backend.work import BY_WORK, Failed, Finishers, Part, Received, UltimaWork

NAME = "ultima"
SMALL_BYTES = 1 << 20
NO_TIMEOUT = timedelta(0)
_open_groups: weakref.WeakSet[UltimaProcessGroup] = weakref.WeakSet()
_watch: InterruptWatch | None = None
_reconfigurable: Callable[..., Any] | None = None


def register(reconfigurable: Callable[..., Any] | None = None) -> None:
    """Makes `init_process_group("ultima")` known to torch. May be called again.

    |reconfigurable|: what makes a group for enable_reconfigure=True, called as UltimaProcessGroup is.
    """
    global _reconfigurable
    _reconfigurable = reconfigurable or _reconfigurable
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
        atexit.register(_close_all)
        os.register_at_fork(after_in_child=_after_fork)


def _create(options: Any, _backend_options: Any) -> Any:
    """Where torch has another backend for some devices, a backend beside it; else a group in the place of torch's."""
    mixed = has_other_backends(depth=1)
    if getattr(options, "enable_reconfigure", False) and _reconfigurable is not None:
        if mixed:
            raise InvalidArgument(
                "enable_reconfigure", True, 'False in a group with several backends, or "ultima" alone'
            )
        return _reconfigurable(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
    group = UltimaProcessGroup(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
    return UltimaBackend(group) if mixed else group


def _close_all() -> None:
    """A script that ends without destroy_process_group: its daemon should hear it from us, not from a broken socket."""
    for group in list(_open_groups):
        with suppress(Exception):
            group.abort()


def _opened(group: UltimaProcessGroup) -> None:
    global _watch
    _open_groups.add(group)
    if _watch is None:
        _watch = InterruptWatch(_close_all)


def _closed(group: UltimaProcessGroup) -> None:
    global _watch
    _open_groups.discard(group)
    if not _open_groups and _watch is not None:
        watch, _watch = _watch, None
        watch.stop()


def _after_fork() -> None:
    if _watch is not None:
        _watch.after_fork()


class UltimaProcessGroup(NativeProcessGroup):
    """Ranks that all-reduce through the daemons of their hosts.

    Raises DaemonError when a rank's daemon does not answer, JoinTimeout when a rank does not come, InvalidArgument
    for a wrong environment variable, all within |timeout|. A group of one rank needs no daemon: Gloo does all its
    work.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, group_name: str) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.log = ReceiptLog(_raises_on_insufficient())
        self._store = store
        self._timeout = timeout
        self._mode = mode_named(os.environ)
        self._deadline_s = _deadline_s()
        self._agree = False
        """Whether ranks that return from a bounded reduction of floats hold the same bytes."""
        self._finishers = Finishers()
        self._order = Order(self._finishers.offer)
        self._line = Line()
        self._stages = Stages(self._finishers.run)
        self._job: ultima.Job | None = None
        reach = ""
        if size > 1:
            # Before Gloo: it would wait for a rank that cannot reach its daemon, and could not say why.
            meeting, self._job = self._join(store, rank, size, group_name)
            # Gloo would believe the addresses that an earlier life of these ranks left in the store.
            store = PrefixStore(meeting.number, store)
            reach = meeting.rank_addresses[rank] if meeting.rank_addresses else ""
        try:
            self._start_gloo(store, rank, size, timeout, own_address(reach))
        except BaseException:
            self._close()
            raise
        _opened(self)

    def _join(self, store: Store, rank: int, size: int, group_name: str) -> tuple[Meeting, ultima.Job]:
        path = socket_path(os.environ.get("ULTIMA_SOCKET") or DEFAULT_SOCKET, "ULTIMA_SOCKET")
        seconds = _seconds(self._timeout)
        meeting = self._meet(store, rank, size, group_name, path, seconds)
        return meeting, ultima.connect(
            job=meeting.job,
            rank=rank,
            world_size=size,
            socket=path,
            rendezvous="",
            rank_addresses=meeting.rank_addresses,
            timeout=seconds,
            bucket_bytes_max=None if os.environ.get("ULTIMA_BUCKET_MAX") else PIECE_BYTES_MAX,
        )

    def _meet(self, store: Store, rank: int, size: int, group_name: str, path: str, seconds: float) -> Meeting:
        """What the ranks of the group agree on; see `rendezvous.meet`."""
        return meet(store, rank, size, group_name, path, seconds)

    # --- what torch calls -------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return NAME

    def get_group_store(self) -> Store:
        return self._store

    @property
    def job(self) -> ultima.Job | None:
        """The job behind this group; None for a group of one rank, and once it was destroyed."""
        return self._job

    @property
    def timeout_s(self) -> float:
        """How patient this group is by torch's word, in seconds."""
        return _seconds(self._timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        self._gloo._set_default_timeout(timeout)

    def allreduce(
        self,
        tensors: list[torch.Tensor] | torch.Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Reduces one tensor in place over all ranks. Any shape; strided memory goes through a contiguous copy.

        Raises InvalidArgument for elements that neither Ultima nor Gloo can reduce, and for those that share memory
        with one another, as after `expand`; ResourceExhausted when a piece of the tensor does not fit into the arena
        (ULTIMA_ARENA). What becomes of the daemon or happens under way (DaemonUnavailable, DaemonLost, Desync,
        DeadlineExceeded) the Work raises.
        """
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        opts = _options(opts, timeout)
        op = op_named(opts.reduceOp)
        job = self._live_job()
        if job is not None and op is not None and len(tensors) == 1 and coo.summed_here(tensors[0], op):
            return self._by_rows(job, tensors[0], op, self._deadline(opts.timeout), opts.asyncOp)
        if job is None or op is None or len(tensors) != 1 or not reducible(tensors[0], op):
            return self._by_gloo(tensors, opts)
        return self._by_ultima(job, tensors, op, self._mode, opts.timeout, asynchronous=opts.asyncOp)

    def allreduce_with(
        self,
        tensor: torch.Tensor,
        op: str = "avg",
        *,
        mode: str | None = None,
        deadline: Duration | None = None,
        wire: Wire | None = None,
    ) -> Any:
        """`allreduce`, started and with what torch's call has no words for: |mode| and |deadline| as in
        `ultima.Job.allreduce`, None for the group's own, and how a dense tensor of floats travels. The same mode and
        forms on all ranks.

        What it gives is an UltimaWork, with receipts, unless the group has one rank; for a dense tensor on CUDA a
        StagedWork, which has them too. Raises as `allreduce`, and InvalidArgument for elements that only Gloo reduces.
        """
        staged = self._staged(tensor, op, mode, deadline, wire)
        if staged is not None:
            return staged
        job = self._live_job()
        if job is None:
            # One rank: its own value is the average, too, for which Gloo has no word.
            return self._by_gloo([tensor], _options(None, None))
        if coo.summed_here(tensor, op):
            return self._by_rows(job, tensor, op, self._deadline(timedelta(0)), True)
        if not reducible(tensor, op):
            allowed = "a dense CPU tensor of " + ", ".join(sorted(map(str, FLOATS | INTEGERS)))
            raise InvalidArgument("tensor", f"a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}", allowed)
        limit = None if deadline is None else deadline_s(deadline, "deadline")
        how = mode or self._mode
        return self._by_ultima(job, [tensor], op, how, timedelta(0), asynchronous=True, seconds=limit, wire=wire)

    def average_entries(
        self,
        tensor: torch.Tensor,
        indices: Indices,
        values: Floats,
        ended: Ended,
        *,
        form: str = "float32",
        down: str | None = None,
        hint: int = 0,
        mode: str | None = None,
        deadline: Duration | None = None,
    ) -> Work:
        """Starts averaging a tensor of which this rank gives some entries (flat, ascending) into |tensor|, of any
        shape, floating-point type and device. In a group of more than one rank. See `entries.average_entries`.
        """
        job = self._live_job()
        if job is None:
            raise ClosedHandle("the process group was destroyed, or has one rank")
        copies: Copies = []
        target = tensor.detach()
        if dense(target) and target.is_contiguous() and target.dtype is torch.float32:
            out = flat(target)
        else:
            check_written(target)
            out = torch.empty(target.numel(), dtype=torch.float32, device="cpu")
            copies.append((target, out.view(target.shape)))
        limit = self._deadline(timedelta(0), True) if deadline is None else deadline_s(deadline, "deadline")
        if NATIVE not in job.collectives:
            limit = self.timeout_s  # an exchange is complete or fails: that is not what a short deadline is for
        parts = average_entries(
            job, out, indices, values, ended, form=form, down=down, hint=hint, mode=mode or self._mode, deadline=limit
        )
        return self._work([tensor], parts, copies, True)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """Reduces several tensors, each as `allreduce` does, with one Work for all."""
        opts = _options(opts, None)
        op = op_named(opts.reduceOp)
        job = self._live_job()
        if job is not None and op is not None and all(reducible(tensor, op) for tensor in tensors):
            work = self._by_ultima(job, tensors, op, self._mode, opts.timeout, asynchronous=opts.asyncOp)
            return self._collected(work)
        works = [self.allreduce([tensor], opts) for tensor in tensors]
        return self._joined(tensors, works, opts)

    def abort(self) -> None:
        self._close()
        if self._inner is not None:
            self._inner.abort()

    def shutdown(self) -> None:
        self._close()
        self._end_gloo()

    # --- how it is done ---------------------------------------------------------------------------------------------

    def _by_gloo(self, tensors: list[torch.Tensor], opts: AllreduceOptions) -> Work:
        check_reducible(tensors)
        return self._call_gloo("allreduce", tensors, opts)

    def _by_ultima(
        self,
        job: ultima.Job,
        tensors: list[torch.Tensor],
        op: str,
        mode: str,
        timeout: timedelta,
        *,
        asynchronous: bool,
        seconds: float | None = None,
        wire: Wire | None = None,
    ) -> Work:
        """|seconds|: the deadline, where the caller has one; else the call's |timeout| and the environment say."""
        handles: list[ultima.Handle] = []
        copies: Copies = []
        runs = [packed_in_place(as_real(tensor), copies) for tensor in tensors]
        if wire is not None:
            runs = [widened(run, copies) for run in runs]
        try:
            for run in runs:
                lossy = op in coo.SUMMED and run.dtype in FLOATS
                how = mode if lossy else "reliable"
                deadline = self._deadline(timeout, lossy) if seconds is None else seconds
                at = 0
                for piece in pieces(run, job.bucket_bytes_max):
                    words = {} if wire is None else wire.words(at, piece.numel())
                    if self._agree and how == "bounded":
                        words["agree"] = True
                    handles.append(job.allreduce_async(memory_of(piece), op=op, mode=how, deadline=deadline, **words))
                    at += piece.numel()
        except BY_WORK as error:
            return self._work(tensors, [*handles, Failed(error)], copies, asynchronous)
        except Exception:
            # The pieces that went out must end before their memory may be touched again.
            if handles:
                with suppress(UltimaError):
                    UltimaWork(tensors, handles, None, self.log, self._finishers).wait()
            raise
        return self._work(tensors, handles, copies, asynchronous)

    def _staged(
        self, tensor: torch.Tensor, op: str, mode: str | None, deadline: Duration | None, wire: Wire | None
    ) -> StagedWork | None:
        """The work of `allreduce_with` where |tensor| is dense, on an accelerator, and has other ranks to meet."""
        device, job = device_of(tensor), self._job
        if device is None or job is None or tensor.layout is not torch.strided:
            return None

        def start(host: torch.Tensor) -> Any:
            return self.allreduce_with(host, op, mode=mode, deadline=deadline, wire=wire)

        return self._stages.of(device).allreduce(tensor, job, start)

    def _by_rows(self, job: ultima.Job, tensor: torch.Tensor, op: str, deadline: Duration, asynchronous: bool) -> Work:
        parts: Sequence[Part]
        finish: Callable[[], None] | None = None
        try:
            parts, finish = coo.start(job, tensor, op, deadline)
        except BY_WORK as error:
            parts = [Failed(error)]
        return self._sent(UltimaWork([tensor], parts, finish, self.log, self._finishers, self._order), asynchronous)

    def _work(self, tensors: list[Any], parts: Sequence[Part], copies: Copies, asynchronous: bool) -> Work:
        finish = copier(copies) if copies else None
        work = UltimaWork(tensors, parts, finish, self.log, self._finishers, self._order)
        return self._sent(work, asynchronous, _small(parts))

    def _received(self, tensors: list[torch.Tensor], work: Work, copies: Copies) -> Work:
        return Received(tensors, work, copier(copies), self.log, self._finishers)

    def _sent(self, work: UltimaWork, asynchronous: bool, small: bool = False) -> Work:
        """|work|, to whose caller it is left to wait or not if |asynchronous|."""
        if asynchronous:
            self._order.join(work)
            if small:
                self._order.watch()
            else:
                work.start()
        return work

    def _live_job(self) -> ultima.Job | None:
        """The job; None for a group of one rank, or one that was destroyed."""
        self._stages.drain()  # ranks number their ops by the order of the calls
        job = self._job
        if job is not None:
            # A look: a daemon that was restarted between two steps costs none of them.
            _ = job.connected
        return job

    def _deadline(self, timeout: timedelta, lossy: bool = False) -> Duration:
        """How long an op may take. Torch says -1 ms when the call named no timeout."""
        said = timeout > NO_TIMEOUT
        seconds = _seconds(timeout if said else self._timeout)
        if not lossy:
            # The engine gives up a little before a deadline, and what is reliable may have all of the timeout.
            return min(seconds / ENGINE_SHARE, DURATION_MAX_S)
        if not said and self._deadline_s is not None:
            seconds = self._deadline_s
        return NO_DEADLINE if math.isinf(seconds) else seconds

    def _close(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            self._stages.close()
            job.close()
        self._order.close()
        self._finishers.close()
        _closed(self)


def group_of(group: dist.ProcessGroup | None) -> UltimaProcessGroup:
    """|group|, or the default one for None; of a group that has several backends, ours. Raises InvalidArgument when it
    is of another backend.
    """
    found = group_if_ours(group)
    if found is None:
        given = dist.group.WORLD if group is None else group
        raise InvalidArgument("group", given, 'a process group of the backend "ultima"')
    return found


def group_if_ours(group: dist.ProcessGroup | None) -> UltimaProcessGroup | None:
    """As `group_of`, but None where that raises."""
    found = dist.group.WORLD if group is None else group
    if isinstance(found, UltimaProcessGroup):
        return found
    return None if found is None else group_in(found)


def _small(parts: Sequence[Part]) -> bool:
    """Whether waking a thread would take longer than what it could take over before somebody waits: copying out."""
    return all(isinstance(part, ultima.Handle) and part.nbytes < SMALL_BYTES for part in parts)


def _raises_on_insufficient() -> bool:
    text = os.environ.get("ULTIMA_ON_INSUFFICIENT") or "warn"
    if text not in ("warn", "raise"):
        raise InvalidArgument("ULTIMA_ON_INSUFFICIENT", text, "warn, raise")
    return text == "raise"


def _deadline_s() -> float | None:
    text = os.environ.get("ULTIMA_DEADLINE")
    return deadline_s(text, "ULTIMA_DEADLINE") if text else None


def _seconds(timeout: timedelta) -> float:
    return min(timeout.total_seconds(), DURATION_MAX_S)


def _options(opts: Any, timeout: timedelta | None) -> AllreduceOptions:
    """The options of any of the three forms in which torch lets a group's `allreduce` be called."""
    if isinstance(opts, AllreduceOptions):
        return opts
    made = AllreduceOptions()
    if isinstance(opts, AllreduceCoalescedOptions):
        made.reduceOp, made.timeout, made.asyncOp = opts.reduceOp, opts.timeout, opts.asyncOp
    elif opts is not None:
        made.reduceOp = opts
    if timeout is not None:
        made.timeout = timeout
    return made
