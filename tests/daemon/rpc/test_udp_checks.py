# SPDX-License-Identifier: Apache-2.0
"""What doctor makes of UDP ports that were tried: one cause, one finding."""

from collections.abc import Callable, Sequence

import pytest

from ultima.daemon.jobs.trial import PACKETS
from ultima.daemon.rpc.local_checks import FAILURE, OK
from ultima.daemon.rpc.udp_checks import Tried, numbers, of_udp

A, B, C, D, E = (f"10.0.0.{host}:29520" for host in range(1, 6))
PORTS = ((29521, False), (29522, True), (29523, False), (29524, True))


def tried(peers: Sequence[str], closed: Callable[[str, bool, int], bool]) -> list[Tried]:
    return [
        Tried(peer, outward, port, feedback, not closed(peer, outward, port))
        for peer in peers
        for outward in (True, False)
        for port, feedback in PORTS
    ]


@pytest.mark.parametrize(
    ("closed", "findings"),
    [
        (
            lambda peer, outward, port: True,
            [("udp", f"{A}, {B}", "open UDP 29521-29524 in the firewalls of this host")],
        ),
        (
            lambda peer, outward, port: not outward,
            [("udp", f"{A}, {B}", "open UDP 29521-29524 in the firewall of this host, and on the way")],
        ),
        (
            lambda peer, outward, port: peer == A and outward,
            [("udp", A, f"open UDP 29521-29524 in the firewall of {A}, and on the way")],
        ),
        (
            lambda peer, outward, port: not outward and port in (29521, 29523),
            [("udp data port", f"{A}, {B}", "open UDP 29521, 29523 in the firewall of this host, and on the way")],
        ),
        (
            lambda peer, outward, port: outward and port == 29522,
            [("udp feedback port", f"{A}, {B}", f"open UDP 29522 in the firewall of {A}, {B}, and on the way")],
        ),
        (
            lambda peer, outward, port: (peer == A) == outward,
            [("udp", A, f"in the firewall of {A}"), ("udp", B, "in the firewall of this host")],
        ),
        (lambda peer, outward, port: False, []),
    ],
    ids=range(7),
)
def test_of_udp__one_cause_is_one_finding(
    closed: Callable[[str, bool, int], bool], findings: list[tuple[str, str, str]]
) -> None:
    checks = of_udp(tried((A, B), closed))
    failed = [each for each in checks if each.verdict == FAILURE]
    assert [(each.name, each.subject) for each in failed] == [row[:2] for row in findings]
    for each, (_, _, remedy) in zip(failed, findings, strict=True):
        assert remedy in each.remedy
    well = [each.subject for each in checks if each.verdict == OK]
    assert well == [peer for peer in (A, B) if not any(closed(peer, way, port) for way in (0, 1) for port, _ in PORTS)]


def test_of_udp__many_peers_are_counted() -> None:
    (only,) = of_udp(tried((A, B, C, D, E), lambda peer, outward, port: not outward))
    assert only.subject == f"{A}, {B}, {C} and 2 more"
    assert only.finding.startswith(
        f"none of {PACKETS} datagrams arrived from {A}, {B}, {C} and 2 more to UDP 29521-29524 of"
    )


def test_numbers__runs_are_ranges() -> None:
    assert numbers([29524, 29521, 29522, 29523, 29530, 29531, 1]) == "1, 29521-29524, 29530, 29531"
