# SPDX-License-Identifier: Apache-2.0
"""How long torch's `reconfigure` takes with Ultima, beside Gloo: the same members again, one less, one more.

    .ci/torches && python -m tests.bench.reconfigure            needs torch 2.14 or newer, here of build/torch/newest

Four ranks, each a process with a daemon of its own on this machine. Per backend and change: from the call of the first
rank to the end of the last one's, and to the end of its first all-reduce of 1 MiB. Times in ms. Backends take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.rig import quantile
from tests.e2e.hosts import DaemonProcess, free_port, running

RANKS, COUNT = 4, 1 << 18
BACKENDS = ("ultima", "gloo")
CHANGES = {"the same again": RANKS, "4 to 3": RANKS - 1, "3 to 4": RANKS}
ROOT = Path(__file__).parents[2]
WAIT = timedelta(seconds=60)


def member(rank: int, backend: str, port: int, rounds: int) -> list[dict[str, Any]]:
    """One rank: what it did, and when by the clock that all processes of this machine share."""
    import torch
    import torch.distributed as dist

    if backend == "ultima":
        import ultima.torch  # noqa: F401  # registers the backend
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, WAIT, wait_for_workers=False)
    dist.init_process_group(backend, rank=rank, world_size=RANKS, store=store, timeout=WAIT, enable_reconfigure=True)  # type: ignore[call-arg]
    found, number = [], 0
    for turn in range(rounds + 1):  # the first one is not counted
        for name, size in CHANGES.items():
            number += 1
            if rank < size:
                store.set(f"{number}/{rank}", dist._get_reconfigure_handle())  # type: ignore[attr-defined]
                handles = [store.get(f"{number}/{other}").decode() for other in range(size)]
                store.add(f"{number}/ready", 1)
                while store.add(f"{number}/ready", 0) < size:
                    time.sleep(0.0005)
                began = time.monotonic()
                dist._reconfigure(uuid=number, handles=handles).wait()  # type: ignore[attr-defined]
                changed = time.monotonic()
                value = torch.full((COUNT,), float(1 << rank))
                dist.all_reduce(value)
                ended = time.monotonic()
                if value[0].item() != (1 << size) - 1 or dist.get_world_size() != size:
                    raise RuntimeError(f"change {number}: the sum is {value[0].item()}")
                if turn:
                    found.append({"change": name, "times": (began, changed, ended)})
            store.add(f"{number}/done", 1)
            while store.add(f"{number}/done", 0) < RANKS:
                time.sleep(0.002)
    store.add("over", 1)
    while rank == 0 and store.add("over", 0) < RANKS:
        time.sleep(0.01)
    return found


def measure(backend: str, hosts: list[DaemonProcess], torch_at: Path | None, port: int, rounds: int) -> dict[str, Any]:
    """Of each change the times in seconds, a round after the other: until changed, and until all had a sum."""
    path = [str(ROOT), *([str(torch_at)] if torch_at is not None else [])]
    with ExitStack() as stack:
        members = []
        for rank in range(RANKS):
            environment = os.environ | {"PYTHONPATH": ":".join(path[::-1]), "OMP_NUM_THREADS": "1",
                                        "ULTIMA_SOCKET": str(hosts[rank].socket)}  # fmt: skip
            arguments = ["--member", str(rank), backend, str(port), "--rounds", str(rounds)]
            started = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.reconfigure", *arguments], env=environment, stdout=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(started.kill)
            members.append(stack.enter_context(started))
        told = [json.loads(each.communicate(timeout=600)[0].splitlines()[-1]) for each in members]
    times: dict[str, Any] = {name: ([], []) for name in CHANGES}
    for name in CHANGES:
        each = [[row["times"] for row in rows if row["change"] == name] for rows in told]
        for same in zip(*(rows for rows in each if rows), strict=True):
            first = min(began for began, _, _ in same)
            times[name][0].append(max(changed for _, changed, _ in same) - first)
            times[name][1].append(max(ended for _, _, ended in same) - first)
    return times


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="of each backend, twice")
    parser.add_argument(
        "--torch", type=Path, default=ROOT / "build/torch/newest", help="a folder with a torch, or none"
    )
    parser.add_argument("--member", nargs=3, metavar=("RANK", "BACKEND", "PORT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.member is not None:
        rank, backend, port = asked.member
        print(json.dumps(member(int(rank), backend, int(port), asked.rounds)))
        return 0
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    with running(RANKS) as hosts:
        for _ in range(2):
            for backend in BACKENDS:
                folder = asked.torch if asked.torch.is_dir() else None
                times = measure(backend, list(hosts), folder, free_port(), asked.rounds)
                for name, each in times.items():
                    mine = found.setdefault(backend, {}).setdefault(name, ([], []))
                    mine[0].extend(each[0])
                    mine[1].extend(each[1])
    table = Table(title=f"{2 * asked.rounds} changes of each kind")
    for heading in ("ms", "backend", "p50", "p90", "most", "to a sum: p50", "p90", "most"):
        table.add_column(heading, justify="left" if heading in ("ms", "backend") else "right", no_wrap=True)
    for name in CHANGES:
        for backend in BACKENDS:
            cells = [f"{quantile(each, at) * 1e3:.1f}" for each in found[backend][name] for at in (50, 90, 100)]
            table.add_row(name, backend, *cells)
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
