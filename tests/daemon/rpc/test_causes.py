# SPDX-License-Identifier: Apache-2.0
"""One cause, one finding."""

from ultima.daemon.rpc.causes import one_each
from ultima.daemon.rpc.local_checks import FAILURE, OK, WARNING, check

PLACE = "10.0.0.2:29520"
PEER = check("peer", FAILURE, f"host 1 ({PLACE}) is gone: its daemon is gone", "see", "job a")
TCP = check("tcp port", FAILURE, "TCP 29520 does not answer: refused", "open", PLACE)
STALLED = check("daemon", FAILURE, "TCP 29520 accepts connections, but says nothing", "see", PLACE)
ELSEWHERE = check("tcp port", FAILURE, "TCP 29520 does not answer: refused", "open", "10.0.0.3:29520")
BLOCKED = check("udp blocked", FAILURE, f"no UDP from host 1 ({PLACE})", "open", "job a")
UDP = check("udp data port", FAILURE, "none of 8 datagrams arrived", "open", PLACE)
OTHER_UDP = check("udp", FAILURE, "none of 8 datagrams arrived", "open", f"{PLACE}, 10.0.0.3:29520")
OPEN = check("udp", OK, "UDP gets through", "", PLACE)
LOSS = check("loss", WARNING, f"2 % of 900 packets to host 1 ({PLACE}) were lost and sent again", "look", "job a")
SLOW = check("slow host", WARNING, f"host 1 ({PLACE}) is to blame for 9 of the last 9 ops: slow path", "look", "job a")
LATE = check(
    "slow host", WARNING, f"host 1 ({PLACE}) is to blame for 9 of the last 9 ops: slow sender", "look", "job a"
)


def names(*rows: object) -> list[str]:
    return [row.name for row in one_each([row.__class__.FromString(row.SerializeToString()) for row in rows])]  # type: ignore[attr-defined]


def test_one_each__a_host_that_is_gone_and_does_not_answer() -> None:
    assert names(PEER, TCP) == ["peer"] and names(PEER, STALLED) == ["peer"]
    assert names(PEER, ELSEWHERE) == ["peer", "tcp port"] and names(TCP) == ["tcp port"]
    copy = type(PEER).FromString(PEER.SerializeToString())
    assert one_each([copy, TCP])[0].finding.endswith("its daemon is gone; TCP 29520 does not answer: refused")


def test_one_each__ports_that_a_job_has_found_closed() -> None:
    assert names(BLOCKED, UDP, OPEN) == ["udp blocked", "udp"]
    assert names(BLOCKED, OTHER_UDP) == ["udp blocked", "udp"], "another host is cut off, too"
    assert names(UDP) == ["udp data port"]


def test_one_each__a_path_that_loses() -> None:
    assert names(LOSS, SLOW) == ["loss"]
    assert names(LOSS, LATE) == ["loss", "slow host"] and names(SLOW) == ["slow host"]
