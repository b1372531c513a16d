# SPDX-License-Identifier: Apache-2.0
"""A host of a job that is asked what it has recorded, and never stops telling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest

from tests.daemon.conftest import folder, house  # noqa: F401
from tests.daemon.helpers import House
from ultima.daemon.base.errors import Refused
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.peers import OPS_READ_MAX, READ_BYTES_MAX, READ_PART_BYTES_MAX
from ultima.daemon.observe import lives, record, ring
from ultima.v1 import peer_pb2, peer_pb2_grpc, records_pb2, types_pb2

PARTS_MAX = 400  # of a teller that nobody stops

MANY: dict[str, Callable[[], records_pb2.JobLife]] = {
    "hosts": lambda: records_pb2.JobLife(hosts=[types_pb2.Host()] * 60_000),
    "empty receipts": lambda: records_pb2.JobLife(receipts=[records_pb2.OpReceipt()] * 60_000),
    "ops": lambda: records_pb2.JobLife(ops=[records_pb2.OpRecord(op_seq=1)] * 2000),
    "a name": lambda: records_pb2.JobLife(job="x" * 400_000),
    "large": lambda: records_pb2.JobLife(receipts=[records_pb2.OpReceipt(stage_ns=[2**63] * 40_000)] * 2),
}


class Teller(peer_pb2_grpc.PeerServiceServicer):
    """Sends one part again and again."""

    def __init__(self, part: records_pb2.JobLife) -> None:
        self.part, self.sent = part, 0

    async def ReadOps(self, request: peer_pb2.ReadOpsRequest, context: Any) -> AsyncIterator[peer_pb2.ReadOpsResponse]:
        answer = peer_pb2.ReadOpsResponse(part=self.part, now_ns=time.time_ns())
        while self.sent < PARTS_MAX:
            self.sent += 1
            yield answer


@pytest.mark.parametrize("what", list(MANY))
async def test_read_ops__what_is_too_much_is_refused_as_it_comes(house: House, what: str) -> None:  # noqa: F811
    daemon, teller = await house.daemon(), Teller(MANY[what]())
    server = grpc.aio.server(options=(("grpc.max_send_message_length", -1),))
    peer_pb2_grpc.add_PeerServiceServicer_to_server(teller, server)  # type: ignore[no-untyped-call]
    place = Place("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    assert daemon._peers is not None
    try:
        with pytest.raises(Refused, match=r"ops of .*: (more than|.*larger than max)"):
            await asyncio.wait_for(daemon._peers.read_ops(place, peer_pb2.ReadOpsRequest(job="j"), 20), 25)
        # What gRPC has in its windows and queues was sent, too, and more of it the busier the machine is. Without a
        # limit it would be all that the teller has.
        assert teller.sent <= PARTS_MAX // 4, teller.sent
    finally:
        await server.stop(0)


def test_limits__are_over_what_an_honest_host_keeps() -> None:
    """Of one life: its ops, its receipts, and the names of its hosts; also in its largest part."""
    fields = {field.name: 2**62 for field in records_pb2.OpRecord.DESCRIPTOR.fields if field.type == field.TYPE_UINT64}
    op = records_pb2.OpRecord(**fields).ByteSize() + 64
    assert ring.OPS_MAX * op + record.RECEIPT_BYTES_MAX + (256 << 10) <= READ_BYTES_MAX and ring.OPS_MAX <= OPS_READ_MAX
    assert max(lives.OPS_EACH * op, 2 * lives.RECEIPT_BYTES_EACH) <= READ_PART_BYTES_MAX
