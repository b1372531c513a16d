# SPDX-License-Identifier: Apache-2.0
"""A trainer asks for as much work at once as a ring holds (A7)."""

from __future__ import annotations

import time

from tests.e2e.hosts import DaemonProcess, new_job_name
from tests.hostile.bystander import Bystander
from tests.hostile.trainer import HostileTrainer
from ultima._native import lib
from ultima.admin.calls import get_status

ARENA = 128 << 20
OPS = lib.UT_RING_ENTRIES
SOON_S = 0.3
"""Of which a busy test machine may take most; a ring's worth of work takes seconds."""


def test_hog__does_not_hold_up_others(host: DaemonProcess) -> None:
    """One trainer submits 64 ops of 64 MiB to each lane; meanwhile another's ops of 64 bytes and status are answered.

    Both finish. The small op's worst is compared with the time that the big ones took in all.
    """
    with HostileTrainer(host.socket, ARENA) as hog, Bystander(host) as bystander:
        joined = hog.join(new_job_name(), bucket_bytes_max=ARENA // 2)
        lanes = hog.lanes[: joined.lanes]
        hog.arena[:] = bytes(ARENA)  # the pages are there, so that it is the engine that works
        bystander.worst_s, before, start = 0.0, bystander.ops, time.monotonic()
        for lane in lanes:
            for op_seq in range(OPS):
                lane.write(op_seq=op_seq, count=ARENA // 8, dst=ARENA // 2, mode=lib.UT_RELIABLE)
            lane.ring()
        status_s = 0.0
        left = [OPS] * len(lanes)
        while any(left) and time.monotonic() - start < 120:
            asked = time.monotonic()
            get_status(str(host.socket), timeout_s=60.0)
            status_s = max(status_s, time.monotonic() - asked)
            left = [n - sum(1 for _ in lane.receipts()) for n, lane in zip(left, lanes, strict=True)]
        took = time.monotonic() - start
        worst, beside = bystander.worst_s, bystander.ops - before
    print(f"big ops {took:.3f} s, of 64 bytes {beside} beside them, worst {worst:.3f} s, status {status_s:.3f} s")
    assert not any(left)
    assert worst < max(took / 4, SOON_S), f"an op of 64 bytes took {worst:.3f} s of {took:.3f} s"
    assert status_s < max(took / 4, SOON_S), f"status took {status_s:.3f} s of {took:.3f} s"
