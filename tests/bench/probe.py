# SPDX-License-Identifier: Apache-2.0
"""What PROBE costs: the time until an initiator is found and announced, and what a probe costs by itself.

    python -m tests.bench.probe [--daemons 8] [--ops 300] [--probes 2] [--json FILE]

Real daemons on loopback, a rank on each, all driven from this process. For each op all ranks give, those that are not
asked first; so when the first rank that is asked becomes ready, nothing is left to wait for but the decision:

    decide     on the initiator's host, from its rank being ready to the op's start there: the answer to a probe that
               was open, and the call that starts the op
    announce   decide, and until the initiator has heard from the last host that the op runs there, too

Then one daemon is asked about an op that is past, which it answers at once: probes per second of one caller and of
several, and the CPU time of the daemon that answers. Everything shares the cores of this machine: what a controller on
a host of its own needs is less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np

import ultima
from tests.e2e.hosts import DaemonProcess, Hosts, ranks, running
from ultima.admin.calls import get_status
from ultima.base.reference import picks
from ultima.v1 import peer_pb2, peer_pb2_grpc

SEED = 42
WARM = 20
CALLERS = 16


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and count; times in ms."""
    times = np.sort(np.asarray(values)) * 1e3
    return {"p50_ms": float(np.median(times)), "p95_ms": float(np.percentile(times, 95)), "count": len(times)}


def decisions(hosts: Hosts, ops: int, q: int, elements: int = 256) -> dict[str, Any]:
    """Runs `ops` ops under PROBE; times as above, and what became of the controller's probes."""
    world = len(hosts)
    options = ultima.Options(policy="probe", probes=q, policy_seed=SEED)
    decide, announce, missing = [], [], 0
    with ranks(hosts, options=options) as jobs:
        slots = [job.partial() for job in jobs]
        gradient = np.ones(elements, np.float32)
        for step in range(ops + WARM):
            op_seq = max(slot.newest for slot in slots) + 1
            asked = picks(SEED, op_seq, world, q)
            for rank in (*(r for r in range(world) if r not in asked), *asked):
                slots[rank].give(gradient, step=step)
            receipts = [result.receipt for slot in slots if (result := slot.wait()) is not None]
            initiator = receipts[0].initiator[0] if receipts else -1
            if step < WARM:
                continue
            if initiator not in asked or [receipt.op_seq for receipt in receipts] != [op_seq] * world:
                missing += 1  # who gave late has started an op of his own meanwhile
                continue
            receipt = receipts[initiator]
            opened = [row.opened_s for row in receipt.peers if row.host != initiator]
            decide.append(receipt.waited_s)
            if all(at is not None for at in opened):
                announce.append(receipt.waited_s + max(at for at in opened if at is not None))
        (job,) = get_status(str(hosts[0].socket), jobs[0].name).jobs
        counts = {name.name: value for name, value in job.probes.ListFields()}
    return {"decide": summary(decide), "announce": summary(announce), "other": missing, "probes": counts}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _ask(host: DaemonProcess, request: peer_pb2.ProbeRequest, callers: int, each: int) -> tuple[float, float]:
    """Probes per second of so many callers, and CPU seconds of the daemon per probe."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{host.port}") as channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(channel)

        async def caller() -> None:
            for _ in range(each):
                answer = await stub.Probe(request, timeout=10)
                assert answer.result == peer_pb2.ProbeResponse.RESULT_EXPIRED, answer

        await caller()
        busy, began = cpu_seconds(host.pid), time.monotonic()
        await asyncio.gather(*(caller() for _ in range(callers)))
        took, count = time.monotonic() - began, callers * each
    return count / took, (cpu_seconds(host.pid) - busy) / count


def probes(hosts: Hosts, each: int = 400) -> dict[str, float]:
    """What one probe costs that is answered at once."""
    with ranks(hosts[:2], options=ultima.Options(policy="solo")) as jobs:
        slots = [job.partial() for job in jobs]
        slots[1].give(np.ones(8, np.float32))
        assert slots[0].wait(out=np.zeros(8, np.float32)) is not None
        (job,) = get_status(str(hosts[1].socket), jobs[0].name).jobs
        request = peer_pb2.ProbeRequest(job=jobs[0].name, generation=job.generation, op_seq=0, rank=1)
        alone, cpu = asyncio.run(_ask(hosts[1], request, 1, each))
        together, _ = asyncio.run(_ask(hosts[1], request, CALLERS, each // 4))
    return {"one_caller_per_s": alone, f"{CALLERS}_callers_per_s": together, "daemon_cpu_us": cpu * 1e6}


def measure(daemons: int = 8, ops: int = 300, q: int = 2) -> dict[str, Any]:
    """All of it, with daemons of its own."""
    with running(daemons) as hosts:
        found = decisions(hosts, ops, q)
        return {"daemons": daemons, "q": q, **found, "probe": probes(hosts)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.probe", description="What PROBE costs.")
    parser.add_argument("--daemons", type=int, default=8)
    parser.add_argument("--ops", type=int, default=300)
    parser.add_argument("--probes", type=int, default=2, help="q")
    parser.add_argument("--json", type=Path, help="also into this file")
    asked = parser.parse_args()
    found = measure(asked.daemons, asked.ops, asked.probes)
    for name in ("decide", "announce"):
        times = found[name]
        print(f"{name:9} p50 {times['p50_ms']:.2f} ms, p95 {times['p95_ms']:.2f} ms, {times['count']} ops")
    print("probe     " + ", ".join(f"{name} {value:.0f}" for name, value in found["probe"].items()))
    print("counts    " + ", ".join(f"{name} {value}" for name, value in found["probes"].items()))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
