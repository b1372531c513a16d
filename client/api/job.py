# SPDX-License-Identifier: Apache-2.0
"""`connect` and the Job that it returns: what a training program uses.

There are three kinds, by the job's option `policy`. Of an ordinary job every rank calls every op (`Job`). In one with a
policy, ops take what ranks have given by then (`PartialJob`); a coded one gives exact sums without its slowest ranks
(`CodedJob`). Each is a `Job`; what a kind has not raises Unsupported or InvalidArgument, and says what to do instead.

A Job outlives the daemon. When the daemon is lost, the op that notices raises DaemonLost; the next one attaches again
within its own deadline, takes the number at which the job stands by then, and goes on.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from ultima.api.beside import settings_beside
from ultima.api.coded import Coded
from ultima.api.collectives import SPARSE, Collectives
from ultima.api.connection import Connection
from ultima.api.elastic import Views, of_members
from ultima.api.elastic_broadcast import ElasticBroadcast
from ultima.api.every_job import EveryJob
from ultima.api.follow import Following
from ultima.api.giving import GivenHandle
from ultima.api.handle import Handle
from ultima.api.newcomers import Newcomers
from ultima.api.partial import Partial
from ultima.api.requests import allreduce_op
from ultima.api.sparse_reduce import SparseReduce
from ultima.api.sync import SyncResult, sync_model
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument, Unsupported
from ultima.base.foreign import intruder
from ultima.base.quant_form import WireWords
from ultima.base.receipt import Receipt
from ultima.base.warning import UltimaWarning
from ultima.coded import Plan
from ultima.session.attachment import Connector
from ultima.session.op import Op
from ultima.settings import config
from ultima.settings.config import Settings, Size
from ultima.settings.options import Options
from ultima.v1.installed import missing

GIFT_OPS = ("avg", "sum")

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
    world: str | None = None,
    least: int | None = None,
    most: int | None = None,
    meet: str | Sequence[str] | None = None,
    split: str | None = None,
    follow: bool | None = None,
    local_world_size: int | None = None,
    local_rank: int | None = None,
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
    arena, bucket_bytes_max: bytes of memory to share with the daemon, and of the largest array.
    rate: this job's share of the link, in bytes per second.
    reconnect: whether an op after DaemonLost attaches again.
    options: how the job behaves, the same on all ranks.
    world: "elastic" for a job whose hosts come and go while it runs: an ElasticJob. It has no rank, world_size and
        rendezvous, but, the same on all hosts,
    least: hosts that an op needs (1), else it ends INSUFFICIENT at its deadline; most: that the job can have (64);
    local_world_size, local_rank: ranks on each host (1), and which of them this is, from 0;
    meet: "host:port" of the daemon where hosts meet, or of up to 8, in a list or with commas between, of which any may
        be down; "" for a job on this host alone;
    split: what becomes of the hosts that a cut network parts from most of the others: "go on" by themselves (the
        default), or "wait", with ops that end INSUFFICIENT, until they meet again;
    follow: whether a rank that comes to a job under way is in no op before it has caught up (`ElasticJob.follow`).

    Raises InvalidArgument, DaemonUnavailable (after 2 s of trying), JoinTimeout (not all ranks came), JoinRefused,
    Desync (another rank gave another world size or option), ResourceExhausted or ProtocolError; never later than
    `timeout` and 50 ms.

    The job is a PartialJob or a CodedJob by its policy, which the environment may name, too (ULTIMA_POLICY).
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
        world=world,
        least=least,
        most=most,
        meet=meet,
        split=split,
        follow=follow,
        local_world_size=local_world_size,
        local_rank=local_rank,
    )
    return open_job(settings, connector_override or _daemon_connector())


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


class Job(EveryJob, Collectives, SparseReduce):
    """One rank of a job. It is made by `connect`, is a context manager, and is safe for several threads.

    Ops are numbered in the order of the calls, and the n-th call of one rank meets the n-th call of the others. So all
    ranks must make the same calls in the same order; a program with several threads must keep this order itself. A call
    that is refused here (InvalidArgument, ResourceExhausted) uses no number.
    """

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
        wire: str | None = None,
        answer: str | None = None,
        rounding: str | None = None,
        feedback: Any = None,
        weight: int | None = None,
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
        step: of a PartialJob alone, see there.
        wire: how a float32 array travels, the same on all ranks: "int16", "int8" or "int4", in whole numbers of so many
            bits with a scale for each 64 elements (int4: 32). By default as it is. That takes .51, .26 and .13 of the
            bytes. The result is the same to the bit on all ranks that have all of it. `op` is "avg" or "sum".
        answer: how results travel then: as `wire` by default, or in a finer form, for what is rounded there no rank can
            mend.
        rounding: of what this rank gives: "random" (without a bias; the default) or "nearest" (with half of the square
            error; the default with `feedback`). Results are rounded at random.
        feedback: a float32 array from `empty`, as large as `array`, of this rank alone, zeros at first. It is added to
            what the rank gives, and then holds what rounding took, so that this is sent with the next op. It belongs to
            the op until that has ended.
        weight: how much what this rank gives counts in an average of floats, a whole number from 0 to 16,777,215, such
            as its samples or tokens; given on all ranks or on none. Each range of the result is the weighted mean of
            the ranks that are in it: `receipt.weight_in` of `receipt.weight_due`. With weight 0 a rank gives nothing
            and takes the result; where all of a range weighs nothing, it is 0.

        Raises InvalidArgument or ResourceExhausted (before anything is sent), Desync, DaemonLost, DaemonUnavailable,
        ClosedHandle and ForkedHandle; in reliable mode and with agree also DeadlineExceeded and RanksGone. After an
        exception an array outside the arena is untouched.
        """
        if step is not None:
            self.partial()
        handle = self.allreduce_async(
            array,
            op,
            deadline=deadline,
            out=out,
            mode=mode,
            dtype=dtype,
            agree=agree,
            wire=wire,
            answer=answer,
            rounding=rounding,
            feedback=feedback,
            weight=weight,
        )
        return handle.wait()

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
        wire: str | None = None,
        answer: str | None = None,
        rounding: str | None = None,
        feedback: Any = None,
        weight: int | None = None,
    ) -> Handle:
        """Starts what `allreduce` does and returns a Handle. The arrays belong to the op until the handle says that it
        ended.

        Any number of ops may be under way. Up to 64 are handed to the daemon, as memory allows; beyond that this call
        waits for room, within the op's own deadline. Raises as `allreduce`, except for what only waiting shows.
        """
        now = time.monotonic_ns()
        request = allreduce_op(
            self._connection,
            now,
            array,
            op,
            deadline=deadline,
            out=out,
            mode=mode,
            dtype=dtype,
            agree=agree,
            wire=wire,
            answer=answer,
            rounding=rounding,
            feedback=feedback,
            weight=weight,
        )
        return self._launch(request)

    def partial(self, *, local_reduce: str | None = None, divisor: str | None = None) -> Partial:
        """See `PartialJob.partial`. Raises InvalidArgument in a job of another kind."""
        allowed = "another one, as in connect(options=Options(policy=...))"
        raise InvalidArgument("policy", self.policy, allowed)

    def coded(self, plan: Plan | None = None) -> Coded:
        """See `CodedJob.coded`. Raises InvalidArgument in a job of another kind."""
        raise InvalidArgument("policy", self.policy, "coded: connect(options=Options(**plan.options()))")

    def _launch(self, request: Op) -> Handle:
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

        All of `ranks` must call, with the same arguments. Where hosts come and go they do so there, too, with seats of
        their own; `ranks` is None. Raises as `connect`, and InvalidArgument for other ranks or a name that is too long.
        """
        settings, hosts = self._connection.settings, self.hosts
        made = settings_beside(
            settings, hosts, suffix, options, ranks=ranks, arena_bytes=arena_bytes, bucket_bytes=bucket_bytes
        )
        return open_job(made, self._connection.connector)

    def sync_model(self, tensors: Any, *, deadline: Duration | None = None) -> SyncResult:
        """Makes the tensors the same on all ranks: each becomes its average over all of them, reliably.

        tensors: a torch module (its parameters and buffers), a mapping of names to tensors such as a state_dict, or
            any iterable of writable, C-contiguous arrays and CPU tensors; the same in number, order, size and type on
            all ranks.
        deadline: of the whole call; the job's by default.

        Says how far apart the ranks were. Raises as `allreduce` in reliable mode; then some tensors may be averaged
        already, and a second call on all ranks repairs that.
        """
        return sync_model(self, tensors, self._connection.settings.deadline_s if deadline is None else deadline)


_Kind = TypeVar("_Kind", bound=type[Job])


def _without(*names: str, instead: str) -> Callable[[_Kind], _Kind]:
    """Decorates a kind of job that lacks these methods: they raise Unsupported, which says what to do `instead`."""

    def lacking(name: str) -> Callable[..., NoReturn]:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise Unsupported(name, instead)

        refuse.__name__, refuse.__doc__ = name, f"Raises Unsupported: {instead}."
        return refuse

    def decorated(kind: _Kind) -> _Kind:
        for name in names:
            setattr(kind, name, lacking(name))
        return kind

    return decorated


_CALLS = ("barrier", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "allreduce_sparse")
_WHERE_HOSTS_COME = ("broadcast", "allreduce_sparse", "allreduce_sparse_async")
_CALLED_BY_ALL = ("allreduce_async", "sync_model", *_CALLS, *(f"{name}_async" for name in _CALLS))


@_without(
    *_CALLED_BY_ALL,
    instead="a job with a policy has only allreduce and partial(); open a second job without a policy beside it",
)
class PartialJob(Job):
    """One rank of a job with a policy: an op takes what ranks have given by the time it starts, and leaves the rest for
    the next one. `policy` says what starts it. It has `allreduce` and `partial`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._face = Partial(connection)

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
        wire: str | None = None,
        answer: str | None = None,
        rounding: str | None = None,
        feedback: Any = None,
        weight: int | None = None,
    ) -> Receipt:
        """Gives `array` for an op and waits for the result: see `Partial.allreduce`, which this is.

        op: "avg" divides by what `partial` was told, "sum" by nothing. agree: False. step: number of the op that
        `array` is for; by default the next one. feedback: a whole array of `Job.empty`; it belongs to the engine until
        an op has taken `array`. weight: None. The rest as for `Job.allreduce`.
        """
        if op not in GIFT_OPS:
            raise InvalidArgument("op", op, "one of " + ", ".join(GIFT_OPS) + " in a job with a policy")
        if agree:
            raise InvalidArgument("agree", agree, "False in a job with a policy")
        if weight is not None:
            raise InvalidArgument("weight", weight, "None in a job with a policy")
        words: WireWords = {"wire": wire, "answer": answer, "rounding": rounding, "feedback": feedback}
        divisor = "none" if op == "sum" else None
        return self._face.reduce(array, divisor, step=step, deadline=deadline, out=out, mode=mode, dtype=dtype, **words)

    def partial(self, *, local_reduce: str | None = None, divisor: str | None = None) -> Partial:
        """Where this rank leaves gradients for ops; it is always the same object. The arguments hold from
        its next call.

        local_reduce: how gradients are combined that no op has taken yet: "sum" (eager-SGD's) or "weighted" (RNA's, the
            default of the policies "probe" and "seeded"; that of the others is "sum").
        divisor: what the sum over the ranks is divided by: all ranks ("world", eager-SGD's), the ranks that are in it
            ("contributors", RNA's, the default of "probe" and "seeded"; that of the others is "world"), or nothing
            ("none"). It must be the same on all ranks.

        Raises InvalidArgument.
        """
        self._face.configure(local_reduce, divisor)
        return self._face

    @property
    def collectives(self) -> frozenset[str]:
        """ "allreduce" alone."""
        return frozenset({"allreduce"})


@_without(
    "allreduce",
    "partial",
    *_CALLED_BY_ALL,
    instead="a coded job has only coded(); open a second job without a policy beside it",
)
class CodedJob(Job):
    """One rank of a coded job: each step has the exact sum over all data, though some ranks may be late. It has
    `coded`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._face = Coded(connection, self.world_size)

    def coded(self, plan: Plan | None = None) -> Coded:
        """What gives this rank's part of each step and gets its result; it is always the same object.

        plan: the plan by which this rank computes; it must be the one of the job. Raises InvalidArgument.
        """
        self._face.check(plan)
        return self._face

    @property
    def collectives(self) -> frozenset[str]:
        """None."""
        return frozenset()


@_without(
    "partial",
    "coded",
    "sync_model",
    *(name for call in _CALLS for name in (call, f"{call}_async") if name not in _WHERE_HOSTS_COME),
    instead="a job whose hosts come and go has only allreduce, allreduce_sparse and broadcast",
)
class ElasticJob(ElasticBroadcast, Views, Job, Newcomers, Following):
    """One rank of a job whose hosts come and go. `rank` is of its host's seat: the number stays as long as the host is
    in, and numbers of those who left are given again. `view` says who is in; averages are over those that are."""

    def __init__(self, connection: Connection) -> None:
        Job.__init__(self, connection)
        Views.__init__(self, connection)
        Newcomers.__init__(self, connection)
        Following.__init__(self, connection)

    def _launch(self, request: Op) -> Handle:
        answered = self._answered(request) if self._outside else None
        if answered is not None:
            return answered
        session, giver = self._connection.begin(request), self._giver
        if giver is None or giver.over:
            return Handle(session, request)
        return GivenHandle(session, request, giver)

    def allreduce_async(self, array: Any, op: str = "avg", **options: Any) -> Handle:
        """As `Job.allreduce_async`, for averages and sums in the modes bounded and best_effort.

        options: all but agree, which is refused by name. `receipt.weight_due` is of the ranks of the view, as far as
        their hosts told.
        """
        if op not in GIFT_OPS:
            raise InvalidArgument("op", op, "one of " + ", ".join(GIFT_OPS) + " where hosts come and go")
        return super().allreduce_async(array, op, **of_members(options, self._connection.settings.mode))

    def allreduce_sparse_async(self, indices: Any, values: Any, out: Any, **options: Any) -> Handle:
        """As `Job.allreduce_sparse_async`, of the ranks of the view, in the modes bounded and best_effort.

        options: all but agree, which is refused by name. A rank that follows has no part in it: Unsupported.
        """
        options = of_members(options, self._connection.settings.mode)
        return super().allreduce_sparse_async(indices, values, out, **options)

    @property
    def collectives(self) -> frozenset[str]:
        """ "allreduce" and "broadcast", and "allreduce_sparse" where the daemon sums sparse contributions."""
        return frozenset({"allreduce", "broadcast"} | (SPARSE if self._connection.session.sparse else set()))


def open_job(settings: Settings, connector: Connector) -> Job:
    """Joins a job; the kind follows from its policy. Raises as `connect`."""
    connection = Connection(settings, connector)
    if settings.least:
        return ElasticJob(connection)
    return {"none": Job, "coded": CodedJob}.get(connection.policy, PartialJob)(connection)
