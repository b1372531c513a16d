# SPDX-License-Identifier: Apache-2.0
"""Datagrams that one node has another send to it: enough for an examination, and no flood."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, engine
from tests.daemon.trust.papers import Authority, papers
from tests.daemon.trust.secure import channel, refused, secure, trust_in
from ultima.daemon.jobs import trial
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2
from ultima.v1.limits import LANES_MAX, PACKET_BYTES_MAX


async def test_reach__a_flood_of_calls_sends_as_much_as_an_examination(house: House) -> None:
    authority = Authority()
    daemon = await secure(house, authority, "n0")
    fake, to = engine(daemon), [types_pb2.Lane(data_port=7, feedback_port=8)] * LANES_MAX

    async def flood(stub: Any, calls: int) -> tuple[int, int]:
        """Bytes that were sent and calls that were refused."""
        before, no = len(fake.strange), 0
        for number in range(calls):
            small = number % 2
            size, packets = (trial.SMALL_BYTES, trial.PACKETS) if small else (PACKET_BYTES_MAX, 1)
            try:
                await stub.Reach(peer_pb2.ReachRequest(to=to, bytes=size, packets=packets), timeout=5)
            except grpc.aio.AioRpcError as error:
                refused(error, grpc.StatusCode.RESOURCE_EXHAUSTED, "datagrams of `ultima doctor`", "try again in")
                no += 1
        return sum(size * count for *_, size, count in fake.strange[before:]), no

    for node in ("evil", "n1"):  # what one has used up is still there for another
        async with channel(daemon, trust_in(papers(house.folder, node, authority)), "n0") as opened:
            stub: Any = peer_pb2_grpc.PeerServiceStub(opened)  # type: ignore[no-untyped-call]
            sent, no = await flood(stub, 200)
            assert trial.BYTES_AT_ONCE // 4 < sent < 2 * trial.BYTES_AT_ONCE and no > 100, (sent, no)
            for size, packets in ((trial.SMALL_BYTES + 1, 2), (PACKET_BYTES_MAX, trial.PACKETS), (64, 9)):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stub.Reach(peer_pb2.ReachRequest(to=to, bytes=size, packets=packets), timeout=5)
                refused(error.value, grpc.StatusCode.INVALID_ARGUMENT, f"packets = {packets}: allowed: 0 to ")


def test_budget__is_enough_for_an_examination() -> None:
    """Of all lanes, twice in a row: small ones to both ports, and full ones to one."""
    small = 2 * LANES_MAX * trial.PACKETS * trial.SMALL_BYTES
    calls = 3 + 2 * 3 + 2 * (1 + trial.FULL_TRIES)  # the first one, each way small, and full
    assert 2 * (small + trial.FULL_TRIES * PACKET_BYTES_MAX + calls * trial.ASK_BYTES) <= trial.BYTES_AT_ONCE
