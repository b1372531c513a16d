# SPDX-License-Identifier: Apache-2.0
"""Real daemons and real trainers on loopback, a host each, that answer one request after another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.answers import Ended, Silent, next_lines
from tests.e2e.hosts import Hosts, running
from tests.reproduce.study import ROOT

TRAINER = "tests.reproduce.partial.trainer"
START_S = 60.0
LEAD_S = 5.0
"""Time for eight ranks to join a job: they begin together after it."""


class TrainersError(RuntimeError):
    """A trainer ended, or did not answer in time. The message holds what it said last."""


class Trainers:
    """A trainer on each of |hosts|, until `stop`. |lead_s|: from a request to the moment at which the ranks begin.
    |module|: what they run; its arguments are those of trainer.py.
    """

    def __init__(self, hosts: Hosts, lead_s: float, module: str = TRAINER) -> None:
        self._hosts, self._lead_s = hosts, lead_s
        self._jobs = 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ULTIMA")}
        # Eight of them share the machine: none may take several cores for a small product of matrices.
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._errors = [tempfile.TemporaryFile() for _ in hosts]  # noqa: SIM115 -- they outlive this function
        self._ranks: list[subprocess.Popen[str]] = []
        for rank, (host, errors) in enumerate(zip(hosts, self._errors, strict=True)):
            command = [sys.executable, "-m", module, str(rank), str(len(hosts))]
            command += [str(host.socket), hosts[0].rendezvous]
            self._ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                                text=True, env=environment, cwd=ROOT))  # fmt: skip

    def wait(self) -> None:
        self._lines(START_S, "start")

    def ask(self, request: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
        """The answer of each rank to |request|, which gets a job name and a moment to start at.

        Raises TrainersError when a rank ends, or one is silent for |seconds| after that moment.
        """
        self._jobs += 1
        start = time.monotonic() + self._lead_s
        line = json.dumps({**request, "job": f"study-{os.getpid()}-{self._jobs}", "start": start}) + "\n"
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(line)
            rank.stdin.flush()
        return [json.loads(said) for said in self._lines(self._lead_s + seconds, "answer")]

    def _lines(self, seconds: float, what: str) -> list[str]:
        try:
            return next_lines(self._ranks, seconds)
        except Silent as silent:
            words = self._last_words(silent.indices[0])
            raise TrainersError(f"no {what} of ranks {silent.indices} in {seconds:g} s\n{words}") from None
        except Ended as ended:
            raise TrainersError(f"rank {ended.index} ended\n{self._last_words(ended.index)}") from None

    def _last_words(self, index: int) -> str:
        errors = self._errors[index]
        errors.seek(0)
        return errors.read().decode(errors="replace")[-1500:] + self._hosts[index].log()[-1500:]

    def stop(self) -> None:
        """Lets them leave; those that do not are ended."""
        for rank in self._ranks:
            if rank.stdin is not None and not rank.stdin.closed:
                rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(timeout=5)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
        for errors in self._errors:
            errors.close()


@contextmanager
def trainers(count: int, lead_s: float = LEAD_S, module: str = TRAINER) -> Iterator[Trainers]:
    """|count| daemons with a trainer each, ready. All of them are gone at the end."""
    with running(count) as hosts:
        made = Trainers(hosts, lead_s, module)
        try:
            made.wait()
            yield made
        finally:
            made.stop()
