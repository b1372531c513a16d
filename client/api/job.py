# SPDX-License-Identifier: Apache-2.0
"""`connect` and the Job that it returns: what a training program uses.

A Job outlives the daemon. When the daemon is lost, the op that notices raises DaemonLost; the next one attaches again
within its own deadline, takes the number at which the job stands by then, and goes on.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ultima.api.beside import settings_beside
from ultima.api.coded import Coded
from ultima.api.collectives import Collectives
from ultima.api.connection import LEAVE_TIMEOUT_S, Connection
from ultima.api.handle import Handle
from ultima.api.partial import Partial
from ultima.api.requests import allreduce_op
from ultima.api.sparse_reduce import SparseReduce
from ultima.api.sync import SyncResult, sync_model
from ultima.base.buffers import AnyArray
from ultima.base.durations import Duration, duration_s
from ultima.base.errors import InvalidArgument, Unsupported
from ultima.base.foreign import intruder
from ultima.base.receipt import Host, Receipt
from ultima.base.warning import UltimaWarning
from ultima.base.words import (
    COLLECTIVE_BY_CODE,
)
from ultima.coded import Plan
from ultima.session.attachment import Connector
from ultima.session.op import Op
from ultima.session.session import SessionState
from ultima.settings import config
from ultima.settings.config import Settings, Size
from ultima.settings.options import Options
from ultima.v1.installed import missing

SLOT_OPS = ("avg", "sum")

# The fake of `ultima.testing` puts itself here for the time of a test.
connector_override: Connector | None = None


def connect(
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    socket: str | os.PathLike[str] | None = None,
    rendezvous: str | None = None,
    *,
    rank_addresses: Sequence[str] | None = None,
    timeout: Duration | None = None,
    deadline: Duration | None = None,
    arena: Size | None = None,
    bucket_bytes_max: Size | None = None,
    rate: Size | None = None,
    reconnect: bool | None = None,
    options: Options | None = None,
) -> Job:
    """Attaches to the daemon on this host and joins a job as one of its ranks; returns when all ranks are there.

    What is not given comes from the environment, as torchrun sets it, and then from defaults;
    `ultima.settings.config` has the table.

    job: name of the job, the same on all ranks.
    rank, world_size: this process's number among the ranks, and how many ranks there are.
    socket: path of the daemon's socket.
    rendezvous: "host:port" of the daemon of rank 0; "" when all ranks are on this host.
    rank_addresses: in the place of a rendezvous, one "address:port" per rank.
    timeout: limit of all that this call does (60 s).
    deadline: deadline of ops for which none is named ("none" for no deadline). Without this argument they follow what
        the engine measures, and take 30 s at most.
    arena: bytes of memory to share with the daemon.
    bucket_bytes_max: bytes of the largest array.
    rate: this job's share of the link, in bytes per second.
    reconnect: whether an op after DaemonLost attaches again.
    options: how the job behaves, the same on all ranks.

    Raises InvalidArgument, DaemonUnavailable (after 2 s of trying), JoinTimeout (not all ranks came), JoinRefused,
    Desync (another rank gave another world size or option), ResourceExhausted or ProtocolError; never later than
    `timeout` and 50 ms.
    """
    settings = config.resolve(
        os.environ,
        job=job,
        rank=rank,
        world_size=world_size,
        socket=socket,
        rendezvous=rendezvous,
        rank_addresses=rank_addresses,
        timeout=timeout,
        deadline=deadline,
        arena=arena,
        bucket_bytes_max=bucket_bytes_max,
        rate=rate,
        reconnect=reconnect,
        options=options,
    )
    return Job(settings, connector_override or _daemon_connector())


def _daemon_connector() -> Connector:
    # Imported only here: grpc and the extension are not needed for the fake, nor for reading receipts.
    try:
        from ultima.session.attach import DaemonConnector
    except ModuleNotFoundError as error:
        if said := missing(error, "ultima.connect"):
            raise ModuleNotFoundError(said, name=error.name) from None
        raise
    if clash := intruder():
        warnings.warn(str(clash), UltimaWarning, stacklevel=3)
    return DaemonConnector()


class Job(Collectives, SparseReduce):
    """One rank of a job. It is made by `connect`, is a context manager, and is safe for several threads.

    Ops are numbered in the order of the calls, and the n-th call of one rank meets the n-th call of the others. So all
    ranks must make the same calls in the same order; a program with several threads must keep this order itself. A call
    that is refused here (InvalidArgument, ResourceExhausted) uses no number.
    """

    def __init__(self, settings: Settings, connector: Connector) -> None:
        self._connection = Connection(settings, connector)
        self._slot = Partial(self._connection) if self.policy not in ("none", "coded") else None
        self._coded = Coded(self._connection, settings.world_size) if self.policy == "coded" else None

    # What it is

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._connection.settings.job

    @property
    def rank(self) -> int:
        """Number of this process among the ranks, from 0."""
        return self._connection.settings.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._connection.settings.world_size

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts of the job and the ranks on each, by host index."""
        return self._connection.session.hosts

    @property
    def host_index(self) -> int:
        """Index of the host that this rank is on."""
        return self._connection.session.host_index

    @property
    def bucket_bytes_max(self) -> int:
        """Largest array that this job takes, in bytes."""
        return self._connection.session.bucket_bytes_max

    @property
    def arena_bytes(self) -> int:
        """Shared memory of this rank, in bytes."""
        return self._connection.session.arena.nbytes

    @property
    def arena_free_bytes(self) -> int:
        """Largest array that `empty` has room for now, in bytes."""
        return self._connection.session.arena.free_bytes()[1]

    @property
    def lanes(self) -> int:
        """Engines of the daemon that share the work: op n goes through lane n modulo their number."""
        return self._connection.session.lanes

    @property
    def deadline_s(self) -> float:
        """Deadline of ops for which none is named, in seconds. If you named none to `connect` either, it is the latest
        end of such an op."""
        return self._connection.settings.deadline_s

    @property
    def options(self) -> dict[str, str]:
        """The job's options in force when this rank joined, in words. `ultima status` has the present ones."""
        return dict(self._connection.session.options)

    @property
    def policy(self) -> str:
        """What starts the job's ops, when this rank joined: "none" (every rank calls every op), or "full", "solo",
        "majority", "quorum", "probe", "seeded", "coded" (`connect(options=Options(policy=...))`)."""
        return self._connection.policy

    @property
    def connected(self) -> bool:
        """False once the daemon is known to be lost, or the job is closed. This looks whether the daemon hung up
        between two ops: then the next op attaches again, where it would have raised DaemonLost. True does not say that
        the daemon is well: only an op finds out.
        """
        return self._connection.session.look() is SessionState.OPEN

    @property
    def reconnects(self) -> int:
        """How often this job has attached again after it lost its daemon."""
        return self._connection.reconnects

    # What it does

    def allreduce(
        self,
        array: Any,
        op: str = "avg",
        *,
        deadline: Duration | None = None,
        out: Any = None,
        mode: str | None = None,
        dtype: Any = None,
        agree: bool = False,
        step: int | None = None,
    ) -> Receipt:
        """Reduces `array` element by element over all ranks, in place or into `out`, and says what went into it.

        array: a numpy array, anything with a buffer, or a CPU tensor. It has any shape, is C-contiguous, and holds
            float32, float64, float16, bfloat16, int32 or int64, the same on all ranks. An array from `empty` is not
            copied.
        op: "avg" (over the ranks that arrived, element by element) or "sum"; "min", "max" and "prod" in reliable mode.
        deadline: seconds (0 to ten years), a timedelta, or text such as "250ms"; the job's by default. The call returns
            by then, give or take 50 ms, whatever happens to network, peers and daemon, if `array` and `out` lie outside
            the arena: there a daemon that is stopped may take 10 s more. If neither names one, it is
            30 s, and less in bounded mode once 20 ops have shown how long one takes: 8 t_b and 1 s after the last host
            called it. "none": the same, but there is no limit before that, and in reliable mode only one of 24 h.
        out: where the result goes instead; it has the number of elements and the type of `array`, and does not overlap
            it.
        mode: "bounded" (default: lost data is repaired as long as there is time), "best_effort" (nothing is repaired)
            or "reliable" (complete, or DeadlineExceeded; the default of min, max and prod).
        dtype: type of the elements, where `array` cannot say it: bytes, or bfloat16 held as uint16.
        agree: all ranks that return hold identical bytes. Ranks may still be missing from the average, but a rank that
            cannot have all of the result that the others have raises DeadlineExceeded or RanksGone. Must be the same on
            all ranks.
        step: in a job with a policy, number of the op that `array` is for: see `Partial.allreduce`, which this then is
            (op "avg": with its divisor, "sum": with none).

        Raises InvalidArgument or ResourceExhausted (before anything is sent), Desync, DaemonLost, DaemonUnavailable,
        ClosedHandle and ForkedHandle; in reliable mode and with agree also DeadlineExceeded and RanksGone. After an
        exception an array outside the arena is untouched.
        """
        if self._coded is not None:
            self._check_full("allreduce")
        if self._slot is None and step is None:
            return self.allreduce_async(
                array, op, deadline=deadline, out=out, mode=mode, dtype=dtype, agree=agree
            ).wait()
        slot = self.partial()
        if op not in SLOT_OPS:
            raise InvalidArgument("op", op, "one of " + ", ".join(SLOT_OPS) + " in a job with a policy")
        if agree:
            raise InvalidArgument("agree", agree, "False in a job with a policy")
        divisor = "none" if op == "sum" else None
        return slot.reduce(array, divisor, step=step, deadline=deadline, out=out, mode=mode, dtype=dtype)

    def allreduce_async(
        self,
        array: Any,
        op: str = "avg",
        *,
        deadline: Duration | None = None,
        out: Any = None,
        mode: str | None = None,
        dtype: Any = None,
        agree: bool = False,
    ) -> Handle:
        """Starts what `allreduce` does and returns a Handle. The arrays belong to the op until the handle says that it
        ended.

        Any number of ops may be under way. Up to 64 are handed to the daemon, as memory allows; beyond that this call
        waits for room, within the op's own deadline. Raises as `allreduce`, except for what only waiting shows.
        """
        now = time.monotonic_ns()
        return self._launch(allreduce_op(self._connection, now, array, op, deadline, out, mode, dtype, agree))

    def partial(self, *, local_reduce: str | None = None, divisor: str | None = None) -> Partial:
        """In a job with a policy: this rank's slot, in which it leaves gradients for ops; it is always the same object.
        The arguments hold from its next call.

        local_reduce: how gradients are combined that no op has taken yet: "sum" (eager-SGD's) or "weighted" (RNA's, the
            default of the policies "probe" and "seeded"; that of the others is "sum").
        divisor: what the sum over the ranks is divided by: all ranks ("world", eager-SGD's), the ranks that are in it
            ("contributors", RNA's, the default of "probe" and "seeded"; that of the others is "world"), or nothing
            ("none"). It must be the same on all ranks.

        Raises InvalidArgument, also in a job without a policy.
        """
        if self._slot is None:
            self._check_full("partial")
            allowed = "another one, to have slots: connect(options=Options(policy=...))"
            raise InvalidArgument("policy", self.policy, allowed)
        self._slot.configure(local_reduce, divisor)
        return self._slot

    def coded(self, plan: Plan | None = None) -> Coded:
        """In a coded job: what gives this rank's part of each step and gets its result; it is always the same object.

        plan: the plan by which this rank computes; it must be the one of the job. Raises InvalidArgument.
        """
        if self._coded is None:
            raise InvalidArgument("policy", self.policy, "coded: connect(options=Options(**plan.options()))")
        self._coded.check(plan)
        return self._coded

    def _launch(self, request: Op) -> Handle:
        name = COLLECTIVE_BY_CODE[request.layout.collective]
        self._check_full("allreduce_async" if name == "allreduce" else name)
        return Handle(self._connection.begin(request), request)

    def beside(
        self,
        suffix: str,
        options: Options,
        *,
        ranks: Sequence[int] | None = None,
        arena_bytes: int = 0,
        bucket_bytes: int = 0,
    ) -> Job:
        """Joins a further job on the same daemons, named as this one and `suffix`; returns when all ranks are there.

        options: beyond those of this job. ranks: of this job, ascending, this one among them; all for None. In the new
        job they are numbered from 0. arena_bytes: shared memory that is needed; never less than this job has.
        bucket_bytes: of the largest array, if it is known; the job's memory is counted by it.

        All of `ranks` must call, with the same arguments. Raises as `connect`, and InvalidArgument for other ranks or a
        name that grows too long.
        """
        settings, hosts = self._connection.settings, self.hosts
        made = settings_beside(settings, hosts, suffix, options, ranks, arena_bytes, bucket_bytes)
        return Job(made, self._connection.connector)

    def sync_model(self, tensors: Any, *, deadline: Duration | None = None) -> SyncResult:
        """Makes the tensors the same on all ranks: each becomes its average over all of them, reliably.

        tensors: a torch module (its parameters and buffers), a mapping of names to tensors such as a state_dict, or
            any iterable of writable, C-contiguous arrays and CPU tensors; the same in number, order, size and type on
            all ranks.
        deadline: of the whole call; the job's by default.

        Says how far apart the ranks were. Raises as `allreduce` in reliable mode; then some tensors may be averaged
        already, and a second call on all ranks repairs that.
        """
        self._check_full("sync_model")
        return sync_model(self, tensors, self._connection.settings.deadline_s if deadline is None else deadline)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> AnyArray:
        """A numpy array in the shared memory, with arbitrary content. Such an array is reduced without copies.

        bfloat16 comes as uint16. The memory is given back when the last array over it is gone; the array itself stays
        usable after the job is closed or its daemon lost. Do not use it in a forked child. Raises ResourceExhausted
        when the arena is full, InvalidArgument for what is no dtype or no shape, and ForkedHandle.
        """
        return self._connection.empty(shape, dtype)

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether memory of this process lies in the shared memory, so that it is reduced without copies.

        False for memory of an earlier session, after the daemon was lost.
        """
        return self._connection.session.arena.offset_of(address, nbytes) is not None

    def close(self, timeout: Duration = LEAVE_TIMEOUT_S) -> None:
        """Leaves the job, within `timeout`. Ops under way end with ClosedHandle here and go on without this rank
        elsewhere.

        Idempotent. In a forked child it does nothing: the parent's session goes on.
        """
        seconds = duration_s(timeout, "timeout")
        self._connection.close(seconds)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._connection.closed else self._connection.session.state.name.lower()
        return f"<ultima.Job {self.name!r} rank {self.rank} of {self.world_size}, {state}>"

    # How

    def _check_full(self, call: str) -> None:
        """Raises Unsupported in a job with a policy."""
        if self._coded is not None:
            raise Unsupported(call, "a coded job has coded() alone; open a second job, without a policy, beside it")
        if self._slot is not None:
            text = "a job with a policy has allreduce and partial() alone; open a second job, without one, beside it"
            raise Unsupported(call, text)
