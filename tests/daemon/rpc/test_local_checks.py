# SPDX-License-Identifier: Apache-2.0
"""What doctor says of socket buffers: by what the kernel grants and has dropped, and by what a measured path needs."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ultima.daemon.rpc import local_checks
from ultima.daemon.rpc.local_checks import FAILURE, OK, WARNING

ROOT = Path(__file__).resolve().parents[3]
K, M = 1 << 10, 1 << 20


def engine(granted: int, **counters: int) -> Any:
    info = SimpleNamespace(receive_buffer_bytes=granted, send_buffer_bytes=208 * K)
    return SimpleNamespace(info=info, stats=lambda: counters)


def config(asked: int) -> Any:
    return SimpleNamespace(engine=SimpleNamespace(receive_buffer_bytes=asked))


@pytest.mark.parametrize(
    ("granted", "asked", "wanted", "drops", "verdict", "finding", "remedy"),
    [
        # Nothing is measured yet: what was asked for counts.
        (208 * K, 0, 0, 0, WARNING, "grants 208K of 8192K to receive", "net.core.rmem_max=8388608,"),
        (208 * K, 0, 0, 7, FAILURE, "and has dropped 7 datagrams", "net.core.rmem_max=8388608,"),
        (8 * M, 0, 0, 0, OK, "8192K to receive; nothing dropped", ""),
        # A path is measured: what it needs counts, and not what was asked for.
        (208 * K, 0, 150 * K, 0, OK, "208K to receive, of which 1000 Mbit/s need 150K; nothing dropped", ""),
        (208 * K, 0, 150 * K, 7, FAILURE, "and has dropped 7 datagrams", "net.core.rmem_max=8388608,"),
        (208 * K, 0, 640 * K, 0, WARNING, "1000 Mbit/s, as data arrive here, need 640K", "net.core.rmem_max=8388608,"),
        (8 * M, 0, 8 * M + 1, 0, WARNING, "need 8192K", "receive_buffer_bytes = 8392704 under [engine], and sysctl -w"),
        (1 * M, 1 * M, 2 * M, 3, FAILURE, "has dropped 3 datagrams", "net.core.rmem_max=2097152,"),
        (8 * M, 0, 1 * M, 3, WARNING, "dropped 3 datagrams all the same", "too little CPU time"),
    ],
)
def test_buffers__are_held_against_what_was_measured(
    granted: int, asked: int, wanted: int, drops: int, verdict: int, finding: str, remedy: str
) -> None:
    counters = {"kernel_drops": drops, "receive_wanted": wanted, "arrival_rate": 125_000_000 if wanted else 0}
    found = local_checks._buffers(config(asked), engine(granted, **counters))
    assert found.verdict == verdict and finding in found.finding and remedy in found.remedy, found
    assert bool(found.remedy) == (verdict != OK)


def test_send_buffer__is_told_only_where_a_link_is_faster_than_it() -> None:
    assert local_checks._send_buffer(engine(0)) == []
    assert local_checks._send_buffer(engine(0, send_drain_rate=2_800_000_000)) == [], "22 Gbit/s of the kernel's bytes"
    (found,) = local_checks._send_buffer(engine(0, send_drain_rate=6_000_000_000))
    assert found.verdict == WARNING and "grants 208K to send, and 439K stand" in found.finding
    assert "send_buffer_bytes = 450560 under [engine], and sysctl -w net.core.wmem_max=450560" in found.remedy
    header = (ROOT / "transport_c/udp/backlog.h").read_text()
    (us,) = re.findall(r"UT_BACKLOG_NS = (\d+) \* 1000,", header)
    assert cast(float, local_checks.QUEUE_S) == pytest.approx(1.5e-6 * int(us))


def test_rate__is_told_where_there_is_a_cap() -> None:
    options = SimpleNamespace(rate_bytes_per_s=0)
    assert local_checks._cap(cast(Any, SimpleNamespace(engine=options))) == []
    options.rate_bytes_per_s = 10_000_000
    (found,) = local_checks._cap(cast(Any, SimpleNamespace(engine=options)))
    assert found.verdict == OK and "sends 80 Mbit/s at most, all jobs together" in found.finding
