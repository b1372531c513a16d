# SPDX-License-Identifier: Apache-2.0
"""Examinations by several users: one that names peers that say nothing holds up nobody else's."""

from __future__ import annotations

import asyncio
import socket

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, local_channel, proof, rendezvous
from tests.daemon.trust.papers import Authority
from tests.daemon.trust.secure import refused, secure
from ultima.daemon.base.errors import ResourceExhausted
from ultima.daemon.rpc.examine import PEERS_MAX, Examiner
from ultima.v1 import admin_pb2, admin_pb2_grpc

OK, FAILURE = admin_pb2.Check.VERDICT_OK, admin_pb2.Check.VERDICT_FAILURE


async def test_examine__beside_one_whose_peers_are_silent(house: House) -> None:
    authority = Authority()
    daemon, other = [await secure(house, authority, f"n{i}") for i in range(2)]
    examiner = Examiner(daemon.config, daemon.engine, daemon.jobs, lambda: daemon._peers, "1.2.3")  # type: ignore[arg-type, return-value]
    with socket.create_server(("0.0.0.0", 0), backlog=256) as silent:
        port = silent.getsockname()[1]
        many = admin_pb2.ExamineRequest(peers=[f"127.0.0.{i}:{port}" for i in range(1, PEERS_MAX + 1)])
        slow = asyncio.ensure_future(examiner.examine(many, 7))
        await asyncio.sleep(0.3)
        with pytest.raises(ResourceExhausted, match="examinations: uid 7 has 1 already"):
            await examiner.examine(many, 7)
        for uid in (0, None):
            request = admin_pb2.ExamineRequest(peers=[rendezvous(other)])
            answer = await asyncio.wait_for(examiner.examine(request, uid), 15)
            found = {each.name: each.verdict for each in answer.checks if each.subject == rendezvous(other)}
            assert found["tcp port"] == OK and found["versions"] == OK, answer.checks
            assert not slow.done()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
    again = await examiner.examine(admin_pb2.ExamineRequest(peers=["127.0.0.1:9"]), 7)
    assert [each.verdict for each in again.checks if each.name == "tcp port"] == [FAILURE]


async def test_examine__of_named_peers_is_for_users_who_say_who_they_are(house: House) -> None:
    daemon = await house.daemon()
    async with local_channel(daemon.config.socket) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        request = admin_pb2.ExamineRequest(peers=["127.0.0.1:9"])
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Examine(request, timeout=10)
        refused(error.value, grpc.StatusCode.UNAUTHENTICATED, "ultima-token")
        who = await proof(daemon.config.attach_socket)
        assert (await stub.Examine(request, timeout=10, metadata=who)).checks
        assert (await stub.Examine(admin_pb2.ExamineRequest(), timeout=10)).checks
