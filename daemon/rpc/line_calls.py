# SPDX-License-Identifier: Apache-2.0
"""The two calls by which hosts are reached that only go out (hosts/lines.py): who may make them, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

import grpc.aio

from ultima.daemon.base.addresses import same_machine
from ultima.daemon.base.errors import DeadlineExceeded, InvalidArgument, NotFound, PermissionDenied
from ultima.daemon.base.ranges import whole
from ultima.daemon.hosts import membership
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.lines import Lines
from ultima.daemon.hosts.pipes import StreamEnd
from ultima.daemon.jobs.job import Job
from ultima.daemon.trust.gate import REQUEST_SECONDS
from ultima.v1 import peer_pb2


class LineCalls:
    """See the module."""

    def __init__(
        self, lines: Lines, dials: Callable[[Place], Awaitable[bool]], jobs: Callable[[], Iterable[Job]]
    ) -> None:
        """`dials` finds out whether a connection to a daemon comes about."""
        self._lines, self._dials, self._jobs = lines, dials, jobs

    def attend(
        self, request: peer_pb2.AttendRequest, source: str, node: str
    ) -> AsyncGenerator[peer_pb2.AttendResponse, None]:
        """A call from an address, and of a node if there are certificates. Raises Refused."""
        membership.check_address("source", source)
        port = whole("grpc_port", request.grpc_port, 1, membership.PORT_MAX)
        return self._lines.attend(Place(source, port, node), request.stays, self._dials)

    async def carry(self, requests: Any, context: Any, source: str, node: str) -> None:
        """Returns when the connection is over. Raises Refused."""
        first = await _first(requests)

        async def receive() -> Any:
            return await anext(requests, grpc.aio.EOF)

        async def send(data: bytes) -> None:
            await context.write(peer_pb2.CarryResponse(data=data))

        async def stands() -> None:
            await context.write(peer_pb2.CarryResponse())

        end = StreamEnd(receive, send)
        if first.ticket and not first.HasField("to"):
            await self._lines.carry(first.ticket, (source, node), end)
        elif first.HasField("to") and not first.ticket:
            to = Place(first.to.address, first.to.grpc_port, first.to.node)
            self._check(to, source, node)
            await self._lines.pass_on(to, source, end, stands)
        else:
            raise InvalidArgument("ticket, to: allowed: one of them in the first message")

    def _check(self, to: Place, source: str, node: str) -> None:
        """Raises PermissionDenied unless the caller and the host that it wants are in one job, which is here, too; and
        NotFound for a host that is not one that only goes out."""
        for job in self._jobs():
            hosts = [host for host, _ in job.hosts() if host is not job.own and not host.vacant]
            callers = [h for h in hosts if (h.node == node if node else same_machine(source, h.address))]
            wanted = [host for host in hosts if host.place == to]
            if callers and wanted:
                if not wanted[0].outward:
                    raise NotFound(f"to = {to}: does not attend here")
                return
        raise PermissionDenied(f"to = {to}: is in no job here with {node or source}, which calls")


async def _first(requests: Any) -> peer_pb2.CarryRequest:
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            first: peer_pb2.CarryRequest = await anext(requests)
            return first
    except TimeoutError:
        raise DeadlineExceeded(f"the first message did not come within {REQUEST_SECONDS:g} s") from None
    except StopAsyncIteration:
        raise InvalidArgument("the call ended without a message") from None
