# SPDX-License-Identifier: Apache-2.0
"""What `ultima doctor` asks the daemon: a verdict and a remedy for each thing that may be wrong here or on the way."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Callable, Sequence

from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.base.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, Refused
from ultima.daemon.base.quota import Quota
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Place, State
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.jobs.trial import Ports, Trial
from ultima.daemon.rpc import local_checks, relays
from ultima.daemon.rpc.causes import one_each
from ultima.daemon.rpc.local_checks import FAILURE, OK, UNKNOWN, WARNING, check
from ultima.daemon.rpc.ping import mtu_check, ping
from ultima.daemon.rpc.udp_checks import Tried, of_udp
from ultima.v1 import admin_pb2, peer_pb2
from ultima.v1.limits import WIRE_VERSION

CLOCK_SECONDS = 1.0  # by which clocks may differ before logs of two hosts are hard to read together
PEERS_MAX = 64
EXAMINATIONS_MAX = 8  # at once, of as many users
ASKED_AT_ONCE = 16  # peers of one examination, over TCP
PEER_SECONDS = 24.0  # for the datagrams of one peer: eleven calls of trial.CALL_SECONDS, and their flights
ACCEPT_SECONDS = 1.0
STALLED = (
    "see on that host whether ultimad hangs (`ultima status`, `journalctl -u ultimad`), was stopped by a signal, or "
    "gets no CPU; under systemd its watchdog restarts it"
)
_PEER = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<v4>[0-9.]+))(?::(?P<port>[0-9]{1,5}))?|(?P<bare>[0-9a-fA-F:]+)")


def parse_peer(text: str, default_port: int) -> Place:
    """Address and TCP port of "10.0.0.2", "10.0.0.2:29520", "[v6]:29520" or a bare IPv6 address. Raises
    InvalidArgument."""
    found = _PEER.fullmatch(text)
    address = (found["v6"] or found["v4"] or found["bare"]) if found else ""
    port = int(found["port"] or default_port) if found else 0
    try:
        ipaddress.ip_address(address)
    except ValueError:
        port = 0
    if not 1 <= port <= 65535:
        raise InvalidArgument(f"a numeric address, or ADDRESS:PORT of its daemon, which {text!r} is not")
    return Place(address, port)


async def _accepts(address: str, port: int) -> bool:
    """Whether the kernel there takes a connection. It does so for a daemon that is stopped, or has no CPU."""
    try:
        async with asyncio.timeout(ACCEPT_SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def _is_silence(error: Refused) -> bool:
    """Whether a call failed because nothing was said in time."""
    said = ("timed out", "no connection in")  # of a handshake (answerer.py), of a connection (peers.py)
    return isinstance(error, DeadlineExceeded) or any(words in str(error) for words in said)


class Examiner:
    """See the module."""

    def __init__(
        self,
        config: DaemonConfig,
        engine: HostEngine,
        jobs: JobTable,
        peers: Callable[[], Peers],
        version: str,
        off_disk: Callable[[], str] = lambda: "",
    ) -> None:
        """`off_disk`: why what is recorded does not reach the disk; empty where it does, or is not meant to."""
        self._off_disk = off_disk
        self._config, self._engine, self._jobs, self._version = config, engine, jobs, version
        self._trial = Trial(engine, peers)
        self._quota = Quota("examinations", EXAMINATIONS_MAX, 1)
        self._turn = asyncio.Lock()

    async def examine(self, request: admin_pb2.ExamineRequest, uid: int | None) -> admin_pb2.ExamineResponse:
        """Looks at this host, its jobs, the peers that are named and those of its jobs, for a user; None for somebody.
        Raises Refused.

        Nobody waits for what another one examines, but for one peer: UDP is tried by turns, because the counts of
        datagrams do not say whose they were.
        """
        if len(request.peers) > PEERS_MAX:
            raise InvalidArgument(f"up to {PEERS_MAX} of them")
        named = [parse_peer(text, self._config.port or 29520) for text in request.peers]
        with self._quota.taken("somebody" if uid is None else f"uid {uid}"):
            jobs = self._jobs.all()
            checks = local_checks.of_host(self._config, self._engine)
            if trouble := self._off_disk():
                checks.append(local_checks.of_history(trouble))
            checks += [each for job in jobs for each in local_checks.of_job(job, self._engine, self._jobs)]
            checks += [each for job in jobs for each in relays.of_ways(job)]
            if self._config.bind:
                some, tried = asyncio.Semaphore(ASKED_AT_ONCE), list[Tried]()
                found = await asyncio.gather(*(self._tcp(place, some) for place in self._places(named, jobs)))
                for first, place, response in found:
                    checks += first
                    if response is not None:
                        checks += await self._by_turns(place, response, tried)
                checks += of_udp(tried)
            elif named:
                why = "this daemon has no `bind`, and no peers"
                checks.append(check("tcp port", UNKNOWN, why, "start it with --bind ADDRESS", request.peers[0]))
        return admin_pb2.ExamineResponse(checks=one_each(checks))

    async def ping(self, peer: str, uid: int) -> admin_pb2.PingResponse:
        """Tries the way to one other daemon, for a user. Raises Refused."""
        place = parse_peer(peer, self._config.port or 29520)
        if not self._config.bind:
            raise FailedPrecondition("this daemon has no `bind`, and so no peers: start it with --bind ADDRESS")
        with self._quota.taken(f"uid {uid}"):
            answer = admin_pb2.PingResponse(address=place.address, grpc_port=place.port)
            checks, place, first = await self._tcp(place, asyncio.Semaphore())
            answer.node, answer.version = place.node, first.version if first is not None else ""
            answer.checks.extend(each for each in checks if each.name != "clock")
            if first is not None:
                try:
                    async with self._turn, asyncio.timeout(PEER_SECONDS):
                        await ping(self._trial, place, first, self._engine.info.packet_bytes, answer)
                        answer.checks.extend(relays.to_place(self._jobs.all(), place))
                except Refused as error:
                    why = f"it stopped answering over TCP during the test: {error}"
                    answer.checks.append(check("udp", UNKNOWN, why, subject=str(place)))
                except TimeoutError:
                    why = f"it answers over TCP too slowly: more than {PEER_SECONDS:g} s for all that is asked"
                    answer.checks.append(check("udp", UNKNOWN, why, subject=str(place)))
        return answer

    def _places(self, named: Sequence[Place], jobs: Sequence[Job]) -> list[Place]:
        """The peers to try, each once: those named, then those of the jobs here that are not known to be gone."""
        found = dict.fromkeys(named)
        for job in jobs:
            for host, state in job.hosts():
                if host is not job.own and state is not State.ABSENT:
                    found[host.place] = None
        return list(found)[:PEERS_MAX]

    async def _tcp(
        self, place: Place, some: asyncio.Semaphore
    ) -> tuple[list[admin_pb2.Check], Place, peer_pb2.ReachResponse | None]:
        """What a peer says over TCP, which is asked of `some` at once; with its answer if UDP is to be tried."""
        name, (address, port, _) = str(place), place
        try:
            async with some:
                place = await self._trial.find(place)
                began = time.time_ns()
                first = await self._trial.ask(place)
        except Refused as error:
            if loss := local_checks.lossy(self._jobs.all(), self._engine, place):
                finding = f"TCP {port} is slow too, and did not answer in time: {loss}"
                remedy = (
                    "look for a link that is full, and for errors and drops (`ip -s link`), on both hosts and between"
                )
                return [check("tcp port", WARNING, finding, remedy, name)], place, None
            if _is_silence(error) and await _accepts(address, port):
                finding = f"TCP {port} accepts connections, but the daemon there says nothing: {error}"
                return [check("daemon", FAILURE, finding, STALLED, name)], place, None
            remedy = f"see whether ultimad runs there, with --bind {address}, and open TCP {port} in its firewall"
            return [check("tcp port", FAILURE, f"TCP {port} does not answer: {error}", remedy, name)], place, None
        checks = [check("tcp port", OK, f"TCP {port} answers", subject=name)]
        checks.append(_clock(first.clock_ns, began, time.time_ns(), name))
        checks.append(_versions(first, self._version, name))
        return checks, place, first if first.wire_version == WIRE_VERSION else None

    async def _by_turns(self, place: Place, first: peer_pb2.ReachResponse, tried: list[Tried]) -> list[admin_pb2.Check]:
        """Tries the UDP ports of a peer when it is its turn; what came of each is added to `tried`."""
        async with self._turn:
            try:
                async with asyncio.timeout(PEER_SECONDS):
                    return await self._udp(place, first, str(place), tried)
            except Refused as error:
                why = f"it stopped answering over TCP during the test: {error}"
            except TimeoutError:
                why = f"it answers over TCP too slowly: more than {PEER_SECONDS:g} s for all that is asked"
            tried[:] = [each for each in tried if each.peer != str(place)]  # of some ports alone
        return [check("udp", UNKNOWN, why, subject=str(place))]

    async def _udp(
        self, place: Place, first: peer_pb2.ReachResponse, name: str, tried: list[Tried]
    ) -> list[admin_pb2.Check]:
        """Each port in both directions, and full packets."""
        theirs: Ports = [(pair.data_port, pair.feedback_port) for pair in first.lanes]
        ours = self._trial.ports
        pairs = min(len(theirs), len(ours))
        for feedback in (False, True):
            out = await self._trial.outward(place, theirs[:pairs], feedback)
            back = await self._trial.inward(place, pairs, feedback)
            for outward, came, ports in ((True, out, theirs), (False, back, ours)):
                for at in range(pairs):
                    tried.append(Tried(name, outward, ports[at][feedback], feedback, came[at]))
        checks = []
        if all(each.came for each in tried if each.peer == name):
            full = min(first.packet_bytes, self._engine.info.packet_bytes)
            out = await self._trial.outward(place, theirs[:1], False, full)
            back = await self._trial.inward(place, 1, False, full)
            checks.append(mtu_check(full, out[0], back[0], ":" in place[0], name))
        return checks


def _clock(there_ns: int, began_ns: int, ended_ns: int, name: str) -> admin_pb2.Check:
    apart = abs(there_ns - (began_ns + ended_ns) / 2) / 1e9
    slack = (ended_ns - began_ns) / 2e9
    if apart - slack <= CLOCK_SECONDS:
        return check("clock", OK, "clocks agree to a second", subject=name)
    remedy = "run a time service (systemd-timesyncd, chrony) on both; Ultima works, but logs do not fit together"
    return check("clock", WARNING, f"its clock differs by {apart:.1f} s from the one here", remedy, name)


def _versions(there: peer_pb2.ReachResponse, version: str, name: str) -> admin_pb2.Check:
    if there.wire_version != WIRE_VERSION:
        finding = f"it speaks wire version {there.wire_version} ({there.version}), this host {WIRE_VERSION} ({version})"
        return check("versions", FAILURE, finding, "install the same release on both: they serve no job together", name)
    if there.version != version:
        finding = f"it runs {there.version}, this host {version}"
        return check("versions", WARNING, finding, "install the same release on both", name)
    return check("versions", OK, f"both run {version}", subject=name)
