# SPDX-License-Identifier: Apache-2.0
"""The C engine as the daemon sees it: a typed face, and the only file of the daemon that imports `ultima._native`.

`Engine` is what the rest of the daemon is written against; the tests put another one behind it. `NativeEngine` is the
UDP driver of transport_c/udp/driver.h. Its calls return in microseconds and take the driver's lock, so they are made
from the event loop directly. What happened comes back as events: `event_fd` is readable when one is to be taken.

Numbers here (jobs, hosts, sessions, connection ids) are the engine's own. Times are CLOCK_MONOTONIC in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ultima.daemon.base.errors import ENGINE_ERRORS, InvalidArgument, StartFailed, StartupError, from_engine
from ultima.daemon.base.options import DEFAULTS, Options
from ultima.daemon.engine.epochs import Epochs, NativeEpochs
from ultima.daemon.engine.events import FIELDS as FIELDS
from ultima.daemon.engine.events import NOBODY as NOBODY
from ultima.daemon.engine.events import Event as Event
from ultima.daemon.engine.events import EventKind as EventKind
from ultima.daemon.engine.events import Status as Status
from ultima.daemon.engine.events import event_of
from ultima.daemon.engine.joins import Joins, NativeJoins
from ultima.daemon.engine.option_struct import NEVER as NEVER
from ultima.daemon.engine.pauses import NativePauses, Pauses
from ultima.daemon.engine.relaying import NativeRelaying, Relaying
from ultima.daemon.engine.reports import PEER_FIELDS as PEER_FIELDS
from ultima.daemon.engine.reports import PeerStats as PeerStats
from ultima.daemon.engine.seal import Seal
from ultima.daemon.engine.sealed import Sealed
from ultima.daemon.engine.structs import job_config
from ultima.v1.wires import WIRES

KEYS_BYTES = 48 << 10  # for the keys of a path: 32 contexts of the cipher library, which says nothing of their size


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine is opened with; zero leaves a choice to it."""

    bind: str
    """Numeric address of its sockets; empty: it has none, and serves jobs of this host alone."""
    data_port: int = 0
    feedback_port: int = 0
    receive_buffer_bytes: int = 0
    send_buffer_bytes: int = 0
    packet_bytes: int = 0
    gso: bool = True
    gro: bool = True
    dscp: int = 0
    """Class with which all its packets are marked (RFC 2474), 0 to 63; 0: none."""
    beside: Engine | None = None
    """An open engine of this host, of the same kind: the two share the host's link. None: this one is the first."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine got, and the sizes that a trainer's memory must have."""

    data_port: int
    feedback_port: int
    packet_bytes: int
    receive_buffer_bytes: int
    send_buffer_bytes: int
    gso: bool
    gro: bool
    simd: str
    event_fd: int
    submission_bytes: int
    completion_bytes: int
    wires: tuple[str, ...] = WIRES
    """Forms of few bits in which it can send and sum gradients."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """One job as the engine needs it: struct ut_job_config."""

    hosts: int
    self_index: int
    local_ranks: int
    packet_bytes: int
    world: int
    """Ranks of the job on all hosts."""
    bucket_bytes_max: int
    rate_bytes_per_s: int
    first_op_seq: int
    options: Options = DEFAULTS
    ranks_of: tuple[int, ...] = ()
    """How many ranks each host has, by its index; empty: `local_ranks` here, and the others spread evenly."""
    sealed: bool = False
    """Its packets are sealed, each path under secrets that peer_listen and peer_connect are given."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """One job at the moment of a snapshot."""

    next_op_seq: int
    """The number that follows the newest op seen here or heard of."""
    peers: tuple[PeerStats, ...]
    """By the index of the host; zeros for the own one."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that status tells of an engine, as it was at one moment."""

    info: EngineInfo
    stats: dict[str, int]
    jobs: dict[int, JobSnapshot]


@dataclass(frozen=True, slots=True)
class Region:
    """Shared memory that this process has mapped. `address` means something to the engine only."""

    address: Any
    size: int


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What a trainer and the engine share: three mapped regions and two bells. The engine keeps duplicates."""

    submissions: Region
    completions: Region
    arena: Region
    submit_fd: int
    """An eventfd that the trainer has too."""
    complete_fd: int
    """The end of a pair of sockets, shut for reading, whose other end the trainer has."""
    place: int = 0
    """Of the rank among those of its job on this host."""


class Engine(Pauses, Epochs, Joins, Relaying, Protocol):
    """One engine: its jobs, their hosts, and the sessions of trainers. Errors are raised as `errors.Refused`."""

    @property
    def info(self) -> EngineInfo:
        """What was granted. `gso` may turn off while running."""

    def now(self) -> int:
        """CLOCK_MONOTONIC in ns."""

    def stats(self) -> dict[str, int]:
        """All counters by their names in ut_stats and ut_driver_stats."""

    def snapshot(self) -> Snapshot:
        """Everything at once: who asks a busy engine one by one waits for a turn of it each time."""

    def send_at_most(self, rate_bytes_per_s: int) -> None:
        """Bounds what all engines of this host send together, with the headers of IP and UDP; 0: they are not bounded.
        In force at once."""

    def job_bytes(self, config: JobConfig) -> int:
        """Bytes of memory that the engine will set aside for such a job."""

    def job_add(self, config: JobConfig) -> int:
        """Adds a job and returns its number."""

    def activate(self, job: int, op_seq: int) -> None:
        """Starts an op of a partial job here; nothing happens if it has started. Refused if it is not the next one
        here, or if no rank of this host has given anything for it."""

    def picks(self, seed: int, op_seq: int, world: int, n: int) -> tuple[int, ...]:
        """The `n` different ranks, of `world`, that are drawn for an op."""

    def job_remove(self, job: int) -> None:
        """Fails what is open, forgets connections and sessions of the job."""

    def suite(self, name: str) -> str:
        """The cipher of that name; of "auto" the one that this CPU computes fastest. Refused if there is none here."""

    def peer_listen(self, job: int, host: int, seal: Seal | None = None) -> int:
        """A fresh connection id for packets from `host`; all state of the path from it is forgotten.

        `seal` is how those are sealed, if those of the job are; its secret must be new.
        """

    def peer_connect(
        self, job: int, host: int, address: str, data_port: int, feedback_port: int, cid: int, seal: Seal | None = None
    ) -> None:
        """Where `host` listens and the id it chose; all state of the path to it is forgotten, and it is present."""

    def peer_renew(self, job: int, host: int, out: bool, cid: int, seal: Seal) -> bool:
        """A fresh secret for packets to (`out`) or from `host`, whose path stands under `cid`; the receiver's first.

        False: the fresh secret before it is not in use yet. Refused if the path is another one by now.
        """

    def peer_absent(self, job: int, host: int) -> None:
        """Ops stop waiting for `host`."""

    def peers_blocked(self, job: int, hosts: Iterable[int]) -> None:
        """Which hosts are to blame for that UDP does not get through, for the receipts; none any more if empty."""

    def send_strange(self, feedback: bool, address: str, port: int, size: int, count: int) -> int:
        """Sends `count` datagrams of `size` bytes that belong to no job, and returns how many the kernel took."""

    def next_op_seq(self, job: int) -> int:
        """The number that follows the newest op seen here or heard of."""

    def receipt(self, job: int, back: int) -> Any | None:
        """The struct ut_receipt of the `back`-th newest op, 0 for the newest, or None; valid until the next call."""

    def region_map(self, fd: int, size: int) -> Region:
        """Maps a memfd, shared and writable. Raises Refused if the kernel does not."""

    def region_unmap(self, region: Region, discard: bool) -> None:
        """Ends a mapping, and takes its pages from all who have it; the session that used it must have been removed."""

    def session_add(self, job: int, memory: SessionMemory, first_op_seq: int) -> int:
        """Attaches a trainer and returns its session."""

    def session_remove(self, session: int) -> None:
        """The trainer is gone: its memory is not touched from here on."""

    def poll_event(self) -> Event | None:
        """The next event, or None."""

    def close(self) -> None:
        """Stops the engine's thread and closes its sockets."""


def extension() -> tuple[Any, Any]:
    """The C extension: ffi and lib. Raises StartupError."""
    try:
        from ultima._native import ffi, lib
    except ImportError as error:
        raise StartupError(f"the C extension cannot be loaded: {error}") from None
    return ffi, lib


class NativeEngine(NativePauses, NativeEpochs, NativeJoins, NativeRelaying):
    """The UDP driver: one engine thread, two sockets. See `Engine` for what each method does."""

    _driver: Any  # declared here, because one instance reads another's

    def __init__(self, config: EngineConfig) -> None:
        """Opens and starts it. Raises StartFailed with the driver's own sentence."""
        self._ffi, self._lib = ffi, lib = extension()
        self._errors = {int(getattr(lib, f"UT_ERR_{name}")): name for name in ENGINE_ERRORS}
        bind = ffi.new("char[]", config.bind.encode()) if config.bind else ffi.NULL
        options = ffi.new(
            "ut_driver_config *",
            {
                "bind": bind,
                "data_port": config.data_port,
                "feedback_port": config.feedback_port,
                "receive_buffer": config.receive_buffer_bytes,
                "send_buffer": config.send_buffer_bytes,
                "packet_bytes": config.packet_bytes,
                "gso": int(config.gso),
                "gro": int(config.gro),
                "dscp": config.dscp,
                "seed": 0,
                "beside": config.beside._driver if isinstance(config.beside, NativeEngine) else ffi.NULL,
            },
        )
        why = ffi.new("char[]", 256)
        self._driver = lib.ut_driver_open(options, why, len(why))
        if self._driver == ffi.NULL:
            raise StartFailed(f"engine: {ffi.string(why).decode(errors='replace')}")
        self._event = ffi.new("ut_event *")
        self._stats = ffi.new("ut_driver_stats *")
        self._snapshot = ffi.new("ut_driver_snapshot *")
        self._receipt = ffi.new("ut_receipt *")

    @property
    def info(self) -> EngineInfo:
        ret = self._ffi.new("ut_driver_info *")
        self._lib.ut_driver_get_info(self._driver, ret)
        return self._info(ret)

    def now(self) -> int:
        return int(self._lib.ut_driver_now())

    def stats(self) -> dict[str, int]:
        self._lib.ut_driver_get_stats(self._driver, self._stats)
        return self._counters(self._stats[0])

    def snapshot(self) -> Snapshot:
        ret = self._snapshot
        self._lib.ut_driver_snapshot_take(self._driver, ret)
        jobs = {
            number: JobSnapshot(job.next_op_seq, tuple(_peer_stats(job.peer[host]) for host in range(job.hosts)))
            for number, job in enumerate(ret.job)
            if job.hosts
        }
        return Snapshot(self._info(ret.info), self._counters(ret.stats), jobs)

    def send_at_most(self, rate_bytes_per_s: int) -> None:
        self._lib.ut_driver_set_cap(self._driver, rate_bytes_per_s)

    @property
    def cap(self) -> Any:
        """What `send_at_most` sets, for a relay beside this engine."""
        return self._lib.ut_driver_cap(self._driver)

    def job_bytes(self, config: JobConfig) -> int:
        info = self.info
        engine = self._ffi.new(
            "ut_engine_config *",
            {"packet_bytes": info.packet_bytes, "segments_max": 1, "receive_buffer": info.receive_buffer_bytes},
        )
        keys = config.hosts * KEYS_BYTES if config.sealed else 0
        return int(self._lib.ut_job_bytes(engine, job_config(self._ffi, self._lib, config))) + keys

    def job_add(self, config: JobConfig) -> int:
        made = job_config(self._ffi, self._lib, config)
        return self._checked(self._lib.ut_driver_job_add(self._driver, made), "job_add")

    def activate(self, job: int, op_seq: int) -> None:
        self._checked(self._lib.ut_driver_activate(self._driver, job, op_seq), "activate")

    def picks(self, seed: int, op_seq: int, world: int, n: int) -> tuple[int, ...]:
        if not 0 <= n <= world:
            raise ValueError(f"n {n}: must be 0 to world, which is {world}")
        ranks = self._ffi.new("uint32_t[]", max(n, 1))
        self._lib.ut_picks(seed, op_seq, world, n, ranks)
        return tuple(ranks[0:n])

    def job_remove(self, job: int) -> None:
        self._checked(self._lib.ut_driver_job_remove(self._driver, job), "job_remove")

    def suite(self, name: str) -> str:
        number = self._lib.ut_driver_suite(name.encode())
        if number == 0:
            raise InvalidArgument(f"cipher = {name!r}: no libcrypto here (OpenSSL 1.1, 3, 4) computes it rightly")
        return str(self._ffi.string(self._lib.ut_driver_suite_name(number)).decode())

    def peer_listen(self, job: int, host: int, seal: Seal | None = None) -> int:
        cid = self._ffi.new("uint32_t *")
        with Sealed(self._ffi, self._lib, seal) as sealed:
            self._checked(self._lib.ut_driver_peer_listen(self._driver, job, host, sealed, cid), "peer_listen")
        return int(cid[0])

    def peer_connect(
        self, job: int, host: int, address: str, data_port: int, feedback_port: int, cid: int, seal: Seal | None = None
    ) -> None:
        with Sealed(self._ffi, self._lib, seal) as sealed:
            result = self._lib.ut_driver_peer_connect(
                self._driver, job, host, address.encode(), data_port, feedback_port, cid, sealed
            )
            self._checked(result, f"peer_connect to {address}")

    def peer_renew(self, job: int, host: int, out: bool, cid: int, seal: Seal) -> bool:
        with Sealed(self._ffi, self._lib, seal) as sealed:
            result = self._lib.ut_driver_peer_renew(self._driver, job, host, out, cid, sealed)
            if self._errors.get(int(result)) == "FULL":
                return False
            return self._checked(result, "peer_renew") == 0

    def peer_absent(self, job: int, host: int) -> None:
        self._checked(self._lib.ut_driver_peer_absent(self._driver, job, host), "peer_absent")

    def peers_blocked(self, job: int, hosts: Iterable[int]) -> None:
        self._checked(self._lib.ut_driver_peers_blocked(self._driver, job, sum(1 << h for h in set(hosts))), "blocked")

    def send_strange(self, feedback: bool, address: str, port: int, size: int, count: int) -> int:
        result = self._lib.ut_driver_send_strange(self._driver, int(feedback), address.encode(), port, size, count)
        return self._checked(result, "send")

    def next_op_seq(self, job: int) -> int:
        ret = self._ffi.new("uint64_t *")
        self._checked(self._lib.ut_driver_next_op_seq(self._driver, job, ret), "next_op_seq")
        return int(ret[0])

    def receipt(self, job: int, back: int) -> Any | None:
        ret = self._receipt
        return ret if self._lib.ut_driver_receipt(self._driver, job, back, ret) == 0 else None

    def region_map(self, fd: int, size: int) -> Region:
        address = self._lib.ut_driver_region_map(fd, size)
        if address == self._ffi.NULL:
            raise from_engine("SYSTEM", "region_map", f"{size} bytes cannot be mapped (errno {self._ffi.errno})")
        return Region(address, size)

    def region_unmap(self, region: Region, discard: bool) -> None:
        self._lib.ut_driver_region_unmap(region.address, region.size, discard)

    def session_add(self, job: int, memory: SessionMemory, first_op_seq: int) -> int:
        result = self._lib.ut_driver_session_add(
            self._driver,
            job,
            memory.submissions.address,
            memory.completions.address,
            memory.arena.address,
            memory.arena.size,
            memory.submit_fd,
            memory.complete_fd,
            first_op_seq,
            memory.place,
        )
        return self._checked(result, "session_add")

    def session_remove(self, session: int) -> None:
        self._checked(self._lib.ut_driver_session_remove(self._driver, session), "session_remove")

    def poll_event(self) -> Event | None:
        if self._lib.ut_driver_poll_event(self._driver, self._event) <= 0:
            return None
        return event_of(self._event)

    def close(self) -> None:
        if self._driver != self._ffi.NULL:
            self._lib.ut_driver_close(self._driver)
            self._driver = self._ffi.NULL

    def _info(self, info: Any) -> EngineInfo:
        return EngineInfo(
            data_port=info.data_port,
            feedback_port=info.feedback_port,
            packet_bytes=info.packet_bytes,
            receive_buffer_bytes=info.receive_buffer,
            send_buffer_bytes=info.send_buffer,
            gso=bool(info.gso),
            gro=bool(info.gro),
            simd={0: "plain", 1: "avx2", 2: "avx512", 3: "neon"}.get(info.isa, str(info.isa)),
            event_fd=info.event_fd,
            submission_bytes=self._ffi.sizeof("ut_submission_ring"),
            completion_bytes=self._ffi.sizeof("ut_completion_ring"),
        )

    def _counters(self, stats: Any) -> dict[str, int]:
        ret: dict[str, int] = {}
        for struct in (stats.engine, stats):
            for name, field in self._ffi.typeof(struct).fields:
                if field.type.kind == "primitive":
                    ret[name] = int(getattr(struct, name))
        return ret

    def _checked(self, result: int, about: str) -> int:
        if result < 0:
            sentence = self._ffi.string(self._lib.ut_driver_error(self._driver)).decode(errors="replace")
            raise from_engine(self._errors.get(int(result), ""), about, sentence)
        return int(result)


def _peer_stats(peer: Any) -> PeerStats:
    return PeerStats(bool(peer.up), *(int(getattr(peer, name)) for name in PEER_FIELDS[1:]))
