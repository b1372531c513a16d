# SPDX-License-Identifier: Apache-2.0
"""All ranks of one contender, one a host, that stay up and measure when they are told.

Gangs of several contenders share a lab; only one measures at a time, the others sleep. So what the machine does to one
it does to all, and nobody pays for starting again and again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.answers import Ended, Silent, next_lines
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab

START_S = 120.0
GLOO_PORT = 29400
RANK = Path(__file__).with_name("rank.py")


class GangError(RuntimeError):
    """A rank ended, or did not answer in time. The message holds what it said last."""


@dataclass
class Account:
    """What the ranks of a gang say of the ops that they measured last."""

    wrong: int
    """Elements of complete results, of those that were looked at."""
    receipts: list[list[dict[str, Any]]]
    """Ultima's: of each op one of each rank."""


class Gang:
    """The ranks of "ultima", "gloo cubic" or "gloo bbr" (gloo and a TCP congestion control) on the hosts of |lab|.

    |cluster| has the daemons that Ultima's ranks attach to. |environment| is added to theirs: the options of a job.
    |program|: what they run, with "gloo" or "ultima" as its last argument; it speaks as rank.py does. They run until
    the lab goes down or `stop`.
    """

    _ports = GLOO_PORT

    def __init__(self, lab: Lab, name: str, program: Sequence[str], cluster: Cluster | None = None,
                 environment: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self.name = name
        self._lab = lab
        kind, _, congestion = name.partition(" ")
        if congestion and kind == "gloo":
            lab.set_congestion(congestion)
        Gang._ports += 1
        command = [sys.executable, *program, kind]
        self._errors = [tempfile.TemporaryFile() for _ in lab.hosts]  # noqa: SIM115 -- they outlive this function
        self._ranks: list[subprocess.Popen[str]] = []
        for host, errors in zip(lab.hosts, self._errors, strict=True):
            if kind == "ultima":
                assert cluster is not None
                variables = {**cluster.environment(host.index), **(environment or {})}
                variables["MASTER_PORT"] = str(Gang._ports)
            else:
                variables = {
                    "RANK": str(host.index), "WORLD_SIZE": str(len(lab.hosts)), "MASTER_ADDR": lab.host(0).address,
                    "MASTER_PORT": str(Gang._ports), "OMP_NUM_THREADS": "1", **(environment or {}),
                }  # fmt: skip
            variables["GLOO_SOCKET_IFNAME"] = "eth0"
            variables["PYTHONPATH"] = os.pathsep.join([str(RANK.parents[2]), os.environ.get("PYTHONPATH", "")])
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
            self._ranks.append(host.popen(command, variables, **pipes))
        self._lines(START_S, "start")

    def run(self, size: int, iterations: int, seconds: float, mode: str = "bounded", deadline: float | None = None,
            patience: float = 300.0, apart_s: float = 0.0) -> list[float]:  # fmt: skip
        """Measures up to |iterations| ops of |size| bytes, and none more once |seconds| have passed (one at least).
        Returns of each the slowest rank's microseconds. The last rank calls |apart_s| after the first.

        Raises GangError when a rank fails, or has said nothing for |patience| seconds beyond that.
        """
        request = {"bytes": size, "iterations": iterations, "seconds": seconds, "mode": mode, "deadline": deadline,
                   "apart_s": apart_s}  # fmt: skip
        ranks = self.ask(request, seconds + patience)
        return [max(times) for times in zip(*(rank["us"] for rank in ranks), strict=True)]

    def account(self, patience: float = 300.0) -> Account:
        """What came of the ops of the last `run`. To work that out takes CPU, so meters are read before."""
        ranks = self.ask({"account": True}, patience)
        receipts = [list(op) for op in zip(*(rank["receipts"] for rank in ranks), strict=True)]
        return Account(sum(int(rank["wrong"]) for rank in ranks), receipts)

    def ask(self, request: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
        """Puts a request to all ranks and returns the answer of each. Raises GangError when one fails, or all is quiet
        for |seconds|."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps(request) + "\n")
            rank.stdin.flush()
        return [json.loads(line) for line in self._lines(seconds, "answer")]

    def _lines(self, seconds: float, what: str) -> list[str]:
        """The next line of every rank."""
        try:
            return next_lines(self._ranks, seconds)
        except Silent as silent:
            raise GangError(f"{self.name}: no {what} of {len(silent.indices)} ranks in {seconds:g} s") from None
        except Ended as ended:
            raise GangError(f"{self.name}: rank {ended.index} ended\n{self._last_words(ended.index)}") from None

    def _last_words(self, index: int) -> str:
        errors = self._errors[index]
        errors.seek(0)
        return errors.read().decode(errors="replace")[-2000:]

    @property
    def pids(self) -> list[int]:
        """Of the ranks."""
        return [rank.pid for rank in self._ranks]

    def stop(self) -> None:
        """Lets the ranks leave; those that do not are ended."""
        for rank in self._ranks:
            if rank.stdin is not None:
                rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(timeout=10)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
