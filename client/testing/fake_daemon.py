# SPDX-License-Identifier: Apache-2.0
"""A daemon for your own tests: in this process, without a network, with faults on request.

    def test_my_training_step() -> None:
        with FakeDaemon(world_size=4, peer=lambda rank, op_seq, mine: mine) as daemon, daemon.installed():
            my_training_step()                      # calls ultima.connect() somewhere inside

    with FakeDaemon(world_size=2) as daemon, daemon.connect(0) as a, daemon.connect(1) as b:
        handles = [a.allreduce_async(x), b.allreduce_async(y)]
        receipts = [handle.wait() for handle in handles]

Only the daemon and the network are fake. What averages, waits, gives up and writes receipts is the C core that runs in
production: an engine for each pretended host, and queues between them in place of sockets. What the client does with
memory, deadlines and lost daemons is the real code, too. One FakeDaemon stands for the daemons of all hosts. Unlike a
real one, it lets a rank join before the others are there.

A host that is missing takes its shard along, as in production: nobody adds that part up, and each rank keeps its own
values there, until the others know that the host is gone.

The clock of the fake runs with the real one, so a program that sleeps meets what it would meet in production. The
network's own times, which are microseconds, take no time. `advance` lets hours pass at once: deadlines, delays and
timers that lie in between come due in their order, and nobody sleeps.

Jobs with a policy work, too: the first rank that connects says it, `connect(0, options=Options(policy="majority"))`.
The others' `peer` then is asked when a rank gives something for an op, and stands for a rank that gives at the same
time, or for one that does not (None).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ultima.api import job
from ultima.api.job import Job
from ultima.base.errors import DaemonUnavailable, Desync, InvalidArgument, JoinRefused
from ultima.base.receipt import Host
from ultima.base.words import NEVER
from ultima.session import forks
from ultima.session.attachment import Attachment
from ultima.settings import config, options
from ultima.settings.config import Settings
from ultima.testing.cluster import Cluster, Terms
from ultima.testing.stand_in import Peer
from ultima.testing.trainer import FakeRings, Trainer
from ultima.v1.job_options import OPTIONS
from ultima.v1.limits import HOSTS_MAX, LOCAL_RANKS_MAX
from ultima.v1.wires import WIRES


class FakeDaemon:
    """Serves one job of `world_size` ranks; a context manager.

    peer: called as peer(rank, op_seq, mine) for each rank that nobody connected, with the array of the rank that called
        the op first; returns that rank's array, or None when it is to be missing. In coded jobs `op_seq` is the step.
        Without it, ops wait for such ranks until their deadline.
    ranks_per_host: how the ranks are spread over pretended hosts, at most 64 of them.
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
        if ranks_per_host > LOCAL_RANKS_MAX:
            raise InvalidArgument("ranks_per_host", ranks_per_host, f"1 to {LOCAL_RANKS_MAX}")
        if world_size > HOSTS_MAX * ranks_per_host:
            raise InvalidArgument("world_size", world_size, f"at most {HOSTS_MAX} hosts of {ranks_per_host} ranks")
        self.world_size = world_size
        self.hosts = tuple(
            Host(index, f"127.0.0.{index + 1}", tuple(range(low, min(low + ranks_per_host, world_size))), wires=WIRES)
            for index, low in enumerate(range(0, world_size, ranks_per_host))
        )
        """The pretended hosts, by host index."""
        self.bucket_bytes_max = bucket_bytes_max
        self._peer = peer
        self._changed = threading.Condition()
        self._cluster: Cluster | None = None
        # Ranks that were attached at some time.
        self._known: set[int] = set()
        self._left_out: set[int] = set()
        self._delays_ns: dict[int, int] = {}
        self._way_ns = 0
        self._lost = 0.0
        self._next_op_seq = 0
        self._said: dict[str, int] = {}
        self._in_force: dict[str, int] = {}
        """What `set_options` has changed of it."""
        self._skipped_ns = 0
        self._running = True
        self._frozen = False
        self._stopping = False
        self._wake_ns = NEVER
        self._thread = threading.Thread(target=self._run, name="ultima-fake-daemon", daemon=True)
        self._thread.start()
        forks.follow(self)

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

    def set_options(self, *pairs: str) -> None:
        """Does what `ultima set JOB KEY=VALUE ...` does: `set_options("policy=solo", "tau=3")`. All hosts go by it from
        the next op on. Raises InvalidArgument for what a running job cannot change, and while no rank is attached."""
        changes = options.changes(list(pairs))
        with self._changed:
            if self._cluster is None:
                raise InvalidArgument("set_options", " ".join(pairs), "once a rank is attached")
            self._cluster.change(changes)
            self._in_force |= changes
            self._step()

    def leave_out(self, *ranks: int) -> None:
        """From now on nothing of these ranks reaches anyone, as if their hosts were cut off; no arguments: all are
        back. What a rank asks for that is left out alone among those of its host waits until it is back.
        """
        with self._changed:
            self._left_out = set(ranks)
            self._set_faults()

    def delay(self, rank: int, seconds: float) -> None:
        """From now on what `rank` gives and asks for takes `seconds` to arrive at its daemon."""
        with self._changed:
            self._delays_ns[rank] = int(seconds * 1e9)

    def op_takes(self, seconds: float) -> None:
        """From now on an op takes at least `seconds` from its start to its end, because each of the two ways that its
        bytes go between hosts takes half of it; at first no time."""
        with self._changed:
            self._way_ns = int(seconds * 1e9 / 2)
            self._set_faults()

    def lose(self, share: float) -> None:
        """From now on such a share of all packets between hosts is lost, 0 to 1; at first none. Which ones is the same
        in each run."""
        if not 0 <= share <= 1:
            raise InvalidArgument("share", share, "0 to 1")
        with self._changed:
            self._lost = share
            self._set_faults()

    def advance(self, seconds: float) -> None:
        """Lets `seconds` pass without anybody sleeping: all that is due by then happens, in its order. Deadlines of ops
        that are under way are so much nearer; those of later calls count from the new time."""
        if seconds < 0:
            raise InvalidArgument("seconds", seconds, "0 or more")
        with self._changed:
            self._skipped_ns += int(seconds * 1e9)
            self._step()

    def freeze(self) -> None:
        """Stops answering, as on SIGSTOP."""
        with self._changed:
            self._frozen = True

    def thaw(self) -> None:
        """Answers again, with what was asked meanwhile."""
        with self._changed:
            self._frozen = False
            self._step()
            self._changed.notify_all()

    def kill(self) -> None:
        """Ends as on SIGKILL: all sessions are hung up, none can be opened until `restart`."""
        with self._changed:
            self._running = False
            if self._cluster is not None:
                for trainer in self._cluster.trainers():
                    trainer.hang_up()
                self._next_op_seq = self._cluster.close()
                self._cluster = None
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
        if settings.world_size != self.world_size:
            raise InvalidArgument("world_size", settings.world_size, f"{self.world_size}, as the fake has")
        with self._changed:
            self._wait_until_it_answers(until_ns, patience_ns)
            self._step()  # who is gone by now is no longer attached
            said = {row.field: settings.options.get(row.field, row.default) for row in OPTIONS}
            cluster = self._cluster_of(said, settings.arena_bytes)
            if any(trainer.seat.rank == settings.rank for trainer in cluster.trainers()):
                raise JoinRefused(f"rank {settings.rank} is attached already")
            self._known.add(settings.rank)
            trainer = cluster.attach(settings.rank, settings.arena_bytes)
            self._step()
            words = {row.name: row.write((said | self._in_force)[row.field]) for row in options.TABLE}
            whole = words["policy"] == "none"
            return Attachment(
                rings=FakeRings(
                    trainer,
                    self._submitted,
                    self.hosts,
                    settings.rank,
                    self.world_size,
                    next_op_seq=trainer.seat.first_op_seq,
                    partial=not whole,
                ),
                arena=trainer.seat.arena,
                lifeline=trainer.lifeline,
                bell=trainer.bell,
                hosts=self.hosts,
                host_index=trainer.seat.host,
                rank=settings.rank,
                next_op_seq=trainer.seat.first_op_seq,
                bucket_bytes_max=min(self.bucket_bytes_max, settings.bucket_bytes_max or self.bucket_bytes_max),
                leave=lambda _timeout_s, _drain_s, _op: self._leave(trainer),
                options=words,
                sparse=whole and words["algorithm"] == "tar" and words["deterministic"] == "no",
            )

    def after_fork(self) -> None:
        """In a forked child: the engines are the parent's, and for the child there is no daemon."""
        self._changed = threading.Condition()
        self._cluster, self._running = None, False

    # How

    def _cluster_of(self, said: dict[str, int], arena_bytes: int) -> Cluster:
        """The first rank says how the job behaves; the others must say the same."""
        for row in options.TABLE if self._said else ():
            if said[row.field] != self._said[row.field]:
                raise Desync(None, row.name, row.write(said[row.field]), row.write(self._said[row.field]))
        if self._cluster is None:
            terms = Terms(self.hosts, said, self.bucket_bytes_max, self._peer, arena_bytes)
            self._cluster = Cluster(terms, self._next_op_seq, self._known, self._now_ns())
            self._said, self._in_force = said, {}
            self._set_faults()
        return self._cluster

    def _set_faults(self) -> None:
        if self._cluster is not None:
            self._cluster.set_faults(self._way_ns, self._lost, self._left_out)
            self._step()

    def _submitted(self, trainer: Trainer) -> None:
        """A rank has asked for something."""
        with self._changed:
            trainer.seat.rung(self._now_ns() + self._delays_ns.get(trainer.seat.rank, 0))
            if self._peer is None:
                self._step()  # in the caller's thread: nobody has to be woken
            else:
                self._wake_ns = 0  # whose code must not run under the caller's locks
            self._changed.notify_all()

    def _wait_until_it_answers(self, until_ns: int, patience_ns: int) -> None:
        while not self._running or self._frozen:
            limit = until_ns if self._running else min(until_ns, patience_ns)
            left = (limit - time.monotonic_ns()) / 1e9
            if left <= 0 or self._stopping:
                raise DaemonUnavailable("the fake daemon is " + ("frozen" if self._running else "not running"))
            self._changed.wait(left)

    def _leave(self, trainer: Trainer) -> None:
        with self._changed:
            if self._frozen:
                return  # it finds out later, by the life line
            if self._cluster is not None and trainer in self._cluster.trainers():
                self._cluster.detach(trainer)
            trainer.hang_up()
            self._step()

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._skipped_ns

    def _run(self) -> None:
        with self._changed:
            while not self._stopping:
                now_ns = self._now_ns()
                if self._wake_ns <= now_ns:
                    try:
                        self._step()
                    except BaseException:  # of the test's peer: whoever waits for it hears of it at once
                        self.kill()
                        raise
                else:
                    self._changed.wait(None if self._wake_ns == NEVER else (self._wake_ns - now_ns) / 1e9)

    def _step(self) -> None:
        """Does what is due, and notes when something will be next. Under the lock."""
        self._wake_ns = NEVER
        if self._cluster is None or self._frozen:
            return
        self._wake_ns = self._cluster.run(self._now_ns(), self._skipped_ns)
        dead = [trainer for trainer in self._cluster.trainers() if not trainer.alive()]
        for trainer in dead:  # what they asked for last has been heard
            self._cluster.detach(trainer)
        if dead:
            self._wake_ns = self._cluster.run(self._now_ns(), self._skipped_ns)
