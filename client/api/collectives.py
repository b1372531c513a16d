# SPDX-License-Identifier: Apache-2.0
"""The collectives of a Job besides allreduce: what they take, what they give, and the checks before anything is sent.

All are reliable: complete, or an exception that says who is to blame. What is moved and not reduced may be of any type
of fixed size. The arrays of reduce_scatter, all_gather and all_to_all are cut into as many equal shards as there are
ranks.

They are native where every rank has a host of its own, for a host combines its ranks before the network. Where ranks
share hosts all but allreduce and barrier raise Unsupported; `Job.collectives` tells beforehand.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ultima.api.handle import Handle
from ultima.base.buffers import AnyArray, address_of, dtype_named, elements, movable
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument, Unsupported
from ultima.base.receipt import Receipt
from ultima.base.words import BYTES, COLLECTIVES, MODES, OPS, DType
from ultima.session.op import Layout, Op

if TYPE_CHECKING:
    from ultima.api.connection import Connection

_OPS_ALLOWED = "one of " + ", ".join(OPS)

NOTE_MAX = 2**64 - 1
SPARSE = {"allreduce_sparse"}
QUANT = {"allreduce_quant"}
"""No call of its own: see `wire` of allreduce."""


class Collectives:
    """The part of a Job that is told here; `job.Job` is the whole."""

    _connection: Connection

    @property
    def collectives(self) -> frozenset[str]:
        """Names of the collectives that this job can do natively, the same on all ranks: "allreduce" and "barrier"
        always; "broadcast", "all_gather", "reduce_scatter" and "all_to_all" where every rank has a host of its own;
        "allreduce_sparse" where the daemon sums sparse contributions. A PartialJob has "allreduce" alone, a CodedJob
        none."""
        session = self._connection.session
        alone = len(session.hosts) == self._connection.settings.world_size
        always = {"allreduce", "barrier"}
        return frozenset(
            (set(COLLECTIVES) - SPARSE - QUANT if alone else always) | (SPARSE if session.sparse else set())
        )

    def broadcast(self, array: Any, root: int = 0, *, deadline: Duration | None = None, dtype: Any = None) -> Receipt:
        """Gives every rank the content of `array` on rank `root`, in place.

        array: any shape, C-contiguous, of the same number and type of elements on all ranks; written to on all but the
            root. Types that allreduce does not take (bool, uint8, float8, ...) are moved as bytes.
        root: the same on all ranks.
        deadline, dtype: as for `allreduce`.

        The root sends the array less than twice, however many ranks there are. On it this returns when every rank has
        called; the others may still be passing parts on.
        Raises InvalidArgument, Unsupported or ResourceExhausted (before anything is sent); Desync (`field`
        "collective", "root", "count", "dtype"); DeadlineExceeded and RanksGone; DaemonLost, DaemonUnavailable;
        ClosedHandle, ForkedHandle. After an exception an array outside the arena is untouched.
        """
        return self.broadcast_async(array, root, deadline=deadline, dtype=dtype).wait()

    def broadcast_async(
        self, array: Any, root: int = 0, *, deadline: Duration | None = None, dtype: Any = None
    ) -> Handle:
        """Starts what `broadcast` does; see `Job.allreduce_async`."""
        self._need("broadcast")
        size = self._connection.settings.world_size
        if root not in range(size):
            raise InvalidArgument("root", root, f"a rank, 0 to {size - 1}")
        target, kind = _taken(array, dtype, "array", writable=True)
        return self._collect("broadcast", target, target, array, kind, deadline, root=root)

    def all_gather(self, array: Any, out: Any, *, deadline: Duration | None = None, dtype: Any = None) -> Receipt:
        """Puts the arrays of all ranks into `out` on all ranks, one behind the other in the order of ranks.

        array: as for `broadcast`.
        out: world_size times as many elements of the same type, C-contiguous. `array` may be its own place in `out`
            (saves a copy); otherwise the two must not overlap.
        deadline, dtype: as for `allreduce`.

        Raises as `broadcast`.
        """
        return self.all_gather_async(array, out, deadline=deadline, dtype=dtype).wait()

    def all_gather_async(self, array: Any, out: Any, *, deadline: Duration | None = None, dtype: Any = None) -> Handle:
        """Starts what `all_gather` does; see `Job.allreduce_async`."""
        self._need("all_gather")
        source, kind = _taken(array, dtype, "array", writable=False)
        target = _out(out, dtype, kind, source.nbytes * self._connection.settings.world_size)
        at = source.nbytes * self._connection.settings.rank
        _check_apart(source, target, address_of(target) + at)
        return self._collect("all_gather", source, target, out, kind, deadline, src_from=at)

    def reduce_scatter(
        self, array: Any, out: Any, op: str = "avg", *, deadline: Duration | None = None, dtype: Any = None
    ) -> Receipt:
        """Reduces `array` over all ranks and gives each rank its shard of the result: rank r the r-th.

        array: world_size equal shards, C-contiguous, of a type that allreduce takes; the same size and type on all
            ranks.
        out: one shard; it may be the own shard of `array`, otherwise the two must not overlap.
        op: "sum", "avg", "min", "max" or "prod".
        deadline, dtype: as for `allreduce`.

        Raises as `broadcast`.
        """
        return self.reduce_scatter_async(array, out, op, deadline=deadline, dtype=dtype).wait()

    def reduce_scatter_async(
        self, array: Any, out: Any, op: str = "avg", *, deadline: Duration | None = None, dtype: Any = None
    ) -> Handle:
        """Starts what `reduce_scatter` does; see `Job.allreduce_async`."""
        self._need("reduce_scatter")
        redop = OPS.get(op)
        if redop is None:
            raise InvalidArgument("op", op, _OPS_ALLOWED)
        asked = None if dtype is None else dtype_named(dtype)
        source, kind = elements(array, asked, "array", writable=False)
        shard = self._shard(source, kind)
        target = _out(out, dtype, kind, shard)
        at = shard * self._connection.settings.rank
        _check_apart(source, target, address_of(target) - at)
        return self._collect("reduce_scatter", source, target, out, kind, deadline, redop=redop, dst_from=at)

    def all_to_all(self, array: Any, out: Any, *, deadline: Duration | None = None, dtype: Any = None) -> Receipt:
        """Gives rank r the r-th shard of every rank's `array`, in the order of ranks.

        array: world_size equal shards, else as for `broadcast`.
        out: as many elements of the same type, not overlapping `array`.
        deadline, dtype: as for `allreduce`.

        Raises as `broadcast`.
        """
        return self.all_to_all_async(array, out, deadline=deadline, dtype=dtype).wait()

    def all_to_all_async(self, array: Any, out: Any, *, deadline: Duration | None = None, dtype: Any = None) -> Handle:
        """Starts what `all_to_all` does; see `Job.allreduce_async`."""
        self._need("all_to_all")
        source, kind = _taken(array, dtype, "array", writable=False)
        self._shard(source, kind)
        target = _out(out, dtype, kind, source.nbytes)
        _check_apart(source, target, None)
        return self._collect("all_to_all", source, target, out, kind, deadline, apart=True)

    def barrier(self, *, deadline: Duration | None = None, note: int = 0) -> Receipt:
        """Returns when every rank has called it. Ops that are under way are not waited for.

        note: what the ranks meet for, 0 to 2^64 - 1; the same on all ranks.

        Raises Desync when ranks called something else, or with another note (`field` "note"); DeadlineExceeded when
        some rank did not come by `deadline` (the job's by default), RanksGone when it cannot; InvalidArgument; and as
        allreduce.
        """
        return self.barrier_async(deadline=deadline, note=note).wait()

    def barrier_async(self, *, deadline: Duration | None = None, note: int = 0) -> Handle:
        """Starts what `barrier` does; see `Job.allreduce_async`. Its result is nothing of interest."""
        _check_note(note)
        token = np.zeros(len(self._connection.session.hosts), dtype=np.uint8)
        return self._collect("barrier", token, token, None, BYTES, deadline, note=note)

    # How

    def _need(self, collective: str) -> None:
        hosts, world = len(self._connection.session.hosts), self._connection.settings.world_size
        if hosts != world:
            raise Unsupported(
                collective,
                f"{world} ranks share {hosts} hosts, and a host combines its ranks before the network; "
                "run one rank per host, or build it from allreduce",
            )

    def _shard(self, source: AnyArray, kind: DType) -> int:
        """Bytes of one of world_size equal parts."""
        size = self._connection.settings.world_size
        count = source.nbytes // (source.itemsize if kind is BYTES else kind.itemsize)
        if count % size:
            raise InvalidArgument("array", f"{count} elements", f"a multiple of the {size} ranks; pad it")
        return source.nbytes // size

    def _collect(
        self,
        collective: str,
        source: AnyArray,
        target: AnyArray,
        result: object,
        kind: DType,
        deadline: Duration | None,
        *,
        redop: int = 0,
        root: int = 0,
        src_from: int = 0,
        dst_from: int = 0,
        apart: bool = False,
        note: int | None = None,
    ) -> Handle:
        nbytes = max(source.nbytes, target.nbytes)
        layout = Layout(COLLECTIVES[collective], nbytes, src_from, dst_from, apart=apart, root=root, note=note)
        times = self._connection.times(time.monotonic_ns(), deadline)
        return self._launch(Op(source, target, result, kind, redop, MODES["reliable"], times=times, layout=layout))

    def _launch(self, request: Op) -> Handle:
        raise NotImplementedError


def _taken(obj: Any, dtype: Any, field: str, *, writable: bool) -> tuple[AnyArray, DType]:
    if dtype is not None:
        return elements(obj, dtype_named(dtype), field, writable=writable)
    return movable(obj, field, writable=writable)


def _out(out: Any, dtype: Any, kind: DType, nbytes: int) -> AnyArray:
    target, held = _taken(out, dtype, "out", writable=True)
    if held is not kind:
        raise InvalidArgument("out", f"an array of {held.name}", f"{kind.name}, as array")
    if target.nbytes != nbytes:
        raise InvalidArgument("out", f"{target.nbytes // kind.itemsize} elements", f"{nbytes // kind.itemsize}")
    return target


def _check_note(note: Any) -> None:
    if not isinstance(note, int) or not 0 <= note <= NOTE_MAX:
        raise InvalidArgument("note", note, f"an integer, 0 to {NOTE_MAX}")


def _check_apart(source: AnyArray, target: AnyArray, in_place: int | None) -> None:
    """`in_place`: the address of `source` at which the two may overlap."""
    mine, its = address_of(source), address_of(target)
    if mine != in_place and mine < its + target.nbytes and its < mine + source.nbytes:
        allowed = "memory apart from array" + ("" if in_place is None else ", or the own shard's place in the other")
        raise InvalidArgument("out", "memory that overlaps array", allowed)
