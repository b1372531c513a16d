# SPDX-License-Identifier: Apache-2.0
"""This daemon as a relay: two hosts of a job that it is in cannot reach each other over UDP, and both can reach it. It
may be one of the two: what cannot be sent to a host behind a NAT can be answered to where it says hello from.

It forwards their sealed datagrams by connection id (transport_c/udp/relay.c) and has no key of theirs. Each of the two
hosts asks for itself, over an authenticated connection. An *end* is one lane of such a host; it says by hellos, under a
key that only it was given, where its sockets are, as this host sees them. It can only be where the host's own call came
from, which the TCP handshake has shown, so nobody aims what is forwarded at a third party. What an end has, ends with
the job here, with the life of its host, or when it has not asked for LEASE_SECONDS.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ultima.daemon.base.errors import FailedPrecondition, Refused, StartFailed, Unavailable
from ultima.daemon.engine.forwarder import NativeRelay
from ultima.daemon.engine.relaying import mac
from ultima.daemon.hosts.host import Host
from ultima.daemon.jobs.job import Job
from ultima.v1 import peer_pb2, types_pb2

log = logging.getLogger("ultimad.relay")

KEY_BYTES = 32
LEASE_SECONDS = 30.0  # six times what an end leaves between two questions
LOOK_SECONDS = 1.0
HELLOS_AT_ONCE = 64  # taken in one turn of the loop


@dataclass(eq=False)
class _Lease:
    """What one host of a job has here."""

    incarnation: int
    address: str
    ends: list[int]
    asked: float
    """When it last asked, by the loop's clock."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    numbers: dict[tuple[int, bool], int] = field(default_factory=dict)
    """Of its last hello, by end and socket: an older one is a copy."""
    wants: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The connection ids of its packets to other hosts, by their index, one per lane."""
    ways: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Connection id and number of its ways to other hosts, by lane."""
    went: dict[int, int] = field(default_factory=dict)
    """Bytes to other hosts, by ways that are gone."""
    before: dict[int, int] = field(default_factory=dict)
    """The same of leases before this one."""


class RelayDesk:
    """See the module. It belongs to the event loop."""

    def __init__(self, jobs: Callable[[], Iterable[Job]], open_relay: Callable[[], NativeRelay] | None) -> None:
        """`open_relay` opens the port when it is first needed; None: this daemon forwards nothing."""
        self._jobs, self._open = jobs, open_relay
        self._relay: NativeRelay | None = None
        self._leases: dict[tuple[int, int], _Lease] = {}
        """By the incarnation of the job here, and the index of the host."""
        self.forged = 0
        """Hellos that were not the end's own."""

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def port(self) -> int:
        """UDP, once it was needed; else 0."""
        return 0 if self._relay is None else self._relay.port

    async def run(self) -> None:
        """Forgets those who need it no more, for as long as the daemon lives."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Takes away what is over."""
        now, jobs = asyncio.get_running_loop().time(), {job.incarnation: job for job in self._jobs()}
        for (life, index), lease in list(self._leases.items()):
            job = jobs.get(life)
            if not _lives(job, index, lease.incarnation) or now - lease.asked > LEASE_SECONDS:
                log.info("relay ends job=%s host=%d", job.name if job else "", index)
                self._count(job, index, lease)
                self._end(life, index)
            else:
                self._count(job, index, lease)

    def _count(self, job: Job | None, index: int, lease: _Lease) -> None:
        """Notes what went from one host to others."""
        relay = self._relay
        if job is None or relay is None:
            return
        for to in {*lease.ways, *lease.went}:
            now = sum([relay.way_bytes(way) for _, way in lease.ways.get(to, ())])
            job.forwarded[index, to] = lease.before.get(to, 0) + lease.went.get(to, 0) + now

    def answer(self, job: Job, caller: Host, to: Host, cids: Sequence[int], source: str) -> peer_pb2.RelayResponse:
        """A host of the job, which calls from `source`, wants its packets to another one, under those connection ids,
        forwarded. Idempotent. Raises Refused."""
        relay = self._opened()
        lease = self._lease(job, caller, len(cids), source)
        lease.asked = asyncio.get_running_loop().time()
        lease.wants[to.index] = tuple(cids)
        other = self._leases.get((job.incarnation, to.index))
        ready = other is not None and self._connect(lease, caller, other, to)
        there = [relay.end_at(end) for end in other.ends] if other is not None and ready else []
        here = [relay.end_at(end) for end in lease.ends]
        return peer_pb2.RelayResponse(
            port=relay.port,
            key=lease.key,
            ends=lease.ends,
            ready=ready and all(data and feedback for _, data, feedback in [*here, *there]),
            seen=[types_pb2.Lane(data_port=data, feedback_port=feedback) for _, data, feedback in here],
            other=[types_pb2.Lane(data_port=data, feedback_port=feedback) for _, data, feedback in there],
            other_address=next((address for address, _, _ in there if address), ""),
        )

    def stats(self) -> dict[str, int]:
        """Of the relay; nothing before it was needed."""
        return {} if self._relay is None else self._relay.stats() | {"forged": self.forged}

    def close(self) -> None:
        """Forwards nothing any more."""
        if self._relay is not None:
            asyncio.get_running_loop().remove_reader(self._relay.fileno())
            self._relay.close()
        self._relay, self._open = None, None
        self._leases.clear()

    def _opened(self) -> NativeRelay:
        if self._open is None:
            raise FailedPrecondition("relay.serve = false: this daemon forwards no packets of others")
        if self._relay is None:
            try:
                self._relay = self._open()
            except StartFailed as error:
                raise Unavailable(str(error)) from None
            asyncio.get_running_loop().add_reader(self._relay.fileno(), self._take_hellos)
            log.info("relay opens port=%d", self._relay.port)
        return self._relay

    def _lease(self, job: Job, caller: Host, lanes: int, source: str) -> _Lease:
        key = job.incarnation, caller.index
        lease = self._leases.get(key)
        life = caller.incarnation
        if lease is not None and (lease.incarnation, lease.address, len(lease.ends)) == (life, source, lanes):
            return lease
        assert self._relay is not None
        if lease is not None:
            self._end(*key)
        ends: list[int] = []
        try:
            for _ in range(lanes):
                ends.append(self._relay.add_end(source))
        except Refused:
            for end in ends:
                self._relay.remove_end(end)
            raise
        log.info("relay begins job=%s host=%d address=%s", job.name, caller.index, source)
        before = {to: count for (of, to), count in job.forwarded.items() if of == caller.index}
        self._leases[key] = _Lease(life, source, ends, 0.0, before=before)
        return self._leases[key]

    def _connect(self, lease: _Lease, caller: Host, other: _Lease, to: Host) -> bool:
        """Lays the ways between two hosts that both have asked. Whether they lie."""
        here, there = caller.index, to.index
        if there not in lease.wants or here not in other.wants or len(lease.ends) != len(other.ends):
            return False
        self._lay(lease, other, there)
        self._lay(other, lease, here)
        return True

    def _lay(self, one: _Lease, two: _Lease, index: int) -> None:
        assert self._relay is not None
        cids, ways = one.wants[index], one.ways.get(index, [])
        if [cid for cid, _ in ways] == list(cids):
            return
        self._cut(one, index)
        laid = one.ways[index] = []
        for cid, from_end, to_end in zip(cids, one.ends, two.ends, strict=False):
            laid.append((cid, self._relay.add_way(from_end, to_end, cid)))

    def _cut(self, lease: _Lease, index: int) -> None:
        assert self._relay is not None
        for _, way in lease.ways.pop(index, []):
            lease.went[index] = lease.went.get(index, 0) + self._relay.way_bytes(way)
            self._relay.remove_way(way)

    def _end(self, life: int, index: int) -> None:
        lease = self._leases.pop((life, index))
        assert self._relay is not None
        for there in list(lease.ways):
            self._cut(lease, there)
        for (other_life, _), other in self._leases.items():
            if other_life == life:
                self._cut(other, index)
        for end in lease.ends:
            self._relay.remove_end(end)

    def _take_hellos(self) -> None:
        for _ in range(HELLOS_AT_ONCE):
            said = self._relay.poll_hello() if self._relay is not None else None
            if said is None:
                return
            lease = next((each for each in self._leases.values() if said.end in each.ends), None)
            place = said.end, said.feedback
            own = lease is not None and hmac.compare_digest(mac(lease.key, said.signed), said.mac)
            if lease is None or not own or said.number <= lease.numbers.get(place, -1):
                self.forged += 1
                continue
            lease.numbers[place] = said.number
            assert self._relay is not None
            self._relay.place_end(said)


def _lives(job: Job | None, index: int, incarnation: int) -> bool:
    """Whether a host still lives that life in a job that is here."""
    if job is None or job.over or job.own is None or job.links is None:
        return False
    if index == job.own.index:
        return job.own.incarnation == incarnation
    return index in job.links and job.links[index].up() and job.links[index].host.incarnation == incarnation
