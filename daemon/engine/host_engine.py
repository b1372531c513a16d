# SPDX-License-Identifier: Apache-2.0
"""The one engine of this host that the rest of the daemon sees, made of one or more C engines: its lanes.

A lane has a thread and two ports of its own; the C core knows nothing of the others. Op s of a job with n lanes goes to
lane s mod n, where it has number s / n. So two ops in a row travel on two ports and are worked on by two threads, and a
lane that is held up holds up only its own ops. How many of them a job uses is settled when it forms (hosts/lanes.py).
The lanes of a session share its arena and its completion eventfd.

Here they are told what all must know, and what they tell is joined: numbers, events, receipts, statistics. The numbers
of jobs and sessions that the rest of the daemon sees are made here; each lane has its own for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ultima.daemon.base.errors import FailedPrecondition, NotFound, StartupError
from ultima.daemon.base.options import Options
from ultima.daemon.engine.engine import (
    NEVER,
    NOBODY,
    PEER_FIELDS,
    Engine,
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
)
from ultima.daemon.engine.epochs import EngineEpoch, Wishes
from ultima.daemon.engine.pauses import Reached
from ultima.daemon.engine.portions import Portions, portion_of
from ultima.daemon.engine.records import to_proto
from ultima.daemon.engine.reports import LARGEST, LEAST
from ultima.daemon.engine.seal import Seal
from ultima.v1 import records_pb2

EVENTS_AT_ONCE = 256  # as many as a lane holds for the daemon
LOOK_BACK = 16  # receipts of a lane that are looked at for one op, which has just ended


def local_seq(op_seq: int, lane: int, lanes: int) -> int:
    """Of the ops from `op_seq` on, the first one of a lane, by that lane's own count."""
    return (op_seq - lane + lanes - 1) // lanes


def global_seq(local: int, lane: int, lanes: int) -> int:
    """The job's number of the op that is number `local` of its lane."""
    return local * lanes + lane


def next_seq(locals_: Sequence[int]) -> int:
    """The number that follows the newest op of all lanes, where each lane says what follows its own newest one."""
    lanes = len(locals_)
    return max((global_seq(n - 1, lane, lanes) + 1 for lane, n in enumerate(locals_) if n), default=0)


class HostEngine:
    """See the module. Errors are raised as `errors.Refused`."""

    def __init__(self, configs: Sequence[EngineConfig], open_engine: Callable[[EngineConfig], Engine]) -> None:
        """Opens an engine for each of `configs`. Raises StartupError, and has then closed them again."""
        self.engines: list[Engine] = []
        # Our number to that of each lane, and per lane the other way round.
        self._jobs: dict[int, tuple[int, ...]] = {}
        self._sessions: dict[int, tuple[int, ...]] = {}
        self._job_of: list[dict[int, int]] = [{} for _ in configs]
        self._session_of: list[dict[int, int]] = [{} for _ in configs]
        # Of each job: ends of portions of ops that have not ended in all lanes.
        self._ends: dict[int, Portions[Event]] = {}
        try:
            for config in configs:
                first = self.engines[0] if self.engines else None
                self.engines.append(open_engine(replace(config, beside=first)))
        except StartupError:
            self.close()
            raise

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.engines)

    @property
    def ports(self) -> tuple[tuple[int, int], ...]:
        """Data and feedback port, of each lane."""
        return tuple((info.data_port, info.feedback_port) for info in (engine.info for engine in self.engines))

    @property
    def event_fds(self) -> list[int]:
        """Each is readable when there are `events`."""
        return [engine.info.event_fd for engine in self.engines]

    @property
    def info(self) -> EngineInfo:
        """Of the first lane; all are opened alike but for their ports."""
        return self.engines[0].info

    def now(self) -> int:
        """CLOCK_MONOTONIC in ns."""
        return self.engines[0].now()

    def stats_of_each(self) -> list[dict[str, int]]:
        """The counters of each lane."""
        return [engine.stats() for engine in self.engines]

    def stats(self) -> dict[str, int]:
        """The counters of all lanes together: sums, and of what is open the oldest."""
        return add_up(self.stats_of_each())

    def snapshot(self) -> HostSnapshot:
        """All that status tells, at the cost of waiting for each lane's engine once."""
        return HostSnapshot([engine.snapshot() for engine in self.engines], dict(self._jobs))

    def suite(self, name: str) -> str:
        """The cipher of that name, the same on all lanes; "auto": the fastest here."""
        return self.engines[0].suite(name)

    def send_at_most(self, rate_bytes_per_s: int) -> None:
        """See `Engine.send_at_most`; each lane is told, so that none sleeps on by the bound before."""
        for engine in self.engines:
            engine.send_at_most(rate_bytes_per_s)

    def job_bytes(self, config: JobConfig, lanes: int) -> int:
        """Bytes of memory that the engines will set aside for such a job."""
        return sum(engine.job_bytes(config) for engine in self.engines[:lanes])

    def job_add(self, config: JobConfig, lanes: int) -> int:
        """Adds a job with so many lanes and returns its number. `config` speaks of the job as a whole."""
        numbers: list[int] = []
        rate = -(-config.rate_bytes_per_s // lanes)
        with ExitStack() as undo:
            for lane, engine in enumerate(self.engines[:lanes]):
                first = local_seq(config.first_op_seq, lane, lanes)
                numbers.append(engine.job_add(replace(config, first_op_seq=first, rate_bytes_per_s=rate)))
                undo.callback(engine.job_remove, numbers[-1])
            undo.pop_all()
        job = _free(self._jobs)
        self._jobs[job] = tuple(numbers)
        self._ends[job] = Portions()
        for lane, number in enumerate(numbers):
            self._job_of[lane][number] = job
        return job

    def ports_of(self, job: int) -> int:
        """How many pairs of ports a job uses: one for each of its lanes."""
        return len(self._each(job))

    def job_remove(self, job: int) -> None:
        """Fails what is open, forgets connections and sessions of the job."""
        for lane, (engine, number) in enumerate(self._each(job)):
            engine.job_remove(number)
            del self._job_of[lane][number]
        del self._jobs[job], self._ends[job]

    def check_path(self, job: int, cids: Sequence[int], ports: Sequence[tuple[int, int]], who: str) -> None:
        """Raises FailedPrecondition, which names `who`, unless a peer has the ids and ports for `peer_connect`."""
        lanes = self.ports_of(job)
        if len(cids) != lanes or len(ports) < lanes:
            raise FailedPrecondition(
                f"{who}: {len(cids)} connection_ids, {len(ports)} lanes: allowed: {lanes}, one per lane of the job"
            )

    def peer_listen(self, job: int, host: int, seal: Seal | None = None) -> tuple[int, ...]:
        """A fresh connection id per lane for packets from `host`; all state of the paths from it is forgotten.

        `seal` is how those are sealed, if those of the job are; all lanes have keys of their own from its secret.
        """
        each = enumerate(self._each(job))
        return tuple(engine.peer_listen(number, host, _of_lane(seal, lane)) for lane, (engine, number) in each)

    def peer_connect(
        self,
        job: int,
        host: int,
        address: str,
        ports: Sequence[tuple[int, int]],
        cids: Sequence[int],
        seal: Seal | None = None,
    ) -> None:
        """Where `host` listens (data and feedback port per lane) and the ids it chose; it is present from then on."""
        each = zip(itertools.count(), self._each(job), ports, cids, strict=False)
        for lane, (engine, number), (data, feedback), cid in each:
            engine.peer_connect(number, host, address, data, feedback, cid, _of_lane(seal, lane))

    def peer_renew(
        self, job: int, host: int, out: bool, cids: Sequence[int], seal: Seal, only: Container[int] | None = None
    ) -> tuple[int, ...]:
        """A fresh secret for packets to (`out`) or from `host`, in the lanes whose ids are in `only`, or in all.

        Returns the ids of the lanes that took it: one that has not begun with the fresh secret before it takes none.
        """
        each = zip(itertools.count(), self._each(job), cids, strict=False)
        return tuple(
            cid
            for lane, (engine, number), cid in each
            if (only is None or cid in only) and engine.peer_renew(number, host, out, cid, replace(seal, lane=lane))
        )

    def peer_absent(self, job: int, host: int) -> None:
        """Ops stop waiting for `host`."""
        for engine, number in self._each(job):
            engine.peer_absent(number, host)

    def peer_ask(self, job: int, host: int) -> None:
        """See `Pauses.peer_ask`; in all lanes."""
        for engine, number in self._each(job):
            engine.peer_ask(number, host)

    def peer_await(self, job: int, host: int, on: bool) -> None:
        """See `Pauses.peer_await`."""
        for engine, number in self._each(job):
            engine.peer_await(number, host, on)

    def job_hold(self, job: int) -> None:
        """See `Pauses.job_hold`."""
        for engine, number in self._each(job):
            engine.job_hold(number)

    def job_place(self, job: int) -> Reached:
        """The oldest op of a job that has not ended here in all lanes, and what is unsettled in any."""
        lanes = self._each(job)
        each = [engine.job_place(number) for engine, number in lanes]
        floor = min(global_seq(place.floor, lane, len(lanes)) for lane, place in enumerate(each))
        return Reached(floor, sum(place.unsettled for place in each))

    def epoch(self, job: int, epoch: EngineEpoch) -> None:
        """See `Epochs.epoch`; all lanes run under the same one."""
        lanes = self._each(job)
        for lane, (engine, number) in enumerate(lanes):
            engine.epoch(number, replace(epoch, start=local_seq(epoch.start, lane, len(lanes))))

    def options_fit(self, job: int, options: Options) -> None:
        """See `Epochs.options_fit`; what one engine refuses, all do."""
        engine, number = self._each(job)[0]
        engine.options_fit(number, options)

    def epoch_hold(self, job: int, op_seq: int, until_ns: int) -> None:
        """See `Epochs.epoch_hold`."""
        lanes = self._each(job)
        for lane, (engine, number) in enumerate(lanes):
            engine.epoch_hold(number, local_seq(op_seq, lane, len(lanes)), until_ns)

    def epoch_wishes(self, job: int) -> Wishes:
        """What the next epoch needs to know: the op after the newest of all lanes, and the largest wishes of any."""
        each = [engine.epoch_wishes(number) for engine, number in self._each(job)]
        options = tuple(max(of) for of in zip(*(wishes.options for wishes in each), strict=True))
        return Wishes(next_seq([wishes.next_op for wishes in each]), options)

    def peers_blocked(self, job: int, hosts: Iterable[int]) -> None:
        """Which hosts are to blame for that UDP does not get through, for the receipts."""
        blamed = set(hosts)
        for engine, number in self._each(job):
            engine.peers_blocked(number, blamed)

    def peer_route(self, job: int, host: int, address: str, ports: Sequence[tuple[int, int]]) -> None:
        """See `Relaying.peer_route`; a data and a feedback port per lane."""
        for (engine, number), pair in zip(self._each(job), ports, strict=False):
            engine.peer_route(number, host, address, *pair)

    def peers_relayed(self, job: int, hosts: Iterable[int], relays: Iterable[int]) -> None:
        """See `Relaying.peers_relayed`."""
        masks = set(hosts), set(relays)
        for engine, number in self._each(job):
            engine.peers_relayed(number, *masks)

    def send_hello(self, lane: int, feedback: bool, address: str, port: int, hello: bytes) -> None:
        """See `Relaying.send_hello`; from a socket of that lane."""
        self.engines[lane].send_hello(feedback, address, port, hello)

    def send_strange(self, lane: int, feedback: bool, address: str, port: int, size: int, count: int) -> int:
        """See `Engine.send_strange`; from a socket of that lane."""
        return self.engines[lane].send_strange(feedback, address, port, size, count)

    def next_op_seq(self, job: int) -> int:
        """The number that follows the newest op seen here or heard of."""
        return next_seq([engine.next_op_seq(number) for engine, number in self._each(job)])

    def activate(self, job: int, op_seq: int) -> None:
        """Starts an op of a partial job, which has one lane, with this host as its initiator. See `Engine`."""
        ((engine, number),) = self._each(job)
        engine.activate(number, op_seq)

    def picks(self, seed: int, op_seq: int, world: int, n: int) -> tuple[int, ...]:
        """The first `n` different ranks of `world` that are drawn for an op."""
        return self.engines[0].picks(seed, op_seq, world, n)

    def region_map(self, fd: int, size: int) -> Region:
        """Maps a memfd, shared and writable, for all lanes. Raises Refused if the kernel does not."""
        return self.engines[0].region_map(fd, size)

    def region_unmap(self, region: Region, discard: bool) -> None:
        """Ends a mapping; the session that used it must have been removed. With `discard` its pages are taken from all
        who have the file. Any thread may call this."""
        self.engines[0].region_unmap(region, discard)

    def session_add(self, job: int, memory: Sequence[SessionMemory], first_op_seq: int) -> int:
        """Attaches a trainer, whose `memory` has rings for at least all lanes of the job; returns its session."""
        numbers: list[int] = []
        lanes = self._each(job)
        with ExitStack() as undo:
            for lane, ((engine, number), rings) in enumerate(zip(lanes, memory, strict=False)):
                numbers.append(engine.session_add(number, rings, local_seq(first_op_seq, lane, len(lanes))))
                undo.callback(engine.session_remove, numbers[-1])
            undo.pop_all()
        session = _free(self._sessions)
        self._sessions[session] = tuple(numbers)
        for lane, number in enumerate(numbers):
            self._session_of[lane][number] = session
        return session

    def session_remove(self, session: int) -> None:
        """The trainer is gone: its memory is not touched from here on."""
        for lane, number in enumerate(self._sessions.pop(session)):
            self.engines[lane].session_remove(number)
            del self._session_of[lane][number]

    def receipts(self, job: int) -> Iterator[records_pb2.OpReceipt]:
        """What the engines have kept of a job's ops, the newest of a lane first; one for all portions of an op that was
        split, if all are kept."""
        known: Portions[Any] = Portions()
        lanes = self.ports_of(job)
        for lane, (engine, number) in enumerate(self._each(job)):
            for raw in self._newest(engine, number):
                told = engine.receipt_of_job(raw, lane, lanes)
                if whole := known.add(told.op_seq, told.portion, told):
                    yield to_proto(self._joined(whole))

    def receipt(self, job: int, back: int) -> Any | None:
        """The struct of the `back`-th newest op of a partial job, which has one lane, or None; valid until the next
        call."""
        ((engine, number),) = self._each(job)
        return engine.receipt(number, back)

    def series(self, job: int) -> list[Iterator[Any]]:
        """The structs of the newest ops or portions, of each lane the newest first; each is valid until the next."""
        return [self._newest(engine, number) for engine, number in self._each(job)]

    @staticmethod
    def _newest(engine: Engine, number: int) -> Iterator[Any]:
        for back in itertools.count():
            raw = engine.receipt(number, back)
            if raw is None:
                return
            yield raw

    def receipt_of(self, job: int, op_seq: int) -> records_pb2.OpReceipt | None:
        """The receipt of one of the newest ops; None if a lane has kept `LOOK_BACK` newer ones."""
        first = self._kept(job, op_seq)
        if first is None:
            return None
        rest = [self._kept(job, op_seq + at) for at in range(1, portion_of(first.portion).portions)]
        return to_proto(self._joined([first, *rest])) if None not in rest else None

    def _kept(self, job: int, op_seq: int) -> Any | None:
        """The struct of an op or a portion, in the job's numbers."""
        lanes = self._each(job)
        lane = op_seq % len(lanes)
        engine, number = lanes[lane]
        for raw in itertools.islice(self._newest(engine, number), LOOK_BACK):
            if global_seq(raw.op_seq, lane, len(lanes)) == op_seq:
                return engine.receipt_of_job(raw, lane, len(lanes))
        return None

    def _joined(self, portions: list[Any]) -> Any:
        return portions[0] if len(portions) == 1 else self.engines[0].receipt_join(portions)

    def events(self) -> list[Event]:
        """All that has been told by now, in the order of time; of a flood a part, and more the next time.

        An op that is split has one OP_DONE event, when all of its portions have ended. Those of a job that is gone are
        told as they are.
        """
        told = [event for lane in range(self.count) for event in self._told(lane)]
        found = (self._whole(event) for event in sorted(told, key=lambda event: event.at_ns))
        return [event for event in found if event is not None]

    def _told(self, lane: int) -> Iterator[Event]:
        """The events of a lane, in the numbers of this class."""
        for _ in range(EVENTS_AT_ONCE):
            event = self.engines[lane].poll_event()
            if event is None:
                return
            job = self._job_of[lane].get(event.job, NOBODY)
            lanes = len(self._jobs[job]) if job in self._jobs else 1
            session = self._session_of[lane].get(event.session, NOBODY)
            yield event._replace(job=job, session=session, op_seq=global_seq(event.op_seq, lane, lanes))

    def _whole(self, event: Event) -> Event | None:
        """The event; of an op that is split, one of all portions with the last of them."""
        if event.kind != EventKind.OP_DONE or event.job not in self._ends:
            return event
        whole = self._ends[event.job].add(event.op_seq, event.e >> 32 & 0xFF, event)
        return None if whole is None else whole[0] if len(whole) == 1 else self.engines[0].event_join(whole)

    def close(self) -> None:
        """Stops all engines' threads and closes their sockets."""
        for engine in self.engines:
            engine.close()
        self.engines.clear()

    def _each(self, job: int) -> list[tuple[Engine, int]]:
        if job not in self._jobs:
            raise NotFound(f"job {job}: there is no such job")
        return list(zip(self.engines, self._jobs[job], strict=False))


class HostSnapshot:
    """The engine of this host at one moment, in the job numbers of `HostEngine`."""

    def __init__(self, lanes: Sequence[Snapshot], jobs: Mapping[int, Sequence[int]]) -> None:
        """`jobs`: of each job its number in each of its lanes."""
        self.parts = lanes
        """Of each lane, as `ultima status` shows them."""
        self._jobs = jobs

    @property
    def info(self) -> EngineInfo:
        """Of the first lane; all are opened alike but for their ports."""
        return self.parts[0].info

    def stats_of_each(self) -> list[dict[str, int]]:
        """The counters of each lane."""
        return [part.stats for part in self.parts]

    @property
    def stats(self) -> dict[str, int]:
        """The counters of all lanes together."""
        return add_up(self.stats_of_each())

    def next_op_seq(self, job: int) -> int:
        """See `HostEngine.next_op_seq`."""
        return next_seq([each.next_op_seq for each in self._each(job)])

    def peer_stats(self, job: int, host: int) -> PeerStats:
        """What the paths to a peer host look like: the slowest round trip, the last word heard, and all bytes."""
        each = [lane.peers[host] for lane in self._each(job)]
        together = {name: [int(getattr(path, name)) for path in each] for name in PEER_FIELDS}
        numbers = {name: max(of) if name.endswith("_ns") else sum(of) for name, of in together.items()}
        numbers["window_bytes"] = min(numbers["window_bytes"], NEVER)  # no lane has one where one has none
        return PeerStats(all(path.up for path in each), *(numbers[name] for name in PEER_FIELDS[1:]))

    def paths(self, job: int, host: int) -> list[PeerStats]:
        """The path to a peer host in each lane of the job."""
        return [lane.peers[host] for lane in self._each(job)]

    def _each(self, job: int) -> list[JobSnapshot]:
        return [lane.jobs[number] for lane, number in zip(self.parts, self._jobs[job], strict=False)]


def add_up(each: Sequence[dict[str, int]]) -> dict[str, int]:
    """The counters of several lanes as those of one engine."""
    return {name: _together(name, (stats[name] for stats in each)) for name in each[0]}


def _together(name: str, values: Iterable[int]) -> int:
    return min(values) if name in LEAST else max(values) if name in LARGEST else sum(values)


def _free(taken: Container[int]) -> int:
    return next(number for number in itertools.count() if number not in taken)


def _of_lane(seal: Seal | None, lane: int) -> Seal | None:
    return None if seal is None else replace(seal, lane=lane)
