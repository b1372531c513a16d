# SPDX-License-Identifier: Apache-2.0
"""`ultima ping` on the daemon's side: what is measured between two ends that lose what the test says."""

from __future__ import annotations

import time
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import HOSTS_SECONDS, House, local_channel, proof, rendezvous
from tests.daemon.trust.secure import refused
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs.trial import ASK_BYTES, BYTES_AT_ONCE, Ports
from ultima.daemon.rpc import ping
from ultima.v1 import admin_pb2, admin_pb2_grpc, peer_pb2, types_pb2
from ultima.v1.limits import LANES_MAX, PACKET_BYTES_MAX

OK, WARNING, FAILURE = (admin_pb2.Check.Verdict.Value(f"VERDICT_{word}") for word in ("OK", "WARNING", "FAILURE"))
OURS: Ports = [(29521, 29522), (29523, 29524)]


class Between:
    """Stands in for a Line between two hosts of two lanes, and counts what the other host would have spent."""

    def __init__(self, mtu: int = 10**6, back_mtu: int = 10**6, closed: int = 0, every: int = 0, ahead_s: float = 0.0):
        """Payloads above the MTUs vanish; port |closed| of the other host is closed; each |every|th packet is lost."""
        self.mtu, self.back_mtu, self.closed, self.every, self.ahead_s = mtu, back_mtu, closed, every, ahead_s
        self.spent, self.sent = 0, 0

    async def ask(self, request: Any = None) -> peer_pb2.ReachResponse:
        self.spent += ASK_BYTES
        return peer_pb2.ReachResponse(clock_ns=time.time_ns() + round(self.ahead_s * 1e9))

    async def both(self, ours: Ports, theirs: Ports, feedback: bool, size: int, packets: int) -> Any:
        self.spent += 2 * ASK_BYTES + len(ours) * packets * size

        def came(port: int, most: int) -> int:
            count = 0
            for _ in range(packets):
                self.sent += 1
                count += size <= most and port != self.closed and not (self.every and self.sent % self.every == 0)
            return count

        return [came(p[feedback], self.mtu) for p in theirs], [came(p[feedback], self.back_mtu) for p in ours]


async def pinged(way: Between, full: int = 1472, lanes: int = 2) -> admin_pb2.PingResponse:
    """What is told of it."""

    class Lines:
        ports = (OURS * LANES_MAX)[:lanes]

        def line(self, place: Place) -> Any:
            class Entered:
                async def __aenter__(self) -> Between:
                    return way

                async def __aexit__(self, *error: object) -> None:
                    pass

            return Entered()

    theirs = [types_pb2.Lane(data_port=39521 + 2 * i, feedback_port=39522 + 2 * i) for i in range(lanes)]
    first, answer = peer_pb2.ReachResponse(lanes=theirs, packet_bytes=full), admin_pb2.PingResponse()
    await ping.ping(Lines(), Place("10.0.0.2", 29520), first, full, answer)  # type: ignore[arg-type]
    return answer


def found(answer: admin_pb2.PingResponse) -> dict[str, admin_pb2.Check]:
    return {each.name: each for each in answer.checks}


async def test_ping__a_way_without_faults() -> None:
    answer = await pinged(Between())
    assert answer.sent_there_count == answer.came_there_count == answer.sent_here_count == answer.came_here_count > 100
    assert answer.packet_bytes == 1500 and answer.round_trips_count == ping.ROUND_TRIPS
    assert 0 <= answer.rtt_min_us <= answer.rtt_median_us <= answer.rtt_max_us
    assert all(each.verdict == OK for each in answer.checks), answer.checks


@pytest.mark.parametrize(("mtu", "back", "passes"), [(1372, 10**6, 1400), (10**6, 1252, 1280), (700, 600, 628)])
async def test_ping__finds_the_packet_that_passes_both_ways(mtu: int, back: int, passes: int) -> None:
    answer = await pinged(Between(mtu, back))
    assert passes - ping.STEP_BYTES <= answer.packet_bytes <= passes
    row = found(answer)["mtu"]
    assert row.verdict == FAILURE and f"{answer.packet_bytes} B pass" in row.finding
    assert ("to it" in row.finding, "from it" in row.finding) == (mtu < 1472, back < 1472)


async def test_ping__of_jumbo_frames_ethernets_own_are_left() -> None:
    assert (await pinged(Between(2000), full=8928)).packet_bytes == 1500
    assert (await pinged(Between(1300), full=8928)).packet_bytes in range(1328 - ping.STEP_BYTES, 1329)


async def test_ping__tells_loss_and_a_closed_port() -> None:
    answer = await pinged(Between(every=10))
    lost = answer.sent_there_count + answer.sent_here_count - answer.came_there_count - answer.came_here_count
    assert lost == (answer.sent_there_count + answer.sent_here_count) // 10
    assert found(answer)["loss"].verdict == WARNING and "did not arrive there" in found(answer)["loss"].finding
    answer = await pinged(Between(closed=39522))
    assert (
        found(answer)["udp feedback port"].verdict == FAILURE and "39522" in found(answer)["udp feedback port"].finding
    )
    assert "loss" not in found(answer) and not answer.packet_bytes, "one cause, one finding"


async def test_ping__clock() -> None:
    answer = await pinged(Between(ahead_s=-7.5))
    assert abs(answer.clock_ahead_us + 7_500_000) < 100_000
    assert found(answer)["clock"].verdict == WARNING and "7.5 s behind" in found(answer)["clock"].finding


@pytest.mark.parametrize("lanes", [1, 2, LANES_MAX])
async def test_ping__costs_the_other_host_less_than_it_grants(lanes: int) -> None:
    """With the packets that pass found by the longest search, each step of which needs all its tries."""
    way = Between(mtu=600, back_mtu=600)
    await pinged(way, full=PACKET_BYTES_MAX, lanes=lanes)
    assert way.spent < BYTES_AT_ONCE, way.spent


async def test_ping__of_a_daemon(house: House) -> None:
    """Over a real connection; the engine is a fake, whose datagrams go nowhere."""
    daemon, other, alone = await house.daemon(), await house.daemon(), await house.daemon(bind="")
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        request = admin_pb2.PingRequest(peer=rendezvous(other))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Ping(request, timeout=HOSTS_SECONDS)
        refused(error.value, grpc.StatusCode.UNAUTHENTICATED, "ultima-token")
        who = await proof(daemon.config.attach_socket)
        answer = await stub.Ping(request, timeout=30, metadata=who)
        assert answer.version == "1.2.3" and answer.rtt_min_us > 0
        assert found(answer)["tcp port"].verdict == OK and found(answer)["udp"].verdict == FAILURE
        who = await proof(daemon.config.attach_socket)
        nobody = await stub.Ping(admin_pb2.PingRequest(peer="127.0.0.1:9"), timeout=30, metadata=who)
        assert found(nobody)["tcp port"].verdict == FAILURE and not nobody.version
    async with local_channel(alone.config.socket) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Ping(request, timeout=HOSTS_SECONDS, metadata=await proof(alone.config.attach_socket))
        refused(error.value, grpc.StatusCode.FAILED_PRECONDITION, "--bind")
