# SPDX-License-Identifier: Apache-2.0
"""What `ultima doctor` says of UDP ports that were tried: one cause, one finding, whatever shows it.

Pure functions. A firewall closes all ports of a host at once, to all peers and often in both directions, and somebody
who reads a finding for each of them has to find the cause by himself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ultima.daemon.jobs.trial import PACKETS
from ultima.daemon.rpc.local_checks import FAILURE, OK, check
from ultima.v1 import admin_pb2

PEERS_TOLD = 3


class Tried(NamedTuple):
    """One port in one direction, tried with one peer."""

    peer: str
    """ADDRESS:PORT of its daemon."""
    outward: bool
    """From here to a port of the peer; else from the peer to a port of this host."""
    port: int
    feedback: bool
    came: bool


def of_udp(tried: Sequence[Tried]) -> list[admin_pb2.Check]:
    """The findings: those of ports that are closed first, then one for each peer whose ports all are open."""
    closed = [each for each in tried if not each.came]
    by_way: dict[tuple[bool, frozenset[int]], list[str]] = defaultdict(list)
    """Peers with which just these ports are closed in that direction."""
    for peer in dict.fromkeys(each.peer for each in closed):
        for outward in (True, False):
            ports = frozenset(each.port for each in closed if (each.peer, each.outward) == (peer, outward))
            if ports:
                by_way[outward, ports].append(peer)
    checks: list[admin_pb2.Check] = []
    while by_way:
        (outward, ports), peers = by_way.popitem()
        ways = {outward: ports}
        other = next((way for way in by_way if way[0] != outward and by_way[way] == peers), None)
        if other is not None:
            del by_way[other]
            ways[other[0]] = other[1]
        checks.insert(0, _closed(ways, peers, closed))
    for peer in dict.fromkeys(each.peer for each in tried):
        ports = frozenset(each.port for each in tried if each.peer == peer)
        if not any(each.peer == peer for each in closed):
            finding = f"UDP {numbers(ports)} gets through in both directions"
            checks.append(check("udp", OK, finding, subject=peer))
    return checks


def _closed(ways: dict[bool, frozenset[int]], peers: Sequence[str], closed: Iterable[Tried]) -> admin_pb2.Check:
    """`ways`: the closed ports by direction, True for outward. The name says which kind of port it is."""
    ports = frozenset[int]().union(*ways.values())
    kinds = {each.feedback for each in closed if each.peer in peers and each.port in ports}
    name = "udp" if len(kinds) == 2 else "udp feedback port" if kinds == {True} else "udp data port"
    listed = ", ".join(peers[:PEERS_TOLD]) + (f" and {len(peers) - PEERS_TOLD} more" if len(peers) > PEERS_TOLD else "")
    told = []
    if True in ways:
        told.append(f"from here to UDP {numbers(ways[True])} of {listed}")
    if False in ways:
        told.append(f"from {'there' if told else listed} to UDP {numbers(ways[False])} of this host")
    finding = f"none of {PACKETS} datagrams arrived {', nor '.join(told)}, though TCP gets through"
    here, there = sorted(ways.get(False, ())), sorted(ways.get(True, ()))
    if here and there:
        which = numbers(here) if here == there else f"{numbers(here)} here and {numbers(there)} there"
        where = "in the firewalls of this host and of the peers" if len(peers) > 1 else "in the firewalls of both hosts"
    elif here:
        which, where = numbers(here), "in the firewall of this host"
    else:
        which, where = numbers(there), f"in the firewall of {listed}"
    return check(name, FAILURE, finding, f"open UDP {which} {where}, and on the way", listed)


def numbers(ports: Iterable[int]) -> str:
    """Ports in ascending order, with runs of three or more as a range: "29521-29524, 29530"."""
    runs: list[list[int]] = []
    for port in sorted(set(ports)):
        if runs and port == runs[-1][-1] + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(port) for port in run] for run in runs]
    return ", ".join(part for each in parts for part in each)
