# SPDX-License-Identifier: Apache-2.0
"""The switch of a lab with distance: distance.c, built when it is needed, and told how far the hosts are apart."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tests.making import BUILD, make

ANSWER_S = 10.0


@dataclass(frozen=True)
class Far:
    """How far the hosts of a lab are apart. |loss_pct| falls on each frame for itself, in both directions. |rate_mbit|
    is what the switch sends to each host, 0 for no bound, and |queue_ms| how long it lets frames wait for that."""

    round_trip_ms: float
    loss_pct: float = 0.0
    rate_mbit: float = 0.0
    queue_ms: float = 100.0


@dataclass(frozen=True)
class Counts:
    """Frames since the start: those that left the switch, were lost by chance, and found the queue full."""

    sent: int
    lost: int
    crowded: int


class Distance:
    """The process that forwards between |ports|, network devices; |enter| is the command that runs one beside them. It
    ends with `stop`, and with this process at the latest. Raises RuntimeError when it cannot be built or does not run.
    """

    def __init__(self, enter: Sequence[str], ports: Sequence[str], far: Far, seed: int = 1) -> None:
        make("build/distance")
        command = [*enter, str(BUILD / "distance"), *ports]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._far = far
        self._tell(far, seed)

    def set(self, far: Far) -> None:
        """From now on; frames that are under way arrive as they would have."""
        self._far = far
        self._tell(far, 0)

    def counts(self) -> Counts:
        """What became of the frames so far."""
        return self._tell(self._far, 0)

    def stop(self) -> None:
        """Whatever is under way is lost."""
        self._process.kill()
        self._process.communicate()

    def _tell(self, far: Far, seed: int) -> Counts:
        if far.round_trip_ms < 0 or not 0 <= far.loss_pct <= 100 or far.rate_mbit < 0 or far.queue_ms < 0:
            raise ValueError(f"{far}: no value may be negative, and no loss more than 100 %")
        numbers = far.round_trip_ms * 500, far.loss_pct * 1e4, far.rate_mbit * 125_000, far.queue_ms * 1000, seed
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(" ".join(str(round(number)) for number in numbers).encode() + b"\n")
            self._process.stdin.flush()
            ready = select.select([self._process.stdout], [], [], ANSWER_S)[0]
            answer = self._process.stdout.readline() if ready else b""
        except OSError:
            answer = b""
        if not answer:
            self._process.kill()
            raise RuntimeError(f"no answer of the switch: {self._process.communicate()[1].decode(errors='replace')}")
        return Counts(*map(int, answer.split()))
