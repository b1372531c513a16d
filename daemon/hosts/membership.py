# SPDX-License-Identifier: Apache-2.0
"""What other daemons say of hosts and jobs, checked in one place, whoever says it and in whatever message.

A coordinator's answer, a restored record, a registration and the caller of a Connect all speak of the same things. Each
value of theirs is bounded here before anything else looks at it, so that neither the engine nor the control plane ever
meets a number that it was not made for. Where a number only makes sense near another one (an offer, the op that comes
next), the one who knows the other one bounds it by WINDOW: no single message can carry it out of reach.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from ultima.daemon.base.cpus import CPUS_MAX
from ultima.daemon.base.errors import FailedPrecondition, InvalidArgument
from ultima.daemon.base.options import DEFAULTS, Options, check_job, from_proto
from ultima.daemon.base.ranges import INT64_MAX, OP_SEQ_MAX, UINT64_MAX, shown, whole
from ultima.daemon.hosts.host import Elastic, Host, Membership, State, seat
from ultima.v1 import peer_pb2, types_pb2
from ultima.v1.limits import (
    BUCKET_BYTES_MAX,
    HOSTS_MAX,
    JOB_NAME_MAX,
    LANES_MAX,
    LOCAL_RANKS_MAX,
    PACKET_BYTES_MAX,
    PACKET_BYTES_MIN,
    PACKET_BYTES_STEP,
    WIRE_VERSION,
    WORLD_SIZE_MAX,
)
from ultima.v1.nodes import NODE_ALLOWED, is_node
from ultima.v1.wires import WIRE_NAME_MAX, WIRES_MAX

ADDRESS_MAX = 64  # characters; an IPv6 address with a scope has fewer
PORT_MAX = 65535
_WIRE_NAME = re.compile(f"[a-z0-9_]{{1,{WIRE_NAME_MAX}}}")
STATES = sorted({0, *State})


def job_name(name: str) -> str:
    """A job's name. Raises InvalidArgument."""
    if not 1 <= len(name) <= JOB_NAME_MAX or not name.isprintable():
        raise InvalidArgument(f"job = {shown(name)}: allowed: 1 to {JOB_NAME_MAX} printable characters")
    return name


def host(message: types_pb2.Host, name: str, address: str) -> Host:
    """A host; `name` is the field that it stands in, `address` stands for an empty one.

    Raises InvalidArgument, and FailedPrecondition for a host whose engine speaks another version of the protocol.
    """
    whole(f"{name}.index", message.index, 0, HOSTS_MAX - 1)
    check_address(f"{name}.address", message.address or address)
    whole(f"{name}.grpc_port", message.grpc_port, 1, PORT_MAX)
    _check_wire_version(message, address)
    _check_count(f"{name}.lanes", message.lanes, LANES_MAX)
    for i, lane in enumerate(message.lanes):
        whole(f"{name}.lanes[{i}].data_port", lane.data_port, 1, PORT_MAX)
        whole(f"{name}.lanes[{i}].feedback_port", lane.feedback_port, 1, PORT_MAX)
    whole(f"{name}.incarnation", message.incarnation, 1, UINT64_MAX)
    _check_count(f"{name}.ranks", message.ranks, LOCAL_RANKS_MAX)
    for i, rank in enumerate(message.ranks):
        whole(f"{name}.ranks[{i}]", rank, 0, WORLD_SIZE_MAX - 1)
    if len(set(message.ranks)) != len(message.ranks):
        raise InvalidArgument(f"{name}.ranks = {list(message.ranks)}: allowed: different ranks")
    whole(f"{name}.cpus", message.cpus, 0, CPUS_MAX)
    packet = whole(f"{name}.packet_bytes", message.packet_bytes, PACKET_BYTES_MIN, PACKET_BYTES_MAX)
    if packet % PACKET_BYTES_STEP:
        raise InvalidArgument(f"{name}.packet_bytes = {packet}: allowed: a multiple of {PACKET_BYTES_STEP}")
    _check_wires(f"{name}.wires", message.wires)
    if message.node and not is_node(message.node):
        raise InvalidArgument(f"{name}.node = {shown(message.node)}: allowed: {NODE_ALLOWED}")
    _check_state(f"{name}.state", message.state)
    return Host.from_proto(message, address)


def elastic(least: int, split_waits: bool, world_size: int, options: Options, each: int = 1) -> Elastic | None:
    """The rules of a job whose hosts come and go, with so many ranks on `each`; None for any other. Raises
    InvalidArgument."""
    if not least:
        return None
    whole("local_world_size", each, 1, LOCAL_RANKS_MAX)
    whole("world_size", world_size, each, HOSTS_MAX * each)
    if world_size % each:
        raise InvalidArgument(f"world_size = {world_size}: allowed: a multiple of local_world_size = {each}")
    whole("least", least, 1, world_size // each)
    if options.partial or options.algorithm != DEFAULTS.algorithm:
        what, allowed = ("policy", "none") if options.partial else ("algorithm", "tar")
        raise InvalidArgument(f"{what} = {options.words()[what]}: allowed: {allowed}, as hosts of the job come and go")
    return Elastic(least, split_waits, each)


def seats(name: str, numbers: Sequence[int]) -> frozenset[int]:
    """Numbers of seats. Raises InvalidArgument."""
    if len(numbers) > HOSTS_MAX:
        raise InvalidArgument(f"{name}: {len(numbers)} entries: allowed: up to {HOSTS_MAX}")
    return frozenset(whole(f"{name}[{i}]", number, 0, HOSTS_MAX - 1) for i, number in enumerate(numbers))


def _seat_or_host(message: types_pb2.Host, name: str, address: str, seats: bool) -> Host:
    if not seats or message.incarnation:
        return host(message, name, address)
    packet = whole(f"{name}.packet_bytes", message.packet_bytes, PACKET_BYTES_MIN, PACKET_BYTES_MAX)
    _check_wires(f"{name}.wires", message.wires)
    return seat(message.index, tuple(message.ranks), packet, tuple(message.wires))


def hosts(messages: Sequence[types_pb2.Host], world_size: int, address: str, seats: bool = False) -> tuple[Host, ...]:
    """All hosts of a job, by index, with each rank of its world once. `seats`: some may be vacant. Raises
    InvalidArgument."""
    whole("world_size", world_size, 1, WORLD_SIZE_MAX)
    _check_count("hosts", messages, HOSTS_MAX)
    ret = tuple(_seat_or_host(each, f"hosts[{i}]", address, seats) for i, each in enumerate(messages))
    for i, one in enumerate(ret):
        if one.index != i:
            raise InvalidArgument(f"hosts[{i}].index = {one.index}: allowed: {i}: all hosts in order of their index")
    _check_different("place", [str(one.place) for one in ret if not one.vacant])
    ranks = [rank for one in ret for rank in one.ranks]
    _check_different("rank", ranks)
    if sorted(ranks) != list(range(world_size)):
        raise InvalidArgument(
            f"hosts: {len(ranks)} ranks, the highest is {max(ranks)}: allowed: each of the {world_size} ranks once"
        )
    return ret


def membership(
    message: peer_pb2.RegisterResponse | peer_pb2.RestoreRequest, world_size: int, address: str
) -> Membership:
    """A whole membership of a job with so many ranks; `address` stands for an empty one. Raises InvalidArgument."""
    under_way = message.under_way if isinstance(message, peer_pb2.RegisterResponse) else True
    generation = whole("generation", message.generation, 1, INT64_MAX)
    options = from_proto(message.options)
    check_job(options, world_size)
    each = len(message.hosts[0].ranks) if message.hosts else 1
    rules = elastic(message.least, message.split_waits, world_size, options, each)
    members = hosts(message.hosts, world_size, address, rules is not None)
    for one in members:
        if rules is not None and one.ranks != rules.ranks_of(one.index):
            told, allowed = list(one.ranks), list(rules.ranks_of(one.index))
            raise InvalidArgument(f"hosts[{one.index}].ranks = {told}: allowed: {allowed}, the ranks of this seat")
    there = [len(one.ports) for one in members if not one.vacant]
    lanes = whole("lanes", message.lanes, 1, 1 if options.partial else min(there, default=1))
    return Membership(
        generation=generation,
        world_size=world_size,
        bucket_bytes_max=whole("bucket_bytes_max", message.bucket_bytes_max, 1, BUCKET_BYTES_MAX),
        hosts=members,
        states=tuple(State(one.state) if one.state else State.CONNECTING for one in message.hosts),
        next_op_seq=whole("next_op_seq", message.next_op_seq, 0, OP_SEQ_MAX),
        under_way=under_way,
        options=options,
        lanes=lanes,
        portions=_portions(message.portions, lanes),
        elastic=rules,
    )


def _portions(said: int, lanes: int) -> int:
    if said not in (0, 1, lanes):
        raise InvalidArgument(f"portions = {said}: allowed: 1, or {lanes}: as many as lanes")
    return said or 1


def check_address(name: str, address: str) -> None:
    """Raises InvalidArgument for anything but the numeric address of one host."""
    try:
        numeric = ipaddress.ip_address(address) if len(address) <= ADDRESS_MAX else None
    except ValueError:
        numeric = None
    if numeric is None or numeric.is_unspecified or numeric.is_multicast:
        raise InvalidArgument(f"{name} = {shown(address)}: allowed: the numeric address of a host")


def _check_wire_version(message: types_pb2.Host, address: str) -> None:
    """Engines of two versions would turn away each other's datagrams, and their hosts wait for nothing."""
    version = message.wire_version or 1
    if version != WIRE_VERSION:
        host = Host.from_proto(message, address).name
        raise FailedPrecondition(f"{host} speaks wire version {version}, this daemon {WIRE_VERSION}")


def _check_wires(name: str, wires: Sequence[str]) -> None:
    """A newer release may know forms that this one has never heard of, so only what may be a name is asked."""
    if len(wires) > WIRES_MAX:
        raise InvalidArgument(f"{name}: {len(wires)} entries: allowed: up to {WIRES_MAX}")
    for i, wire in enumerate(wires):
        if not _WIRE_NAME.fullmatch(wire):
            raise InvalidArgument(
                f"{name}[{i}] = {shown(wire)}: allowed: 1 to {WIRE_NAME_MAX} lower-case letters, digits and '_'"
            )


def _check_count(name: str, values: Sequence[object], most: int) -> None:
    if not 1 <= len(values) <= most:
        raise InvalidArgument(f"{name}: {len(values)} entries: allowed: 1 to {most}")


def _check_state(name: str, value: int) -> None:
    if value not in STATES:
        raise InvalidArgument(f"{name} = {value}: allowed: {', '.join(map(str, STATES))}")


def _check_different(what: str, values: Sequence[object]) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise InvalidArgument(f"hosts: {what} {value} is there twice: allowed: once")
        seen.add(value)
