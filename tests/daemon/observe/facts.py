# SPDX-License-Identifier: Apache-2.0
"""Facts for tests of the metrics: a daemon with as many jobs and peers as one wants, and everything in trouble."""

from __future__ import annotations

from typing import Any

from tests.daemon.observe.test_record import an_op
from ultima.daemon.observe.durations import BOUNDS_S
from ultima.daemon.observe.metrics import STRAGGLER_OPS, Facts, JobFacts, PeerFacts
from ultima.daemon.observe.metrics_text import REASONS, TROUBLES
from ultima.daemon.observe.ring import OpRing
from ultima.daemon.observe.stats import ViewFacts, WireBytes


def some_facts(jobs: int = 2, peers: int = 3, **changed: Any) -> Facts:
    """All counters differ from zero, and every reason and kind of trouble occurs."""
    addresses = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(peers + 1)]
    ring = OpRing()
    for number in range(4096):
        ring.put(an_op(number, culprit=number % (peers + 1)))
    job = dict(
        world_size=peers + 1,
        hosts=addresses,
        ops={"complete": 90, "partial": 5, "insufficient": 4, "failed": 1},
        counts=list(range(1, len(BOUNDS_S) + 2)),
        sum_s=12.5,
        missing=dict.fromkeys(REASONS, 10),
        bucket_bytes=10**6,
        wires={"int8": WireBytes(31, 32, 128), "int4/int8": WireBytes(41, 42, 256)},
        sent_bytes=7,
        received_bytes=8,
        contributors=peers,
        deadline_s=1.5,
        newest=ring.copy(STRAGGLER_OPS),
        rounds={"stepped": 9, "missed": 2, "void": 1, "state": 3, "failed": 4},
        rounds_s=6.5,
        computed_share=0.75,
        view=ViewFacts(7, 5, 6, {"came": 3, "left": 1, "gone": 2}, {"sent": 512, "received": 64}),
    )
    values = dict(
        version="1.2.3",
        wire_version=3,
        simd="avx2",
        start_s=1.7e9,
        healthy=True,
        oldest_op_s=0.5,
        cpu_s=3.0,
        receive_asked=8 << 20,
        receive_granted=208 << 10,
        on_disk=True,
        history_errors=1,
        history_bytes=4096,
        repaired_bytes=5,
        insecure=True,
        events={"desync": 1, "host_goes": 2},
        certificate_warning=True,
        not_after_s={"certificate": 1_900_000_000, "authority": 2_000_000_000},
        lanes=[{"kernel_drops": lane + 1, "cpu_ns": 10**9} for lane in range(4)],
        jobs=[JobFacts(name=f"job-{number}", **job) for number in range(jobs)],
        peers={address: PeerFacts(True, 0.001) for address in addresses[1:]},
        lost=dict.fromkeys(addresses, 11),
        blamed={(address, trouble): 2 for address in addresses for trouble in TROUBLES[1:]},
    )
    return Facts(**values | changed)
