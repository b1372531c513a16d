# SPDX-License-Identifier: Apache-2.0
"""A coordinator that a trainer names as its rendezvous, and that answers with any membership: the hosts are all in the
daemon that asks, or nowhere.

It is also the peer of every host that it invents: Connect gives ids, Watch stands. Where an attack needs a path that
really carries bytes, `between` makes two jobs of the same daemon host 0 and host 1 of one another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc

from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2

Membership = Callable[[peer_pb2.RegisterRequest], peer_pb2.RegisterResponse]
GENERATION = 77
INCARNATION = 99


class Coordinator(peer_pb2_grpc.PeerServiceServicer):
    """Listens on loopback; a context manager."""

    def __init__(self, answer: Membership) -> None:
        self._answer = answer
        self._over = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        peer_pb2_grpc.add_PeerServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.ways: dict[str, Callable[[peer_pb2.ConnectRequest], peer_pb2.ConnectResponse]] = {}
        """By the name of a job: what becomes of a call to connect with the host that was invented."""

    @property
    def rendezvous(self) -> str:
        return f"127.0.0.1:{self.port}"

    def invented(self, index: int, ranks: Sequence[int], like: types_pb2.Host) -> types_pb2.Host:
        """A host that is not there, with this coordinator as its daemon and the lanes of `like`."""
        ret = types_pb2.Host()
        ret.CopyFrom(like)
        ret.index, ret.address, ret.grpc_port, ret.incarnation = index, "127.0.0.1", self.port, INCARNATION
        del ret.ranks[:]
        ret.ranks.extend(ranks)
        return ret

    def Register(self, request: peer_pb2.RegisterRequest, context: Any) -> peer_pb2.RegisterResponse:
        return self._answer(request)

    def Connect(self, request: peer_pb2.ConnectRequest, context: Any) -> peer_pb2.ConnectResponse:
        way = self.ways.get(request.job)
        if way is not None:
            return way(request)
        return peer_pb2.ConnectResponse(
            connection_ids=[1 + lane for lane in range(len(request.connection_ids))], incarnation=INCARNATION
        )

    def Hear(self, request: peer_pb2.HearRequest, context: Any) -> peer_pb2.HearResponse:
        return peer_pb2.HearResponse(incarnation=INCARNATION)

    def Watch(self, request: peer_pb2.WatchRequest, context: Any) -> Iterator[peer_pb2.WatchResponse]:
        yield peer_pb2.WatchResponse()
        self._over.wait()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.stop(None).wait()


def membership(
    hosts: Sequence[types_pb2.Host], bucket_bytes_max: int = 1 << 20, **more: Any
) -> peer_pb2.RegisterResponse:
    """The answer to a registration, with every field that a daemon may miss."""
    options = types_pb2.JobOptions()
    return peer_pb2.RegisterResponse(
        hosts=hosts,
        generation=GENERATION,
        bucket_bytes_max=bucket_bytes_max,
        lanes=1,
        options=options,
        **more,
    )


def own_host(request: peer_pb2.RegisterRequest, index: int, ranks: Sequence[int]) -> types_pb2.Host:
    """The host that registers, at `index` and with these ranks."""
    ret = types_pb2.Host()
    ret.CopyFrom(request.host)
    ret.index = index
    ret.address = ret.address or "127.0.0.1"
    del ret.ranks[:]
    ret.ranks.extend(ranks)
    return ret
