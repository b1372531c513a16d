# SPDX-License-Identifier: Apache-2.0
"""Seats of a job whose hosts come and go: how they are given, as values and rules.

A job has as many seats as it may have ranks, and each host in it has one. A seat is free when nobody had it yet, or
when its holder is gone. It may then be given again: data of the old holder cannot be taken for the new one's, as paths
have fresh connection ids and ops name the view under which they run (daemon/jobs/epoch.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from ultima.daemon.base.errors import FailedPrecondition
from ultima.daemon.hosts.host import Host, Membership, State, seat
from ultima.daemon.hosts.registration import Record, Registration, check_options, check_wires, common_wires

SETTLE_SECONDS = 1.0  # for which nobody came any more, before a job begins with fewer hosts than it has seats
REFUSED_SECONDS = 5.0  # after which a spare may be given a seat again that hosts of the job refused it
TAKEN_SECONDS = 60.0  # for a host to come up that was given a seat; the longest join of a daemon's default limits


def seated(registrations: Iterable[Registration], most: int) -> list[Host]:
    """The hosts of a job that begins, and its free seats."""
    came = list(registrations)
    rules, packet = came[0].elastic, min(each.host.packet_bytes for each in came)
    assert rules is not None
    hosts = [replace(r.host, index=i, ranks=rules.ranks_of(i), packet_bytes=packet) for i, r in enumerate(came)]
    return [*hosts, *(seat(i, rules.ranks_of(i), packet, common_wires(hosts)) for i in range(len(came), most))]


def free_seat(record: Record, host: Host, now: float, taken: Set[int] = frozenset()) -> int | None:
    """The seat that a host gets which has none, none of the `taken` ones; None if there is none. One life of a daemon
    follows another one."""
    for known in record.hosts:
        if not known.vacant and known.place == host.place and known.index not in taken:
            return known.index
    for index, state in enumerate(record.states):
        slow = state is State.CONNECTING and now > record.taken_at.get(index, now) + TAKEN_SECONDS
        if index not in taken and (state is State.ABSENT or slow):
            return index
    return None


def check_newcomer(new: Registration, record: Record) -> None:
    """Raises FailedPrecondition unless a host fits a job that is under way."""
    if record.elastic is None or new.elastic is None:
        says, has = ("elastic", "fixed") if new.elastic else ("fixed", "elastic")
        raise FailedPrecondition(
            f"job {new.job!r}: world differs: this rank says {says}, the job that is under way began with {has}"
        )
    for name, here, there in (
        ("local_world_size", new.elastic.each, record.elastic.each),
        ("most", new.seats, record.world_size // record.elastic.each),
        ("least", new.elastic.least, record.elastic.least),
        ("split", new.elastic.split, record.elastic.split),
    ):
        if here != there:
            raise FailedPrecondition(
                f"job {new.job!r}: {name} differs: this rank says {here}, the job that is under way began with {there}"
            )
    check_options(new.job, new.rank, new.options, record.options)
    check_wires(new, record.hosts)
    for name, value, least in (
        ("engine.lanes", len(new.host.ports), record.lanes),
        ("engine.packet_bytes", new.host.packet_bytes, record.hosts[0].packet_bytes),
    ):
        if value < least:
            raise FailedPrecondition(
                f"job {new.job!r}: {name} = {value} on {new.host.address}: the job that is under way has {least}"
            )


def take_seat(new: Registration, record: Record, now: float) -> Membership | None:
    """The membership as a host is to know it, which has a seat from now on; None if all seats are taken.

    Who is there when the job begins is told of each other alone: all others are newcomers to them. Raises
    FailedPrecondition.
    """
    founder = next((host for host in record.founders if host.incarnation == new.host.incarnation), None)
    if founder is not None:
        here = [State.ABSENT if host.vacant else State.CONNECTING for host in record.founders]
        return _told(record, record.founders, here, under_way=False)
    index = next((host.index for host in record.hosts if host.incarnation == new.host.incarnation), None)
    if index is None:
        check_newcomer(new, record)
        for known in [each for each in record.hosts if each.index in new.taken and each.place == new.host.place]:
            vacate(record, known.index)
        index = free_seat(record, new.host, now, new.taken)
        if index is None:
            return None
        packet, wires = record.hosts[index].packet_bytes, common_wires(record.hosts)
        ranks = record.hosts[index].ranks
        record.hosts[index] = replace(new.host, index=index, ranks=ranks, packet_bytes=packet, wires=wires)
        record.states[index], record.taken_at[index] = State.CONNECTING, now
    return _told(record, record.hosts, record.states, under_way=True)


def take_news(record: Record, told: Membership) -> None:
    """Seats that a host of a job says are taken, and of which this daemon does not know that their hosts are there: the
    hosts of a job may meet at several daemons. A host has one seat: another one that it had here is free."""
    if record.elastic is None or told.elastic is None or record.generation != told.generation:
        return
    for index, (host, state) in enumerate(zip(told.hosts, told.states, strict=True)):
        if index < len(record.hosts) and state is State.UP and not host.vacant and _is_unsure(record, index, host):
            for known in [each for each in record.hosts if each.index != index and each.place == host.place]:
                vacate(record, known.index)
            record.hosts[index], record.states[index] = host, State.UP


def _is_unsure(record: Record, index: int, host: Host) -> bool:
    """Whether a seat that is said to be that host's has nobody here, or another host that has yet to come."""
    state = record.states[index]
    return state is State.ABSENT or (state is State.CONNECTING and record.hosts[index].place != host.place)


def vacate(record: Record, index: int) -> None:
    """A host that was given a seat does not have it."""
    host = record.hosts[index]
    record.hosts[index] = seat(index, host.ranks, host.packet_bytes, host.wires)
    record.states[index] = State.ABSENT


def _told(record: Record, hosts: Iterable[Host], states: Iterable[State], under_way: bool) -> Membership:
    return Membership(
        record.generation,
        record.world_size,
        record.bucket_bytes_max,
        tuple(hosts),
        tuple(states),
        record.next_op_seq,
        under_way,
        record.options,
        record.lanes,
        record.portions,
        record.elastic,
    )
