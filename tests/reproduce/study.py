# SPDX-License-Identifier: Apache-2.0
"""What a study of the paper's claims hands to the report: rows with a verdict, tables of figures, lines for a plot."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.making import BUILD, make

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """One claim. |holds| None: it could not be tested here, and |ours| says why."""

    claim: str
    paper: str
    ours: str
    criterion: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        return "not tested" if self.holds is None else "pass" if self.holds else "FAIL"


@dataclass
class Grid:
    """A table of figures: a header and rows of text."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)


@dataclass
class Plot:
    """Lines over a common axis; logarithmic where it says so."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: dict[str, tuple[Sequence[float], Sequence[float]]]
    log_x: bool = False
    log_y: bool = False


@dataclass
class Study:
    name: str
    title: str
    how: str
    """How it was done, in a paragraph, with what differs from the paper."""
    rows: list[Row] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)


def at_most(value: float, limit: float) -> bool | None:
    """None, not False, of what was not measured."""
    return None if math.isnan(value) else value <= limit


def at_least(value: float, limit: float) -> bool | None:
    return None if math.isnan(value) else value >= limit


def line_fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Slope, intercept and R squared of the least-squares line. R squared is 1 where y does not vary."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    spread = sum((one - mean_x) ** 2 for one in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    intercept = mean_y - slope * mean_x
    total = sum((one - mean_y) ** 2 for one in y)
    rest = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    return slope, intercept, 1 - rest / total if total else 1.0


def simulator() -> Path:
    """Raises RuntimeError where it cannot be built."""
    make("sim")
    return BUILD / "sim"


NEVER = 2**64 - 1
BEST_EFFORT, RELIABLE = 2, 3
END_DEADLINE, END_EARLY = 2, 4


@dataclass
class World:
    """What `sim --study` told of one world; |ops| without the warm-up."""

    failure: str
    ops: list[list[dict[str, Any]]]

    def latency_us(self) -> list[float]:
        """Of each op that of its slowest host."""
        return [max(host["elapsed_us"] for host in op) for op in self.ops]

    def missing(self) -> float:
        hosts = [host for op in self.ops for host in op]
        return sum(host["missing"] for host in hosts) / max(1, sum(host["expected"] for host in hosts))

    def ends(self, kind: int) -> int:
        """Stages that ended in this way, over all hosts."""
        return sum(end == kind for op in self.ops for host in op for end in host["end"])

    def has_timeouts(self) -> bool:
        return any(host["t_b_us"] for op in self.ops for host in op)

    def known(self) -> bool:
        """True when the receipts of all ops are there and none failed: FAILED is status 4."""
        return bool(self.ops) and all(0 < host["status"] < 4 for op in self.ops for host in op)


class KnobError(RuntimeError):
    """The simulator does not know a knob, or its value is out of range there."""


def simulate(warm: int = 0, **knobs: int) -> World:
    """Runs one controlled world; the knobs are those of transport_c/sim/byhand/study.c. Raises KnobError."""
    command = [str(simulator()), "--study", f"warm={warm}", *(f"{name}={value}" for name, value in knobs.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if not done.stdout.startswith("{"):
        raise KnobError(f"{' '.join(command)}: {done.stderr[-2000:] or done.returncode}")
    told: Mapping[str, Any] = json.loads(done.stdout)
    return World(told["failure"], [op["hosts"] for op in told["ops"][warm:]])
