# SPDX-License-Identifier: Apache-2.0
"""All hosts of a job from one daemon: who is told what, who is waited for, and how often anybody is asked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import HOSTS_SECONDS, House, local_channel, proof, wired
from tests.daemon.helpers import eventually as become
from tests.daemon.trust.papers import Authority, papers
from tests.daemon.trust.secure import channel, refused, secure, trust_in
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.process.server import Daemon
from ultima.daemon.rpc import cluster
from ultima.v1 import admin_pb2, admin_pb2_grpc, peer_pb2, peer_pb2_grpc


async def three(house: House) -> list[Daemon]:
    """Nodes n0, n1 and n2: job "near" on n0 and n1, "far" on n0 and n2, and "theirs" on n1 and n2."""
    authority = Authority()
    daemons = [await secure(house, authority, f"n{i}") for i in range(3)]
    for name, pair in (("near", (0, 1)), ("far", (0, 2)), ("theirs", (1, 2))):
        await house.job([daemons[i] for i in pair], name)
    return daemons


async def ask(daemon: Daemon, job: str = "") -> dict[str, admin_pb2.ClusterHost]:
    """GetCluster, by node."""
    who = await proof(daemon.config.attach_socket)
    async with local_channel(daemon.config.socket) as open_channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(open_channel)
        request = admin_pb2.GetClusterRequest(job=job)
        answer = await stub.GetCluster(request, timeout=HOSTS_SECONDS, metadata=who)
    return {row.node: row for row in answer.hosts}


async def test_cluster__each_host_tells_of_the_jobs_that_it_shares_and_of_no_other(house: House) -> None:
    daemons = await three(house)
    rows = await ask(daemons[0])
    assert {node: [job.job for job in row.jobs] for node, row in rows.items()} == {
        "n0": ["far", "near"],
        "n1": ["near"],
        "n2": ["far"],
    }
    assert [row.here for row in rows.values()] == [True, False, False]
    assert not any(row.unreached for row in rows.values())
    assert rows["n1"].version == "1.2.3" and rows["n1"].took_us > 0
    only = await ask(daemons[0], "far")
    assert {node: [job.job for job in row.jobs] for node, row in only.items()} == {"n0": ["far"], "n2": ["far"]}
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(daemons[0], "theirs")
    refused(error.value, grpc.StatusCode.NOT_FOUND, "theirs")


async def test_cluster__a_host_that_says_nothing_is_named_and_holds_up_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if rounds wait without a bound: then the call ends by the caller's own deadline."""
    daemons = await three(house)
    monkeypatch.setattr(cluster, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(cluster, "BOUND_SECONDS", 0.3)
    usual = Peers.report

    async def silent(self: Peers, place: Any, seconds: float) -> Any:
        return await usual(self, place, seconds) if place.node == "n1" else await asyncio.Event().wait()

    monkeypatch.setattr(Peers, "report", silent)
    began = time.monotonic()
    rows = await ask(daemons[0])
    assert time.monotonic() - began < HOSTS_SECONDS / 2
    assert "no answer within 0." in rows["n2"].unreached and not rows["n2"].jobs
    assert rows["n1"].jobs[0].job == "near"
    monkeypatch.setattr(Peers, "report", usual)
    await house.stop(daemons[2])
    await asyncio.sleep(cluster.FRESH_SECONDS)
    monkeypatch.setattr(cluster, "BOUND_SECONDS", 5.0)
    assert (await ask(daemons[0]))["n2"].unreached


async def test_cluster__however_many_look_one_round_of_questions_leaves(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons, asked = await three(house), list[str]()
    usual = Peers.report

    async def counted(self: Peers, place: Any, seconds: float) -> Any:
        asked.append(place.node)
        return await usual(self, place, seconds)

    monkeypatch.setattr(Peers, "report", counted)
    views = await asyncio.gather(*(daemons[0].cluster.ask() for _ in range(20)))
    assert sorted(asked) == ["n1", "n2"] and all(len(view.hosts) == 3 for view in views)


async def test_cluster__is_for_users_who_say_who_they_are(house: House) -> None:
    daemon = await house.daemon()
    async with local_channel(daemon.config.socket) as open_channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(open_channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=HOSTS_SECONDS)
        refused(error.value, grpc.StatusCode.UNAUTHENTICATED, "ultima-token")


async def test_report__a_node_in_no_job_hears_of_none_and_may_not_ask_often(house: House) -> None:
    authority = Authority()
    daemons = [await secure(house, authority, f"n{i}") for i in range(2)]
    await house.job(daemons)
    await become(lambda: wired(daemons), "a path")
    stranger = trust_in(papers(house.folder, "evil", authority))
    async with channel(daemons[0], stranger, "n0") as open_channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(open_channel)
        answer = await stub.Report(peer_pb2.ReportRequest(), timeout=HOSTS_SECONDS)
        assert answer.version == "1.2.3" and not answer.jobs and not answer.left_out_count
        with pytest.raises(grpc.aio.AioRpcError) as error:
            for _ in range(60):
                await stub.Report(peer_pb2.ReportRequest(), timeout=HOSTS_SECONDS)
        refused(error.value, grpc.StatusCode.RESOURCE_EXHAUSTED, "evil", "status --all")
    assert (await ask(daemons[1]))["n0"].jobs[0].job == "job", "another node may still ask"


async def test_report__what_does_not_fit_is_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = await three(house)
    monkeypatch.setattr(cluster, "REPORT_BYTES_MAX", 10)
    row = (await ask(daemons[0]))["n1"]
    assert not row.jobs and row.left_out_count == 1
