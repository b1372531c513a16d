# SPDX-License-Identifier: Apache-2.0
"""A hostile peer, to be used as a part: it speaks PeerService with any content, and forges datagrams.

`HostilePeer` listens on loopback and answers what daemons ask with `answers` (by method: a message, an exception, or a
function of the request). `calls` are what came. `host()`, `membership()` and `restore()` make messages that are right
in all but what the test says. `feedback()` is a datagram with a right checksum that acknowledges what was never sent.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2
from ultima.v1.limits import WIRE_VERSION

ADDRESS = "127.0.0.1"
Answer = Any | Callable[[Any], Any]
Place = tuple[str, int]


@dataclass
class HostilePeer(peer_pb2_grpc.PeerServiceServicer):
    """See the module. A method without an answer is UNIMPLEMENTED; Watch tells what its answer, a list, holds."""

    answers: dict[str, Answer] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    port: int = 0

    def came(self, method: str) -> list[Any]:
        """The requests of one method."""
        return [request for name, request in self.calls if name == method]

    @property
    def place(self) -> str:
        return f"{ADDRESS}:{self.port}"

    async def _answer(self, method: str, request: Any, context: Any) -> Any:
        self.calls.append((method, request))
        answer = self.answers.get(method)
        if callable(answer):
            answer = answer(request)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method}: the test has no answer")
        if isinstance(answer, Exception):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(answer))
        return answer

    async def Register(self, request: Any, context: Any) -> Any:
        return await self._answer("Register", request, context)

    async def Restore(self, request: Any, context: Any) -> Any:
        return await self._answer("Restore", request, context)

    async def Connect(self, request: Any, context: Any) -> Any:
        return await self._answer("Connect", request, context)

    async def Probe(self, request: Any, context: Any) -> Any:
        return await self._answer("Probe", request, context)

    async def Activate(self, request: Any, context: Any) -> Any:
        return await self._answer("Activate", request, context)

    async def Hear(self, request: Any, context: Any) -> Any:
        return await self._answer("Hear", request, context)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.calls.append(("Watch", request))
        yield peer_pb2.WatchResponse()
        for news in self.answers.get("Watch", ()):
            yield news
        await asyncio.Event().wait()


@asynccontextmanager
async def hostile_peer(**answers: Answer) -> AsyncIterator[HostilePeer]:
    """One that listens."""
    peer = HostilePeer(answers)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    peer_pb2_grpc.add_PeerServiceServicer_to_server(peer, server)
    peer.port = server.add_insecure_port(f"{ADDRESS}:0")
    await server.start()
    try:
        yield peer
    finally:
        await server.stop(0)


def host(ranks: list[int], index: int = 0, port: int = 1, **fields: Any) -> types_pb2.Host:
    """A host that could be one."""
    values = {
        "index": index,
        "address": ADDRESS,
        "grpc_port": port,
        "lanes": [types_pb2.Lane(data_port=2, feedback_port=3)],
        "incarnation": 1000 + index,
        "ranks": ranks,
        "packet_bytes": 1472,
        "wire_version": WIRE_VERSION,
        "state": types_pb2.HOST_STATE_UP,
    }
    return types_pb2.Host(**(values | fields))


def membership(request: peer_pb2.RegisterRequest, **changes: Any) -> peer_pb2.RegisterResponse:
    """A coordinator's answer to the registration of rank 0 of 2, right but for `changes`. The other host is nobody."""
    own = types_pb2.Host()
    own.CopyFrom(request.host)
    own.index, own.state = 0, types_pb2.HOST_STATE_CONNECTING
    own.address = own.address or ADDRESS
    values = {
        "hosts": [own, host([1], 1)],
        "generation": 7,
        "bucket_bytes_max": request.bucket_bytes_max,
        "lanes": 1,
    }
    hosts = changes.pop("hosts", None)
    if hosts is not None:
        values["hosts"] = hosts(own) if callable(hosts) else hosts
    return peer_pb2.RegisterResponse(**(values | changes))


def restore(job: str, port: int, hosts: list[types_pb2.Host], **changes: Any) -> peer_pb2.RestoreRequest:
    """A record of a job whose host 0 is the daemon at `port`; `hosts` are the others, of one rank each."""
    values = {
        "job": job,
        "world_size": 1 + len(hosts),
        "generation": 7,
        "bucket_bytes_max": 1000,
        "hosts": [host([0], 0, port), *hosts],
        "lanes": 1,
    }
    return peer_pb2.RestoreRequest(**(values | changes))


def feedback(cid: int, number: int, highest_pn: int, ack: int = 1) -> bytes:
    """PROTOCOL.md, kind 2: without records, with one acknowledgement word."""
    packet = bytearray(80 + 8)
    packet[0] = WIRE_VERSION << 4 | 2
    struct.pack_into(">II", packet, 4, cid, number)
    struct.pack_into(">Q", packet, 16, 1 << 30)  # grant
    struct.pack_into(">I", packet, 48, highest_pn)
    struct.pack_into(">I", packet, 60, 0xFFFFFFFF)  # no echo
    packet[69] = 1
    struct.pack_into(">Q", packet, 80, ack)
    struct.pack_into(">I", packet, 12, crc32c(bytes(packet)))
    return bytes(packet)


def send(datagram: bytes, place: Place) -> None:
    """From any port: nobody looks at it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.sendto(datagram, place)


def crc32c(data: bytes) -> int:
    """RFC 3720 B.4, bit by bit: packets here are short."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
