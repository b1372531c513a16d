# SPDX-License-Identifier: Apache-2.0
"""`ultima ping`: what it makes of a name, and of the answer."""

import json

import pytest
from typer.testing import CliRunner

from tests.client.cli import golden
from ultima.base.errors import InvalidArgument
from ultima.cli import main, ping
from ultima.v1 import admin_pb2

runner = CliRunner()


def an_answer(well: bool = True) -> admin_pb2.PingResponse:
    answer = admin_pb2.PingResponse(address="10.0.0.2", grpc_port=29520, node="n2", version="0.1.0")
    answer.round_trips_count, answer.rtt_min_us, answer.rtt_median_us, answer.rtt_max_us = 10, 310, 380, 920
    answer.clock_ahead_us, answer.clock_error_us, answer.packet_bytes = -1500, 155, 1500
    answer.sent_there_count = answer.sent_here_count = answer.came_there_count = 200
    answer.came_here_count = 198
    verdict = admin_pb2.Check.VERDICT_WARNING if well else admin_pb2.Check.VERDICT_FAILURE
    answer.checks.add(name="loss", subject="10.0.0.2", verdict=verdict, finding="2 were lost", remedy="look at it")
    return answer


@pytest.mark.parametrize(("well", "status"), [(True, 0), (False, 1)])
def test_ping__figures_findings_and_status(monkeypatch: pytest.MonkeyPatch, well: bool, status: int) -> None:
    monkeypatch.setattr("ultima.admin.calls.get_status", lambda socket: admin_pb2.GetStatusResponse())
    asked: list[str] = []
    monkeypatch.setattr("ultima.admin.operate.ping", lambda socket, peer: asked.append(peer) or an_answer(well))
    result = runner.invoke(main.build(), ["ping", "10.0.0.2"])
    assert result.exit_code == status and asked == ["10.0.0.2"]
    assert result.stdout.splitlines()[:5] == [
        "10.0.0.2:29520 is node n2, ultimad 0.1.0",
        "  round trip  0.31 / 0.38 / 0.92 ms (min / median / max of 10, over TCP)",
        "  loss        0.0 % of 200 there, 1.0 % of 200 here",
        "  MTU         IP packets of 1500 B pass both ways",
        "  clock       1.50 ms behind, give or take 0.15 ms",
    ]
    assert "look at it" in result.stdout
    told = runner.invoke(main.build(), ["ping", "10.0.0.2", "--json"])
    assert told.exit_code == status
    if well:
        golden.check("ping", json.loads(told.stdout))


def test_ping__a_host_that_said_nothing_has_no_figures() -> None:
    answer = admin_pb2.PingResponse(address="10.0.0.9", grpc_port=29520)
    facts = ping.facts(answer)
    assert [facts[key] for key in ("version", "rtt_min_us", "datagrams_there", "packet_bytes")] == [None] * 4
    assert next(iter(ping.lines(answer))) == "10.0.0.9:29520: no answer"


def test_place__by_node_address_and_name() -> None:
    job = admin_pb2.JobStatus()
    job.hosts.add().host.MergeFrom(admin_pb2.JobHostStatus().host)
    job.hosts[0].host.node, job.hosts[0].host.address, job.hosts[0].host.grpc_port = "n2", "10.0.0.2", 29530
    rows = [
        ("n2", "10.0.0.2:29530"),
        ("10.0.0.3", "10.0.0.3"),
        ("10.0.0.3:7", "10.0.0.3:7"),
        ("fd00::2", "fd00::2"),
        ("[fd00::2]:7", "[fd00::2]:7"),
        ("localhost:7", "127.0.0.1:7"),
    ]
    for told, place in rows:
        assert ping.place_of(told, [job]).replace("[::1]", "127.0.0.1") == place
    with pytest.raises(InvalidArgument, match="HOST"):
        ping.place_of("no such host", [job])
