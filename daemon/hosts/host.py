# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job as values: who each is, where it listens, which ranks it has, and the whole membership."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple
from urllib.parse import unquote

from ultima.daemon.base.options import DEFAULTS, Options
from ultima.v1 import peer_pb2, types_pb2
from ultima.v1.limits import WIRE_VERSION


class State(IntEnum):
    """How a host looks from another one: HostState of types.proto."""

    CONNECTING = types_pb2.HOST_STATE_CONNECTING
    UP = types_pb2.HOST_STATE_UP
    ABSENT = types_pb2.HOST_STATE_ABSENT


class Place(NamedTuple):
    """Where a daemon listens for its peers, and which node must answer there; "" for any, or among insecure daemons.

    Two nodes are never at one place: whoever answers there with another certificate is at another one.
    """

    address: str
    port: int
    node: str = ""

    def __str__(self) -> str:
        return target(self.address, self.port)


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a job. `ranks` ascend; `incarnation` is one life of the host in the job."""

    index: int
    address: str
    grpc_port: int
    ports: tuple[tuple[int, int], ...]
    """Data and feedback port of each of its lanes."""
    incarnation: int
    ranks: tuple[int, ...]
    packet_bytes: int
    node: str = ""
    """Of its daemon, by its certificate; "" among daemons without certificates."""
    cpus: int = 0
    """That its daemon may keep busy, and its ranks; 0 if it does not say."""
    wires: tuple[str, ...] = ()
    """Forms of few bits that its engine knows; of a host that came into a job under way: those that the job has."""
    natted: bool = False
    """It stands behind a NAT: datagrams reach it only from where it has sent some to."""
    outward: bool = False
    """No connection to it comes about: it attends at the daemons that can be dialled (lines.py)."""

    @property
    def vacant(self) -> bool:
        """It is a seat that nobody has, in a job whose hosts come and go."""
        return self.incarnation == 0

    @property
    def place(self) -> Place:
        """Where its daemon listens for peers, and who it is."""
        return Place(self.address, self.grpc_port, self.node)

    @property
    def name(self) -> str:
        """For people."""
        where = str(self.place) if self.grpc_port else "nobody" if self.vacant else "this one"
        return f"host {self.index} ({where})"

    def to_proto(self, state: State | None = None) -> types_pb2.Host:
        """As a message; `state` is how we see it."""
        return types_pb2.Host(
            index=self.index,
            address=self.address,
            grpc_port=self.grpc_port,
            lanes=[types_pb2.Lane(data_port=data, feedback_port=feedback) for data, feedback in self.ports],
            incarnation=self.incarnation,
            ranks=self.ranks,
            packet_bytes=self.packet_bytes,
            wire_version=WIRE_VERSION,
            node=self.node,
            cpus=self.cpus,
            wires=self.wires,
            natted=self.natted,
            outward=self.outward,
            state=types_pb2.HOST_STATE_UNSPECIFIED if state is None else types_pb2.HostState.ValueType(int(state)),
        )

    @classmethod
    def from_proto(cls, host: types_pb2.Host, address: str = "") -> Host:
        """From a message; `address` stands in for an empty one."""
        return cls(
            index=host.index,
            address=host.address or address,
            grpc_port=host.grpc_port,
            ports=tuple((lane.data_port, lane.feedback_port) for lane in host.lanes),
            incarnation=host.incarnation,
            ranks=tuple(sorted(host.ranks)),
            packet_bytes=host.packet_bytes,
            node=host.node,
            cpus=host.cpus,
            wires=tuple(host.wires),
            natted=host.natted,
            outward=host.outward,
        )


class Elastic(NamedTuple):
    """Rules of a job whose hosts come and go. Each seat is for one host, with as many ranks as all others."""

    least: int
    """Hosts that an op needs: with fewer it ends INSUFFICIENT."""
    split_waits: bool = False
    """Hosts that were cut off from most of the others wait until they meet again; else they go on by themselves."""
    each: int = 1
    """Ranks on each host."""

    def __str__(self) -> str:
        several = f", local_world_size {self.each}" if self.each > 1 else ""
        return f"elastic, least {self.least}, split {self.split}{several}"

    def ranks_of(self, index: int) -> tuple[int, ...]:
        """Of the host with this seat."""
        return tuple(range(index * self.each, (index + 1) * self.each))

    @property
    def split(self) -> str:
        """As people write it."""
        return "wait" if self.split_waits else "go on"


@dataclass(frozen=True, slots=True)
class Membership:
    """All hosts of a job, in order of their index, with the state of each as the coordinator sees it."""

    generation: int
    world_size: int
    bucket_bytes_max: int
    hosts: tuple[Host, ...]
    states: tuple[State, ...]
    next_op_seq: int
    under_way: bool
    options: Options = DEFAULTS
    """What the ranks asked for, the same for all."""
    lanes: int = 1
    portions: int = 1
    """Into which a large op is split: 1, or as many as there are lanes."""
    elastic: Elastic | None = None
    """Hosts come and go: `hosts` has a host for each seat."""
    meet: frozenset[Place] = frozenset()
    """Other daemons at which they meet. A host that is in tells them how it is, and of the job if they forgot it."""

    def to_proto(self) -> peer_pb2.RegisterResponse:
        """As the answer to a registration."""
        return peer_pb2.RegisterResponse(
            hosts=[host.to_proto(state) for host, state in zip(self.hosts, self.states, strict=True)],
            generation=self.generation,
            bucket_bytes_max=self.bucket_bytes_max,
            next_op_seq=self.next_op_seq,
            under_way=self.under_way,
            options=self.options.to_proto(),
            lanes=self.lanes,
            portions=self.portions,
            least=self.elastic.least if self.elastic else 0,
            split_waits=bool(self.elastic and self.elastic.split_waits),
        )


def seat(index: int, ranks: tuple[int, ...], packet_bytes: int, wires: tuple[str, ...] = ()) -> Host:
    """One that nobody has; who takes it has these ranks, and knows `wires`."""
    return Host(index, "", 0, (), 0, ranks, packet_bytes, wires=wires)


def fresh_number() -> int:
    """A random number that is never 0 and fits an int64: an incarnation or a generation."""
    return secrets.randbits(62) + 1


def target(address: str, port: int) -> str:
    """ "address:port", with brackets around an IPv6 address."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def split_target(text: str) -> tuple[str, int]:
    """Host name or numeric address, and port, of "host:port" or "[v6]:port". Raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+)):(\d{1,5})", text)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ValueError('allowed: "host:port" or "[v6]:port"')
    if match[1]:
        ipaddress.IPv6Address(match[1])
    return match[1] or match[2], int(match[3])


def address_of_peer(peer: str) -> str:
    """The numeric address in what gRPC says of the other end: "ipv4:10.0.0.1:5432", "ipv6:%5B::1%5D:5432"; else ""."""
    match = re.fullmatch(r"ipv[46]:\[?([^\]]+?)\]?:\d+", unquote(peer))
    return match[1] if match else ""


def order(hosts: Iterable[Host]) -> list[Host]:
    """Hosts by their lowest rank, which is their index from then on."""
    ranked = sorted(hosts, key=lambda host: host.ranks[0])
    return [replace(host, index=index) for index, host in enumerate(ranked)]
