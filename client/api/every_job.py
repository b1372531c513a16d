# SPDX-License-Identifier: Apache-2.0
"""What each kind of job has: its facts, memory that it shares with the daemon, and an end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

from ultima.api.connection import LEAVE_TIMEOUT_S, Connection
from ultima.base.buffers import AnyArray
from ultima.base.durations import Duration, duration_s
from ultima.base.receipt import Host
from ultima.session.session import SessionState

Self = TypeVar("Self", bound="EveryJob")


class EveryJob:
    """The part of a Job that is told here; `job.Job`, `job.PartialJob` and `job.CodedJob` are the whole."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # What it is

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._connection.settings.job

    @property
    def rank(self) -> int:
        """Number of this process among the ranks, from 0."""
        return self._connection.session.rank

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
    def next_op_seq(self) -> int | None:
        """The number that the next op of this rank gets (`Receipt.op_seq`). None while one of its ops is under way,
        when the daemon is lost or the job closed, and while the other ranks are ahead after a lost daemon.

        In a job with a policy what is counted are the calls, not the ops.
        """
        session = self._connection.session
        return session.standing if session.look() is SessionState.OPEN else None

    @property
    def reconnects(self) -> int:
        """How often this job has attached again after it lost its daemon."""
        return self._connection.reconnects

    # Its memory and its end

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> AnyArray:
        """A numpy array in the shared memory, with arbitrary content. Such an array is reduced without copies.

        bfloat16 comes as uint16. The memory is given back when the last array over it is gone; the array itself stays
        usable after the job is closed or its daemon lost. Do not use it in a forked child. Raises ResourceExhausted
        when the arena is full, InvalidArgument for what is no dtype or no shape, and ForkedHandle.
        """
        return self._connection.empty(shape, dtype)

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether `nbytes` bytes of this process from `address` on (`array.ctypes.data`, `tensor.data_ptr()`) lie in
        the shared memory, so that they are reduced without copies.

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

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._connection.closed else self._connection.session.state.name.lower()
        return f"<ultima.{type(self).__name__} {self.name!r} rank {self.rank} of {self.world_size}, {state}>"
