# SPDX-License-Identifier: Apache-2.0
"""A daemon for your own tests: in this process, without the extension, without a network, with faults on request.

    def test_my_training_step() -> None:
        with FakeDaemon(world_size=4, peer=lambda rank, op_seq, mine: mine) as daemon, daemon.installed():
            my_training_step()                      # calls ultima.connect() somewhere inside

    with FakeDaemon(world_size=2) as daemon, daemon.connect(0) as a, daemon.connect(1) as b:
        handles = [a.allreduce_async(x), b.allreduce_async(y)]
        receipts = [handle.wait() for handle in handles]

Only the daemon is fake: what the client does with memory, deadlines, lost daemons and receipts is the real code. One
FakeDaemon stands for the daemons of all hosts. Unlike a real one, it lets a rank join before the others are there.

Its ranks are whole or missing: it does not lose single packets. A rank that is missing takes only its contribution with
it. Real daemons also miss the shard that its host would have summed, until they know that the host is gone.

Jobs with a policy work, too: the first rank that connects says it, `connect(0, options=Options(policy="majority"))`.
The others' `peer` then is asked when an op is about to start, and stands for a rank that has given, or for one that has
not (None).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from ultima.api import job
from ultima.api.job import Job
from ultima.base.buffers import AnyArray
from ultima.base.errors import DaemonUnavailable, Desync, InvalidArgument, JoinRefused
from ultima.base.receipt import Host
from ultima.base.words import POLICY_BY_CODE, RING_ENTRIES
from ultima.session.arena import Arena
from ultima.session.attachment import Attachment, Completion, SlotWords
from ultima.session.memory import SharedMap
from ultima.session.op import Op
from ultima.settings import config, options
from ultima.settings.config import Settings
from ultima.testing.fake_coded import FakeCoded
from ultima.testing.fake_ops import FakeOp, FakeSession, FakeSubmission
from ultima.testing.fake_slots import FakeSlots
from ultima.v1.job_options import OPTIONS

Peer = Callable[[int, int, AnyArray], AnyArray | None]
PAGE = 4096
# Ops that are remembered for ranks that come late.
OPS_KEPT = 256


class FakeDaemon:
    """Serves one job of `world_size` ranks; a context manager.

    peer: called as peer(rank, op_seq, mine) for each rank that nobody connected, with the array of the lowest rank that
        called the op; returns that rank's array, or None when it is to be missing. Without it, ops wait for such ranks
        until their deadline.
    ranks_per_host: how the ranks are spread over pretended hosts.
    bucket_bytes_max: largest array.
    """

    def __init__(
        self,
        world_size: int = 1,
        *,
        peer: Peer | None = None,
        ranks_per_host: int = 1,
        bucket_bytes_max: int = 1 << 30,
    ) -> None:
        if world_size < 1 or ranks_per_host < 1:
            raise InvalidArgument("world_size, ranks_per_host", (world_size, ranks_per_host), "1 or more")
        self.world_size = world_size
        self.hosts = tuple(
            Host(index, f"127.0.0.{index + 1}", tuple(range(low, min(low + ranks_per_host, world_size))))
            for index, low in enumerate(range(0, world_size, ranks_per_host))
        )
        """The pretended hosts, by host index."""
        self.bucket_bytes_max = bucket_bytes_max
        self._peer = peer
        self._changed = threading.Condition()
        self._sessions: dict[int, FakeSession] = {}
        # Ranks that were attached at some time.
        self._known: set[int] = set()
        self._left_out: set[int] = set()
        self._delays: dict[int, float] = {}
        self._ops: dict[int, FakeOp] = {}
        self._next_op_seq = 0
        self._slots: FakeSlots | FakeCoded | None = None
        self._said: dict[str, int] = {}
        self._op_ns = 0
        self._waiting: list[tuple[FakeSession, FakeSubmission]] = []
        self._running = True
        self._frozen = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ultima-fake-daemon", daemon=True)
        self._thread.start()

    # For tests

    def connect(self, rank: int = 0, **options: Any) -> Job:
        """A Job attached to this fake as `rank`. `options` as for `ultima.connect`; the environment is ignored."""
        settings = config.resolve({}, job="fake", rank=rank, world_size=self.world_size, **options)
        return job.open_job(settings, self)

    @contextlib.contextmanager
    def installed(self) -> Iterator[FakeDaemon]:
        """While in the block, `ultima.connect` of this process attaches to this fake, whatever socket it names.

        Rank and world size come from its arguments and the environment as ever; the world size must be the fake's.
        """
        before = job.connector_override
        job.connector_override = self
        try:
            yield self
        finally:
            job.connector_override = before

    def leave_out(self, *ranks: int) -> None:
        """From now on nothing of these ranks reaches anyone, as if their hosts were cut off; no arguments: all are
        back.
        """
        with self._changed:
            self._left_out = set(ranks)

    def delay(self, rank: int, seconds: float) -> None:
        """From now on the contributions of `rank` take so many `seconds` to arrive."""
        with self._changed:
            self._delays[rank] = seconds

    def op_takes(self, seconds: float) -> None:
        """From now on an op of a job with a policy takes so many `seconds` from start to end; at first none."""
        with self._changed:
            self._op_ns = int(seconds * 1e9)
            if self._slots is not None:
                self._slots.op_ns = self._op_ns

    def freeze(self) -> None:
        """Stops answering, as on SIGSTOP."""
        with self._changed:
            self._frozen = True

    def thaw(self) -> None:
        """Answers again, with what was asked meanwhile."""
        with self._changed:
            self._frozen = False
            self._changed.notify_all()

    def kill(self) -> None:
        """Ends as on SIGKILL: all sessions are hung up, none can be opened until `restart`."""
        with self._changed:
            self._running = False
            for attached in self._sessions.values():
                attached.hang_up()
            self._sessions.clear()
            if self._slots is not None:
                self._slots.abort()
            self._changed.notify_all()

    def restart(self) -> None:
        """Runs again after `kill`; op numbers go on where they were, as the other hosts of a real job know them."""
        with self._changed:
            self._running = True
            self._frozen = False
            self._changed.notify_all()

    def close(self) -> None:
        """Ends for good."""
        self.kill()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> FakeDaemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For the client: a Connector

    def attach(self, settings: Settings, until_ns: int, patience_ns: int, next_op_seq: int | None = None) -> Attachment:
        """See `ultima.session.attachment.Connector`."""
        self._wait_until_it_answers(until_ns, patience_ns)
        if settings.world_size != self.world_size:
            raise InvalidArgument("world_size", settings.world_size, f"{self.world_size}, as the fake has")
        size = -(-settings.arena_bytes // PAGE) * PAGE
        memfd = os.memfd_create("ultima-fake-arena", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memfd, size)
            mapping = SharedMap(memfd, size, writable=True)
        finally:
            os.close(memfd)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setblocking(False)
        bell, rung = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._changed:
            old = self._sessions.get(settings.rank)
            if old is not None and old.alive():
                raise JoinRefused(f"rank {settings.rank} is attached already")
            said = {row.field: settings.options.get(row.field, row.default) for row in OPTIONS}
            self._policy_of(said)
            attached = FakeSession(settings.rank, mapping.bytes, far, rung)
            self._sessions[settings.rank] = attached
            self._known.add(settings.rank)
            limit = min(self.bucket_bytes_max, settings.bucket_bytes_max or self.bucket_bytes_max)
            return Attachment(
                rings=FakeRings(self, attached, mapping),
                arena=Arena(mapping),
                lifeline=near,
                bell=bell,
                hosts=self.hosts,
                host_index=self._host_of(settings.rank),
                rank=settings.rank,
                next_op_seq=self._next_op_seq if self._slots is None else self._slots.next_op,
                bucket_bytes_max=limit,
                leave=lambda _timeout_s: self._leave(attached),
                options={row.name: row.write(said[row.field]) for row in options.TABLE},
                sparse=True,
            )

    def _policy_of(self, said: dict[str, int]) -> None:
        """The first rank says how the job behaves; the others must say the same."""
        self._said = self._said or said
        for row in options.TABLE:
            if row.name in options.PARTIAL and said[row.field] != self._said[row.field]:
                raise Desync(None, row.name, row.write(said[row.field]), row.write(self._said[row.field]))
        if self._slots is None and POLICY_BY_CODE[said["policy"]] != "none":
            coded = POLICY_BY_CODE[said["policy"]] == "coded"
            self._slots = (FakeCoded if coded else FakeSlots)(self.hosts, self.world_size, said)
            self._slots.op_ns = self._op_ns

    def submitted(self, attached: FakeSession, submission: FakeSubmission) -> bool:
        """Takes a |submission| of the rank that is |attached|. False when 64 are outstanding."""
        with self._changed:
            if attached.outstanding >= RING_ENTRIES:
                return False
            attached.outstanding += 1
            if self._slots is not None:
                self._waiting.append((attached, submission))
                self._changed.notify_all()
                return True
            if submission.op_seq >= self._next_op_seq:
                self._next_op_seq = submission.op_seq + 1
            op = self._ops.get(submission.op_seq)
            if op is None:
                op = self._ops[submission.op_seq] = FakeOp(submission.op_seq, self.hosts, self.world_size)
                for number in [number for number in self._ops if number <= submission.op_seq - OPS_KEPT]:
                    del self._ops[number]
            op.join(attached, submission, time.monotonic_ns() + int(self._delays.get(attached.rank, 0.0) * 1e9))
            self._changed.notify_all()
            return True

    # How

    def _wait_until_it_answers(self, until_ns: int, patience_ns: int) -> None:
        with self._changed:
            while not self._running or self._frozen:
                limit = until_ns if self._running else min(until_ns, patience_ns)
                left = (limit - time.monotonic_ns()) / 1e9
                if left <= 0 or self._stopping:
                    raise DaemonUnavailable("the fake daemon is " + ("frozen" if self._running else "not running"))
                self._changed.wait(left)

    def _host_of(self, rank: int) -> int:
        return next(host.index for host in self.hosts if rank in host.ranks)

    def _leave(self, attached: FakeSession) -> None:
        with self._changed:
            if self._sessions.get(attached.rank) is attached:
                del self._sessions[attached.rank]
            attached.hang_up()
            self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            while not self._stopping:
                wake_ns = None
                if self._running and not self._frozen:
                    wake_ns = self._step(time.monotonic_ns())
                self._changed.wait(None if wake_ns is None else max(0.0, (wake_ns - time.monotonic_ns()) / 1e9))

    def _step(self, now_ns: int) -> int | None:
        """Does what is due, and says when something will be next."""
        for rank, attached in list(self._sessions.items()):
            if not attached.alive():
                del self._sessions[rank]
                attached.hang_up()
        # A rank that was here once and is gone will not come.
        absent = self._known - self._sessions.keys()
        if self._slots is not None:
            return self._step_slots(now_ns, self._slots, absent)
        wakes = [op.step(now_ns, absent, self._left_out, self._peer) for op in list(self._ops.values())]
        return min((wake for wake in wakes if wake is not None), default=None)

    def _step_slots(self, now_ns: int, slots: FakeSlots | FakeCoded, absent: set[int]) -> int | None:
        heard, self._waiting = self._waiting, []
        for attached, submission in heard:
            if self._sessions.get(attached.rank) is attached:
                arrives_ns = now_ns + int(self._delays.get(attached.rank, 0.0) * 1e9)
                slots.submit(attached, submission, arrives_ns, attached.rank in self._left_out)
                slots.step(now_ns, self._sessions, absent, self._left_out, self._peer)
        return slots.step(now_ns, self._sessions, absent, self._left_out, self._peer)


class FakeRings:
    """The rings of one session with a FakeDaemon."""

    lanes = 1

    def __init__(self, daemon: FakeDaemon, attached: FakeSession, mapping: SharedMap) -> None:
        self._daemon = daemon
        self._session = attached
        self._mapping = mapping

    def portions_of(self, op: Op) -> int:
        """See `ultima.session.attachment.Rings`."""
        return 1

    def have_room(self, op: Op) -> bool:
        """See `ultima.session.attachment.Rings`."""
        return self._session.outstanding < RING_ENTRIES

    def submit(self, op: Op) -> bool:
        """See `ultima.session.attachment.Rings`."""
        return self._daemon.submitted(self._session, FakeSubmission.of(op, self._daemon.world_size))

    def take(self) -> Completion | None:
        """See `ultima.session.attachment.Rings`."""
        try:
            completion = self._session.completions.popleft()
        except IndexError:
            return None
        self._session.outstanding -= 1
        return completion

    def words(self) -> SlotWords:
        """See `ultima.session.attachment.Rings`."""
        return self._session.words

    def after_fork(self) -> None:
        """See `ultima.session.attachment.Rings`; the arena's mapping is looked after by the arena."""

    def close(self) -> None:
        """See `ultima.session.attachment.Rings`; there is nothing."""
