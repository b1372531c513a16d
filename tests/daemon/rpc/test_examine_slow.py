# SPDX-License-Identifier: Apache-2.0
"""What `ultima doctor` says of a peer that does not answer over TCP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.daemon.fake_engine import FakeEngine, FakeJob
from tests.daemon.helpers import House, eventually, wired
from ultima.daemon.base.errors import Unavailable
from ultima.daemon.engine.engine import JobSnapshot
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.rpc import examine
from ultima.daemon.rpc.examine import Examiner
from ultima.daemon.rpc.local_checks import FAILURE, LOSS_PACKETS, WARNING
from ultima.v1 import admin_pb2

PLAIN = FakeEngine._job_now


ROWS = [
    (92, LOSS_PACKETS, WARNING),
    (10, LOSS_PACKETS, WARNING),
    (5, LOSS_PACKETS, FAILURE),  # TCP lives with that
    (92, LOSS_PACKETS - 1, FAILURE),  # too few to say
]


async def test_tcp_port__of_a_host_that_is_up_behind_a_bad_way_is_slow_and_not_shut(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, int] = {}

    def bad_way(job: FakeJob) -> JobSnapshot:
        now = PLAIN(job)
        return replace(now, peers=tuple(replace(path, **sent) if path.up else path for path in now.peers))

    async def unanswered(*_: object) -> None:
        raise Unavailable("no connection in 6.0 s")

    async def accepts(*_: object) -> bool:
        return takes[0]

    takes = [False]
    monkeypatch.setattr(examine, "_accepts", accepts)
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    await eventually(lambda: wired(daemons), "the hosts are up")
    monkeypatch.setattr(FakeEngine, "_job_now", staticmethod(bad_way))
    monkeypatch.setattr(Peers, "reach", unanswered)
    here, port = daemons[0], daemons[1].grpc_port
    assert here._peers is not None
    examiner = Examiner(here.config, here.engine, here.jobs, lambda: here._peers, "0")
    for lost_percent, sent_packets, verdict in ROWS:
        sent.update(sent_packets=sent_packets, sent_bytes=1000, lost_bytes=10 * lost_percent)
        answer = await examiner.examine(admin_pb2.ExamineRequest(peers=[f"127.0.0.1:{port}"]), 0)
        (found,) = {(row.verdict, row.finding, row.remedy) for row in answer.checks if row.name == "tcp port"}
        assert found[0] == verdict, (lost_percent, sent_packets)
        if verdict == WARNING:
            assert (
                f"TCP {port} is slow too" in found[1] and f"{lost_percent} % of the packets to it were lost" in found[1]
            )
            assert "up in job job" in found[1] and "firewall" not in found[2]
        else:
            assert found[1] == f"TCP {port} does not answer: no connection in 6.0 s" and "firewall" in found[2]
    takes[0] = True  # its kernel takes connections: then the daemon is stopped, or has no CPU
    sent.update(lost_bytes=0)
    answer = await examiner.examine(admin_pb2.ExamineRequest(peers=[f"127.0.0.1:{port}"]), 0)
    (row,) = (row for row in answer.checks if row.verdict == FAILURE)
    assert row.name == "daemon" and f"TCP {port} accepts connections" in row.finding and "hangs" in row.remedy
