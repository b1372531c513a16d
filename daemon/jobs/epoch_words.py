# SPDX-License-Identifier: Apache-2.0
"""Words of the agreement on epochs as messages of peer.proto, and back.

Another host may say anything, so what it tells is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ultima.daemon.base.errors import InvalidArgument
from ultima.daemon.base.options import Options, named
from ultima.daemon.base.options import from_proto as options_from_proto
from ultima.daemon.base.ranges import OP_SEQ_MAX, whole
from ultima.daemon.jobs.epoch import NO_BALLOT, OPTIONS, Ask, Ballot, Epoch, Fork, Member, Word
from ultima.v1 import peer_pb2
from ultima.v1.limits import HOSTS_MAX

LINE_MAX = 64  # forks, each of which took a cut and no meeting since
OPTION_MAX = 0xFFFF


def to_proto(word: Word) -> peer_pb2.EpochWord:
    """A word as it is told."""
    told = peer_pb2.EpochWord(
        serial=word.serial,
        next_op_seq=word.next_op,
        sees=[_member(m) for m in sorted(word.sees)],
        newest=word.newest,
        opened=word.opened,
        leaving=word.leaving,
        wishes=word.wishes,
        hold=word.hold,
        damped=[_member(m) for m in sorted(word.damped)],
    )
    for name, value in word.change:
        setattr(told.change, name, value)
    if word.epoch is not None:
        told.epoch.CopyFrom(epoch_to_proto(word.epoch))
    if word.promised != NO_BALLOT:
        told.promised.CopyFrom(_ballot(word.promised))
    if word.accepted is not None:
        told.accepted_ballot.CopyFrom(_ballot(word.accepted[0]))
        told.accepted.CopyFrom(epoch_to_proto(word.accepted[1]))
    if word.ask is not None:
        told.ask_ballot.CopyFrom(_ballot(word.ask.ballot))
        told.ask_again = word.ask.again
        if word.ask.child is not None:
            told.ask.CopyFrom(epoch_to_proto(word.ask.child))
    return told


def epoch_to_proto(epoch: Epoch) -> peer_pb2.Epoch:
    """An epoch as it is told."""
    return peer_pb2.Epoch(
        number=epoch.number,
        parent=epoch.parent,
        start=epoch.start,
        members=[_member(m) for m in epoch.members],
        owners=mask(epoch.owners),
        line=[peer_pb2.EpochFork(weight=f.weight, number=f.number, maker=_member(f.maker)) for f in epoch.line],
        options=epoch.options,
        settings=epoch.settings.to_proto(),
    )


def from_proto(told: peer_pb2.EpochWord, hosts: int, began: Options, fit: Callable[[Options], None]) -> Word:
    """A word that another one of so many hosts told. `fit` raises Refused for options that the job cannot have, which
    `began` with these. Raises Refused."""
    if change := named(told.change):
        fit(began.with_changes(told.change))
    accepted = ask = None
    if told.HasField("accepted"):
        accepted = _ballot_of(told.accepted_ballot, hosts), _epoch_of(told.accepted, hosts, fit)
    if told.HasField("ask_ballot"):
        child = _epoch_of(told.ask, hosts, fit) if told.HasField("ask") else None
        ask = Ask(_ballot_of(told.ask_ballot, hosts), child, told.ask_again)
    return Word(
        serial=told.serial,
        epoch=_epoch_of(told.epoch, hosts, fit) if told.HasField("epoch") else None,
        next_op=whole("next_op_seq", told.next_op_seq, 0, OP_SEQ_MAX),
        sees=frozenset(_members_of("sees", told.sees, hosts)),
        newest=whole("newest", told.newest, 0, OP_SEQ_MAX),
        opened=told.opened,
        leaving=told.leaving,
        wishes=_options_of("wishes", told.wishes),
        change=tuple(change.items()),
        promised=_ballot_of(told.promised, hosts) if told.HasField("promised") else NO_BALLOT,
        hold=whole("hold", told.hold, 0, OP_SEQ_MAX),
        accepted=accepted,
        ask=ask,
        damped=frozenset(_members_of("damped", told.damped, hosts)),
    )


def mask(members: Iterable[Member]) -> int:
    """The slots of members, as bits."""
    return sum(1 << m.slot for m in members)


def _member(member: Member) -> peer_pb2.EpochMember:
    return peer_pb2.EpochMember(slot=member.slot, life=member.life)


def _ballot(ballot: Ballot) -> peer_pb2.EpochBallot:
    return peer_pb2.EpochBallot(round=ballot.round, slot=ballot.slot)


def _ballot_of(told: peer_pb2.EpochBallot, hosts: int) -> Ballot:
    return Ballot(whole("round", told.round, 0, OP_SEQ_MAX), whole("slot", told.slot, 0, hosts - 1))


def _members_of(name: str, told: Iterable[peer_pb2.EpochMember], hosts: int) -> tuple[Member, ...]:
    members = tuple(Member(whole(f"{name}.slot", m.slot, 0, hosts - 1), m.life) for m in told)
    if len({m.slot for m in members}) != len(members) or len(members) > HOSTS_MAX:
        raise InvalidArgument(f"{name}: allowed: each slot once")
    return members


def _options_of(name: str, told: Iterable[int]) -> tuple[int, ...]:
    options = tuple(whole(name, value, 0, OPTION_MAX) for value in told)
    if len(options) != OPTIONS:
        raise InvalidArgument(f"{name}: {len(options)} values: allowed: {OPTIONS}")
    return options


def _epoch_of(told: peer_pb2.Epoch, hosts: int, fit: Callable[[Options], None]) -> Epoch:
    settings = options_from_proto(told.settings)
    fit(settings)
    members = _members_of("members", told.members, hosts)
    owners = frozenset(m for m in members if told.owners >> m.slot & 1)
    if not owners or mask(owners) != told.owners:
        raise InvalidArgument(f"owners = {told.owners:#x}: allowed: one or more of the members, {mask(members):#x}")
    if len(told.line) > LINE_MAX:
        raise InvalidArgument(f"line: {len(told.line)} forks: allowed: up to {LINE_MAX}")
    forks = (
        Fork(
            whole("weight", fork.weight, 1, hosts),
            whole("number", fork.number, 0, OP_SEQ_MAX),
            *_members_of("maker", [fork.maker], hosts),
        )
        for fork in told.line
    )
    return Epoch(
        number=whole("number", told.number, 0, OP_SEQ_MAX),
        parent=told.parent,
        start=whole("start", told.start, 0, OP_SEQ_MAX),
        members=members,
        owners=owners,
        line=tuple(forks),
        options=_options_of("options", told.options),
        settings=settings,
    )
