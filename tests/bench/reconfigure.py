# SPDX-License-Identifier: Apache-2.0
"""What a change of the members of a group of torch.distributed costs, beside Gloo, in one run.

    PYTHONPATH=build/torch/newest python -m tests.bench.reconfigure --changes 20         wants torch 2.14 or newer

Four processes on this machine, for Ultima with a daemon each. They are given the same members anew, then three of
them, then four again, in turns of the two contenders. Prints how long the call takes on the slowest member, and the
first op after it (1 MB), for connections may be made there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import closing
from multiprocessing import get_context
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.e2e.hosts import Hosts, running

MEMBERS = 4
ANSWER_S = 60.0
READY_S = 0.05  # all members begin as long after they were told, so that none waits for one who was told later
CHANGES = ("the same four", "four to three", "three to four")
spawned = get_context("spawn")


def work(contender: str, rank: int, port: int, socket: str, line: Any) -> None:
    """One member: answers with its newest handle, or how long a change and the op after it took."""
    os.environ["ULTIMA_SOCKET"] = socket
    import torch
    import torch.distributed as dist

    import ultima.torch  # noqa: F401

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    prefixed = dist.PrefixStore(contender, store)
    dist.init_process_group(contender, rank=rank, world_size=MEMBERS, store=prefixed, enable_reconfigure=True)  # type: ignore[call-arg]
    line.send("ready")
    while (asked := line.recv()) != "end":
        if asked == "handle":
            line.send(dist._get_reconfigure_handle())  # type: ignore[attr-defined]
            continue
        uuid, handles, began = asked
        value = torch.ones(250_000)
        time.sleep(max(0.0, began - time.perf_counter()))
        dist._reconfigure(uuid=uuid, handles=handles).wait()  # type: ignore[attr-defined]
        changed = time.perf_counter()
        dist.all_reduce(value)
        ended = time.perf_counter()
        if value[0].item() != len(handles):
            raise RuntimeError(f"sum {value[0].item()}: allowed: {len(handles)}, one of each member")
        line.send((1e3 * (changed - began), 1e3 * (ended - changed)))
    dist.destroy_process_group()


class Group:
    """The members of one contender."""

    def __init__(self, contender: str, port: int, hosts: Hosts) -> None:
        self.contender = contender
        self._lines, self._members, self._uuid = [], [], 100
        for rank in range(MEMBERS):
            here, there = spawned.Pipe()
            given = contender, rank, port, str(hosts[rank].socket), there
            self._members.append(spawned.Process(target=work, args=given, daemon=True))
            self._lines.append(here)
            self._members[-1].start()
        self._answers(range(MEMBERS))

    def change(self, ranks: range) -> tuple[float, float]:
        """These become the members; of the slowest one how long that and an op took, in ms."""
        for rank in ranks:
            self._lines[rank].send("handle")
        handles = self._answers(ranks)
        self._uuid += 1
        began = time.perf_counter() + READY_S
        for rank in ranks:
            self._lines[rank].send((self._uuid, handles, began))
        took = self._answers(ranks)
        return max(each[0] for each in took), max(each[1] for each in took)

    def close(self) -> None:
        """Ends the members."""
        for line, member in zip(self._lines, self._members, strict=True):
            if member.is_alive():
                line.send("end")
        for member in self._members:
            member.join(10)
            member.kill()

    def _answers(self, ranks: range) -> list[Any]:
        found = []
        for rank in ranks:
            if not self._lines[rank].poll(ANSWER_S):
                raise RuntimeError(f"{self.contender}: rank {rank} does not answer within {ANSWER_S:g} s")
            found.append(self._lines[rank].recv())
        return found


def measure(changes: int) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """By contender and change."""
    import torch.distributed as dist

    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with (
        running(MEMBERS) as hosts,
        closing(Group("ultima", store.port, hosts)) as ours,
        closing(Group("gloo", store.port, hosts)) as theirs,
    ):
        for turn in range(changes + 1):
            for group in (ours, theirs) if turn % 2 else (theirs, ours):
                for kind, ranks in zip(CHANGES, (range(4), range(3), range(4)), strict=True):
                    took = group.change(ranks)
                    if turn:  # the first one finds no members from before
                        found.setdefault((group.contender, kind), []).append(took)
    return found


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=20, metavar="N", help="of each kind")
    asked = parser.parse_args()
    if asked.changes < 1:
        parser.error(f"--changes {asked.changes}: allowed: 1 or more")
    import torch

    if not hasattr(torch.distributed, "_reconfigure"):
        parser.error(f"torch {torch.__version__} has no reconfigure: allowed: 2.14 or newer (PYTHONPATH)")
    table = Table(title=f"{asked.changes} changes of each kind, torch {torch.__version__}; ms on the slowest member")
    for heading in ("change", "contender", "call, median", "most", "op after it, median", "most"):
        table.add_column(heading, no_wrap=True)
    for (contender, kind), took in sorted(measure(asked.changes).items(), key=lambda each: CHANGES.index(each[0][1])):
        cells = []
        for values in zip(*took, strict=True):
            cells += [f"{statistics.median(values):.1f}", f"{max(values):.1f}"]
        table.add_row(kind, contender, *cells)
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
