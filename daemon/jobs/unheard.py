# SPDX-License-Identifier: Apache-2.0
"""Which UDP packets of a job do not get through, by counters at both ends of a path, and whose fault that is.

Pure functions. TCP is known to get through, for the counts of the other end came over it; so what is proved here is a
port that something on the way drops, such as a firewall.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ultima.daemon.base.waiting import numbers
from ultima.daemon.hosts.host import Host
from ultima.v1 import peer_pb2, types_pb2

NAME = "udp blocked"
PROOF_PACKETS = 12  # that must all be lost: where six of ten are lost by chance, all of 12 are in 1 of 450 cases
PAIRS_TOLD = 3


class Unheard(NamedTuple):
    """Packets of one kind that do not get from one host of a job to another, by a lane and a port."""

    from_host: int
    to_host: int
    lane: int
    feedback: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one end of a path since it was made: data packets sent, data bytes heard, feedbacks sent to either port, and
    heard at the feedback port and, beside data, at the data port."""

    data_sent: int = 0
    data_heard: int = 0
    feedback_sent: int = 0
    feedback_heard: int = 0
    feedback_beside: int = 0

    def sent(self, feedback: bool) -> int:
        """Packets of that kind that went out."""
        return self.feedback_sent if feedback else self.data_sent

    def heard(self, feedback: bool) -> int:
        """A number that grows with each packet of that kind that comes in."""
        return self.feedback_heard if feedback else self.data_heard


@dataclass(frozen=True, slots=True)
class Sample:
    """Both ends of a path, per lane: `here` was read first, `there` was asked for after that."""

    here: tuple[Counts, ...]
    there: tuple[Counts, ...]


def proved(samples: Sequence[Sample], here: int, there: int) -> tuple[set[Unheard], set[Unheard]]:
    """What does not get through between two hosts, by samples in order of time, and what was heard since the last but
    one: the latter takes back what was found before.

    What is sent is counted up to the last sample but one, what is heard up to the last, so nothing is taken for lost
    that is still on its way.
    """
    lost: set[Unheard] = set()
    came: set[Unheard] = set()
    if len(samples) < 2:
        return lost, came
    for lane in range(len(samples[-1].here)):
        for feedback in (False, True):
            for outward in (True, False):
                sent = [_end(sample, outward)[lane].sent(feedback) for sample in samples]
                heard = [_end(sample, not outward)[lane].heard(feedback) for sample in samples]
                what = Unheard(*((here, there) if outward else (there, here)), lane, feedback)
                first = len(heard) - 1
                while first and heard[first - 1] == heard[-1]:
                    first -= 1
                first = min(first, len(sent) - 2)
                ends = [_end(sample, not outward)[lane] for sample in (samples[first], samples[-1])]
                elsewhere = ends[1].feedback_beside - ends[0].feedback_beside if feedback else 0
                if sent[-2] - sent[first] - elsewhere >= PROOF_PACKETS:
                    lost.add(what)
                if heard[-1] > heard[-2]:
                    came.add(what)
    return lost, came


def _end(sample: Sample, here: bool) -> tuple[Counts, ...]:
    return sample.here if here else sample.there


def to_blame(unheard: Iterable[Unheard]) -> set[int]:
    """The hosts that have a part in most of the pairs; of two alike, the one that does not hear, as firewalls mostly
    drop what comes in. Both where neither direction works. The same pairs give the same result on all hosts."""
    pairs = {(each.from_host, each.to_host) for each in unheard}
    score: dict[int, tuple[int, int]] = {}
    for sender, receiver in pairs:
        for host, deaf in ((sender, 0), (receiver, 1)):
            parts, deafness = score.get(host, (0, 0))
            score[host] = (parts + 1, deafness + deaf)
    most = max(score.values(), default=(0, 0))
    return {host for host, parts in score.items() if parts == most}


def sentence(unheard: Collection[Unheard], hosts: Sequence[Host]) -> str:
    """What does not get through, by which ports, and what to do, for people; the same on all hosts of the job."""
    pairs = sorted({(each.from_host, each.to_host) for each in unheard})
    told = []
    for sender, receiver in pairs[:PAIRS_TOLD]:
        listed = ports_of([each for each in unheard if (each.from_host, each.to_host) == (sender, receiver)], hosts)
        told.append(
            f"from host {sender} ({hosts[sender].place}) to host {receiver} ({hosts[receiver].place}), "
            f"UDP port{'s' * (len(listed) > 1)} {numbers(listed)}"
        )
    more = f", and {len(pairs) - PAIRS_TOLD} other pairs of hosts" if len(pairs) > PAIRS_TOLD else ""
    blamed = " and ".join(f"host {host}" for host in sorted(to_blame(unheard)))
    peer = hosts[pairs[0][1]].place
    return (
        f"UDP does not get through {'; nor '.join(told)}{more}; TCP does. Open these UDP ports in the firewall of "
        f"{blamed}, and between the hosts; `ultima doctor --peer {peer}` tries them"
    )


def ports_of(unheard: Iterable[Unheard], hosts: Sequence[Host]) -> list[int]:
    """The UDP ports at which it is not heard, ascending."""
    return sorted({hosts[each.to_host].ports[each.lane][each.feedback] for each in unheard})


def ailment(unheard: Collection[Unheard], hosts: Sequence[Host]) -> types_pb2.Ailment:
    """The same for status."""
    return types_pb2.Ailment(
        name=NAME, text=sentence(unheard, hosts), hosts=sorted(to_blame(unheard)), ports=ports_of(unheard, hosts)
    )


def believed(told: Iterable[peer_pb2.Unheard], teller: int, hosts: int, lanes: int) -> frozenset[Unheard]:
    """What a host may say of itself: pairs that it is one of."""
    found = {Unheard(each.from_host, each.to_host, each.lane, each.feedback) for each in told}
    return frozenset(
        each
        for each in found
        if teller in (each.from_host, each.to_host)
        and each.from_host != each.to_host
        and min(each.from_host, each.to_host) >= 0
        and max(each.from_host, each.to_host) < hosts
        and 0 <= each.lane < lanes
    )
