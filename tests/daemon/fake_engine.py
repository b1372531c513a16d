# SPDX-License-Identifier: Apache-2.0
"""An engine that moves nothing, for tests of the control plane: it keeps the books and is strict about its contract.

What the real engine would corrupt or deny, this one refuses loudly: a session whose memory is unmapped too early, a
peer that is connected before anyone listens, a job that is removed twice. Ops open and end when the test says so, and
tell what it says: which path is broken, how long a rank was late, that a peer lies. No engine could be brought to
most of that in a unit test. Which jobs can be, which ranks are drawn and what a receipt is, the core itself says.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ultima._native import ffi, lib
from ultima.daemon.base.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from ultima.daemon.base.options import Options
from ultima.daemon.engine.engine import (
    NEVER,
    NOBODY,
    EngineConfig,
    EngineInfo,
    Event,
    EventKind,
    JobConfig,
    JobSnapshot,
    PeerStats,
    Region,
    SessionMemory,
    Snapshot,
    Status,
)
from ultima.daemon.engine.epochs import EngineEpoch, Wishes
from ultima.daemon.engine.joins import NativeJoins
from ultima.daemon.engine.pauses import Reached
from ultima.daemon.engine.seal import Seal
from ultima.daemon.engine.structs import job_config
from ultima.v1.limits import JOBS_MAX
from ultima.v1.wires import WIRES

SUBMISSION_BYTES, COMPLETION_BYTES = ffi.sizeof("ut_submission_ring"), ffi.sizeof("ut_completion_ring")
JOB_BYTES = 1 << 20


@dataclass
class FakePath:
    """Both directions to one peer host, as the engine would hold them."""

    rx_cid: int = 0
    tx_cid: int = 0
    address: tuple[str, int, int] = ("", 0, 0)
    rx_seal: Seal | None = None
    tx_seal: Seal | None = None
    up: bool = False
    connects: int = 0
    asked: int = 0  # how often for a sign of life
    absences: int = 0
    renewals: list[tuple[bool, Seal]] = field(default_factory=list)
    """Fresh secrets, and whether they are for packets to the peer."""
    busy: bool = False
    """The fresh secret before is not in use yet."""


@dataclass
class FakeJob:
    """What was asked for one job."""

    config: JobConfig
    paths: dict[int, FakePath] = field(default_factory=dict)
    next_op_seq: int = 0
    receipts: list[Any] = field(default_factory=list)
    """What the engine has kept, oldest first."""
    given: int = 0
    """Places whose ranks have something for the next op."""
    open: bool = False
    """An op is under way."""
    activated: list[int] = field(default_factory=list)
    """Ops that this host started."""
    awaited: set[int] = field(default_factory=set)
    """Hosts that go and come back."""
    held: bool = False
    unsettled: int = 0
    floor: int | None = None
    """The oldest op that has not ended; None: all have."""
    epochs: list[EngineEpoch] = field(default_factory=list)
    holds: list[tuple[int, int]] = field(default_factory=list)
    wishes: tuple[int, ...] = (0, 0, 0, 0)
    """What it would choose for each option."""
    blocked: set[int] = field(default_factory=set)
    relayed: tuple[set[int], set[int]] = (set(), set())
    """Hosts to blame for that UDP does not get through."""

    @property
    def tuned(self) -> list[Options]:
        """The options that epochs brought, each where they are others than before."""
        known = [self.config.options, *(epoch.settings for epoch in self.epochs)]
        return [new for old, new in itertools.pairwise(known) if new != old]


@dataclass
class FakeSession:
    """One attached trainer."""

    job: int
    memory: SessionMemory
    first_op_seq: int


class FakeEngine(NativeJoins):
    """See the module. `Engine` says what the methods mean. Portions are joined by the rules of the core."""

    _ffi, _lib = ffi, lib

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.jobs: dict[int, FakeJob] = {}
        self.sessions: dict[int, FakeSession] = {}
        self.removed_sessions: list[int] = []
        self.regions: set[int] = set()
        self.strange: list[tuple[bool, str, int, int, int]] = []
        self.hellos: list[tuple[bool, str, int, bytes]] = []
        self.closed = False
        self.snapshots = 0
        """How many were taken."""
        self.on_activate: Callable[[int, int], None] = lambda job, op_seq: None
        """What the word of an op that starts here does elsewhere."""
        self.open_since = self.open_deadline = NEVER
        self.fail_session_add = False
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: deque[Event] = deque()
        self.gathers = False
        """Ops that end wake nobody; whoever asks is told."""
        self.wires = WIRES
        self.rate_bytes_per_s = 0
        """The most that its host may send in all."""
        self._rung = False
        self._cids = itertools.count(0x1000 * (1 + id(self) % 0xFFFF))

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            data_port=self.config.data_port or 40001,
            feedback_port=self.config.feedback_port or 40002,
            packet_bytes=self.config.packet_bytes or 1472,
            receive_buffer_bytes=self.config.receive_buffer_bytes or 8 << 20,
            send_buffer_bytes=self.config.send_buffer_bytes or 512 << 10,
            gso=self.config.gso,
            gro=self.config.gro,
            simd="plain",
            event_fd=self._event_fd,
            submission_bytes=SUBMISSION_BYTES,
            completion_bytes=COMPLETION_BYTES,
            wires=self.wires,
        )

    def now(self) -> int:
        return time.monotonic_ns()

    def stats(self) -> dict[str, int]:
        return {"oldest_open_ns": self.open_since, "oldest_deadline_ns": self.open_deadline, "progress": 1}

    def snapshot(self) -> Snapshot:
        self.snapshots += 1
        return Snapshot(self.info, self.stats(), {number: self._job_now(job) for number, job in self.jobs.items()})

    @staticmethod
    def _job_now(job: FakeJob) -> JobSnapshot:
        ups = [job.paths[host].up if host in job.paths else False for host in range(job.config.hosts)]
        path = {"srtt_ns": 1_500_000, "sent_bytes": 10, "received_bytes": 20, "window_bytes": 64 << 10}
        peers = [PeerStats(up, **path) for up in ups]
        peers[job.config.self_index] = PeerStats()
        return JobSnapshot(job.next_op_seq, tuple(peers))

    def send_at_most(self, rate_bytes_per_s: int) -> None:
        self.rate_bytes_per_s = rate_bytes_per_s
        logging.getLogger("engine").info("sends at most %d bytes/s", rate_bytes_per_s)

    def job_bytes(self, config: JobConfig) -> int:
        return JOB_BYTES

    def job_add(self, config: JobConfig) -> int:
        _check_job(config, self.info.packet_bytes)
        free = [number for number in range(JOBS_MAX) if number not in self.jobs]
        if not free:
            raise ResourceExhausted(f"job_add: {JOBS_MAX} jobs are there")
        self.jobs[free[0]] = FakeJob(config, next_op_seq=config.first_op_seq)
        return free[0]

    def options_fit(self, job: int, options: Options) -> None:
        config = self._job(job).config
        _check_job(replace(config, options=options), self.info.packet_bytes)
        if options.partial != config.options.partial:
            raise InvalidArgument("options_fit: partial or not cannot be changed")

    def job_remove(self, job: int) -> None:
        self._job(job)
        del self.jobs[job]
        for number, session in list(self.sessions.items()):
            if session.job == job:
                del self.sessions[number]

    def _job(self, job: int) -> FakeJob:
        if job not in self.jobs:
            raise NotFound(f"job {job}")
        return self.jobs[job]

    def path(self, job: int, host: int) -> FakePath:
        """The path to a host; made at the first touch, as the engine's memory is."""
        config = self._job(job).config
        if not 0 <= host < config.hosts or host == config.self_index:
            raise NotFound(f"host {host}")
        return self.jobs[job].paths.setdefault(host, FakePath())

    def suite(self, name: str) -> str:
        return "aes-128-gcm" if name == "auto" else name

    def _check_seal(self, job: int, seal: Seal | None) -> None:
        if (seal is not None) is not self._job(job).config.sealed:
            raise InvalidArgument("seal: must be given for each path of a sealed job, and for no other")

    def peer_listen(self, job: int, host: int, seal: Seal | None = None) -> int:
        path = self.path(job, host)
        self._check_seal(job, seal)
        path.rx_seal = seal
        path.rx_cid = next(self._cids) & 0xFFFFFFFF
        return path.rx_cid

    def peer_connect(
        self, job: int, host: int, address: str, data_port: int, feedback_port: int, cid: int, seal: Seal | None = None
    ) -> None:
        path = self.path(job, host)
        self._check_seal(job, seal)
        if seal is not None and seal == path.tx_seal:
            raise InvalidArgument("peer_connect: sealed with this secret before")
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise InvalidArgument(f"peer_connect to {address}: not a numeric address") from None
        if not path.rx_cid:
            raise InvalidArgument("connected before anyone listens")
        path.tx_cid, path.address, path.up = cid, (address, data_port, feedback_port), True
        path.tx_seal = seal
        path.connects += 1

    def peer_renew(self, job: int, host: int, out: bool, cid: int, seal: Seal) -> bool:
        path = self.path(job, host)
        self._check_seal(job, seal)
        if cid != (path.tx_cid if out else path.rx_cid):
            raise NotFound(f"peer_renew: connection id {cid} is of another path")
        if not path.busy:
            path.renewals.append((out, seal))
        return not path.busy

    def peer_absent(self, job: int, host: int) -> None:
        path = self.path(job, host)
        path.up = False
        path.absences += 1

    def peer_ask(self, job: int, host: int) -> None:
        self.path(job, host).asked += 1

    def peer_await(self, job: int, host: int, on: bool) -> None:
        self.path(job, host)
        (self.jobs[job].awaited.add if on else self.jobs[job].awaited.discard)(host)

    def job_hold(self, job: int) -> None:
        self._job(job).held = True

    def job_place(self, job: int) -> Reached:
        fake = self._job(job)
        return Reached(fake.next_op_seq if fake.floor is None else fake.floor, fake.unsettled)

    def epoch(self, job: int, epoch: EngineEpoch) -> None:
        known = self._job(job).epochs
        assert not known or epoch.number > known[-1].number, "the core refuses what is not newer"
        assert epoch.number and epoch.owners and not epoch.owners & ~epoch.members
        known.append(epoch)

    def epoch_hold(self, job: int, op_seq: int, until_ns: int) -> None:
        self._job(job).holds.append((op_seq, until_ns))

    def epoch_wishes(self, job: int) -> Wishes:
        return Wishes(self._job(job).next_op_seq, self._job(job).wishes)

    def peers_blocked(self, job: int, hosts: Iterable[int]) -> None:
        self._job(job).blocked = set(hosts)

    def peer_route(self, job: int, host: int, address: str, data_port: int, feedback_port: int) -> None:
        path = self.path(job, host)
        if not path.up:
            raise NotFound(f"peer_route: there is no path to host {host}")
        path.address = (address, data_port, feedback_port)

    def peers_relayed(self, job: int, hosts: Iterable[int], relays: Iterable[int]) -> None:
        self._job(job).relayed = (set(hosts), set(relays))

    def send_hello(self, feedback: bool, address: str, port: int, hello: bytes) -> None:
        self.hellos.append((feedback, address, port, hello))

    def send_strange(self, feedback: bool, address: str, port: int, size: int, count: int) -> int:
        self.strange.append((feedback, address, port, size, count))
        return count

    def next_op_seq(self, job: int) -> int:
        return self._job(job).next_op_seq

    def activate(self, job: int, op_seq: int) -> None:
        fake = self._job(job)
        if op_seq in fake.activated or op_seq < fake.next_op_seq:
            return
        if op_seq != fake.next_op_seq or fake.open:
            raise FailedPrecondition(f"activate: {op_seq} is not the next op, {fake.next_op_seq} is")
        if not fake.given:
            raise FailedPrecondition("activate: nobody has given anything")
        fake.activated.append(op_seq)
        self.op_begins(job, op_seq, fake.config.self_index)
        self.on_activate(job, op_seq)

    def picks(self, seed: int, op_seq: int, world: int, n: int) -> tuple[int, ...]:
        if not 0 <= n <= world:
            raise ValueError(f"n {n}: must be 0 to world, which is {world}")
        ranks = ffi.new("uint32_t[]", max(n, 1))
        lib.ut_picks(seed, op_seq, world, n, ranks)
        return tuple(ranks[0:n])

    def receipt(self, job: int, back: int) -> Any | None:
        kept = self.jobs[job].receipts if job in self.jobs else []
        return kept[-1 - back] if back < len(kept) else None

    def region_map(self, fd: int, size: int) -> Region:
        if not 0 < size <= os.fstat(fd).st_size:
            raise ResourceExhausted(f"region_map: {size} bytes cannot be mapped")
        mapped = mmap.mmap(fd, size)
        self.regions.add(id(mapped))
        return Region(mapped, size)

    def region_unmap(self, region: Region, discard: bool) -> None:
        for session in self.sessions.values():
            memory = session.memory
            assert region not in (memory.submissions, memory.completions, memory.arena), "unmapped under a session"
        self.regions.remove(id(region.address))
        if discard:
            region.address.madvise(mmap.MADV_REMOVE)
        region.address.close()

    def session_add(self, job: int, memory: SessionMemory, first_op_seq: int) -> int:
        if self.fail_session_add:
            raise ResourceExhausted("session_add: as the test wants it")
        places = [session.memory.place for session in self.sessions.values() if session.job == job]
        local_ranks = self._job(job).config.local_ranks
        if len(places) >= local_ranks:
            raise ResourceExhausted("session_add: more sessions than local ranks")
        assert memory.place < local_ranks and memory.place not in places, f"place {memory.place}: {places} are taken"
        number = next(n for n in itertools.count() if n not in self.sessions)
        self.sessions[number] = FakeSession(job, memory, first_op_seq)
        return number

    def session_remove(self, session: int) -> None:
        if session not in self.sessions:
            raise NotFound(f"session {session}")
        del self.sessions[session]
        self.removed_sessions.append(session)

    def poll_event(self) -> Event | None:
        if not self._events:
            return None
        event = self._events.popleft()
        if not self._events and self._rung:
            os.eventfd_read(self._event_fd)
            self._rung = False
        return event

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True
        os.close(self._event_fd)

    # ---- what the test makes happen ----

    @property
    def events_waiting(self) -> int:
        """Events that the daemon has not taken."""
        return len(self._events)

    def emit(self, kind: EventKind, job: int, session: int = NOBODY, host: int = NOBODY, **fields: int) -> None:
        """An event for the daemon."""
        values = {"op_seq": 0, "a": 0, "b": 0, "c": 0} | fields
        self._events.append(Event(int(kind), job, session, host, **values))
        if not self._rung and not (self.gathers and kind in (EventKind.OP_DONE, EventKind.QUANT)):
            os.eventfd_write(self._event_fd, 1)
            self._rung = True

    def give(self, job: int, place: int = 0) -> None:
        """A rank of this host gives something for the next op."""
        fake = self.jobs[job]
        fake.given |= 1 << place
        if not fake.open:
            self.emit(EventKind.READY, job, op_seq=fake.next_op_seq, a=fake.given)

    def op_begins(self, job: int, op_seq: int, initiator: int) -> None:
        """An op starts here; an earlier one that is open ends."""
        fake = self.jobs[job]
        if op_seq >= fake.next_op_seq:
            if fake.open:
                self.op_ends(job)
            self.emit(EventKind.ACTIVATED, job, host=initiator, op_seq=op_seq, a=fake.given)
            fake.next_op_seq, fake.open, fake.given = op_seq + 1, True, 0

    def op_ends(self, job: int) -> None:
        """The open op is over."""
        fake = self.jobs[job]
        if fake.open:
            fake.open = False
            self.emit(EventKind.OP_DONE, job, op_seq=fake.next_op_seq - 1, a=int(Status.COMPLETE), b=1000)
            if fake.given:
                self.emit(EventKind.READY, job, op_seq=fake.next_op_seq, a=fake.given)

    def op_done(self, job: int, status: Status = Status.COMPLETE, elapsed_ns: int = 1000, missing: int = 0) -> None:
        """One op has ended."""
        op_seq = self.jobs[job].next_op_seq
        self.jobs[job].next_op_seq += 1
        self.emit(EventKind.OP_DONE, job, op_seq=op_seq, a=int(status), b=elapsed_ns, c=missing)

    def partial_op(self, job: int, status: Status = Status.COMPLETE, **said: Any) -> None:
        """One op of a partial job has ended; `said` is what `partial_receipt` takes."""
        receipt = partial_receipt(self.jobs[job].next_op_seq, status=status, **said)
        self.jobs[job].receipts.append(receipt)
        self.op_done(job, status)


def _check_job(config: JobConfig, packet_bytes: int) -> None:
    """Asks the core whether such a job can be. Raises InvalidArgument."""
    engine = {"packet_bytes": packet_bytes, "segments_max": 1, "receive_buffer": 8 << 20}
    made = job_config(ffi, lib, replace(config, sealed=False))
    if lib.ut_job_bytes(ffi.new("ut_engine_config *", engine), made) == 0:
        asked = {name: value for name, value in asdict(config).items() if name != "options"} | asdict(config.options)
        raise InvalidArgument("job: one of " + ", ".join(f"{name} {value}" for name, value in asked.items()))


def partial_receipt(
    op_seq: int,
    fresh: dict[int, int],
    stale: dict[int, int] | None = None,
    initiator: int = 0xFFFF,
    waited_ns: int = 0,
    status: Status = Status.COMPLETE,
    opened_us: Sequence[int] = (),
    **fields: int,
) -> Any:
    """A struct ut_receipt, zeros but for what is said; masks of the ranks that were in the op, by host."""
    receipt = ffi.new("ut_receipt *", fields | {"op_seq": op_seq, "status": int(status), "initiator": initiator})
    receipt.waited_ns = waited_ns
    for host, mask in fresh.items():
        receipt.peer[host].fresh = mask
    for host, mask in (stale or {}).items():
        receipt.peer[host].stale = mask
    for host, opened in enumerate(opened_us):
        receipt.peer[host].opened_us = opened
    receipt.included = sum(row.fresh.bit_count() + row.stale.bit_count() for row in receipt.peer)
    return receipt
