# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a job meet: what a client says of it, and what that means for this daemon.

A daemon that listens for peers goes to the coordinator that the client names. One that does not serves jobs of its own
host only, where it is the coordinator itself: a rendezvous that names this very host is as good as none, and one that
names another host is refused at once, since nobody there could answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from ultima.daemon.base.addresses import is_here, listens, numeric
from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.base.errors import FailedPrecondition, InvalidArgument, Unavailable
from ultima.daemon.base.names import Names
from ultima.daemon.base.ranges import shown
from ultima.daemon.hosts.host import Place, split_target
from ultima.v1 import trainer_pb2
from ultima.v1.limits import MEET_MAX

ALONE = "this daemon has no `bind` and serves its own host alone: start it with --bind ADDR and certificates"
ALONE_ADDRESS = "127.0.0.1"  # for people; nobody else is told it


@dataclass(frozen=True, slots=True)
class Where:
    """Where the coordinator is, None for this daemon; and how the client says that this host is found, if it does."""

    rendezvous: Place | None = None
    advertise: str = ""
    others: tuple[Place, ...] = ()
    """Further daemons at which the hosts of a job that come and go may meet."""


class Meeting:
    """See the module."""

    def __init__(self, config: DaemonConfig, grpc_port: int) -> None:
        """`grpc_port` is 0 where the daemon does not listen for peers."""
        self._port, self._grpc_port = config.port, grpc_port
        self._names = Names()

    async def where(self, request: trainer_pb2.JoinJobRequest, uid: int) -> Where:
        """What a user's request to join means. Raises InvalidArgument; FailedPrecondition for another host."""
        if request.rank_addresses and request.rendezvous:
            raise InvalidArgument("rendezvous, rank_addresses: allowed: one of them")
        if request.rank_addresses and len(request.rank_addresses) != request.world_size:
            raise InvalidArgument(
                f"rank_addresses: {len(request.rank_addresses)} entries: "
                f"allowed: none, or world_size = {request.world_size}"
            )
        named = [(f"rank_addresses[{i}]", text) for i, text in enumerate(request.rank_addresses)]
        meets = request.rendezvous.split(",") if request.rendezvous else []
        if len(meets) > (MEET_MAX if request.least else 1):
            most = f"up to {MEET_MAX}" if request.least else "one, unless least is given"
            raise InvalidArgument(f"rendezvous = {shown(request.rendezvous)}: {len(meets)} places: allowed: {most}")
        named += [("rendezvous", text) for text in meets]
        places = [_place(name, text) for name, text in named]
        if not places:
            return Where()
        if not self._grpc_port:
            for place, (name, text) in dict(zip(places, named, strict=True)).items():
                if not await self._is_this_daemon(place, f"uid {uid}"):
                    raise FailedPrecondition(f"{name} = {shown(text)}: not this host: {ALONE}")
            return Where()
        if request.rendezvous:
            return Where(places[0], others=tuple(places[1:]))
        return self._among(request, places)

    def _among(self, request: trainer_pb2.JoinJobRequest, places: list[Place]) -> Where:
        if not 0 <= request.rank < len(places):
            raise InvalidArgument(f"rank = {request.rank}: allowed: 0 to {len(places) - 1}")
        address, port, _ = places[request.rank]
        if port != self._grpc_port:
            raise InvalidArgument(
                f"rank_addresses[{request.rank}] = {shown(request.rank_addresses[request.rank])}: "
                f"the daemon of this rank listens on port {self._grpc_port}"
            )
        return Where(places[0], address if numeric(address) else "")

    async def _is_this_daemon(self, place: Place, account: str) -> bool:
        """Whether a place is on this host, and not another daemon's there."""
        address, port, _ = place
        try:
            where, *_ = await self._names.resolve(address, account)
        except Unavailable:
            return False
        return is_here(where) and (port == (self._port or port) or not await listens(where, port))


def _place(name: str, text: str) -> Place:
    try:
        return Place(*split_target(text))
    except ValueError as error:
        raise InvalidArgument(f"{name} = {shown(text)}: {error}") from None
