# SPDX-License-Identifier: Apache-2.0
"""What a run of the benchmark leaves behind: tables on the screen and a JSON file under build/bench."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from tests.bench.criteria import Check, better
from tests.bench.rig import OWN, Series
from tests.bench.studies import Table

ROOT = Path(__file__).resolve().parents[2]


def machine() -> dict[str, Any]:
    """What a figure depends on and does not say itself."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "unknown CPU")  # fmt: skip
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit.stdout.strip() or "unknown",
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def ms(us: float) -> str:
    return "-" if math.isnan(us) else f"{us / 1e3:.3f}" if us < 1e4 else f"{us / 1e3:.1f}"


def ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def whole(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"


def series_grid(table: Table) -> Grid:
    title = table.title + ". Times in ms; CPU of the whole machine per op; wake-ups of all threads, of the busiest"
    grid = Grid(title=title, title_justify="left", box=None, pad_edge=False)
    names = ["case", "contender", "ops", "p50", "p99", "p99.9", "p99/p50", "p50 ratio", "p99 ratio", "CPU s",
             "CPU ratio", "wakes/s", "a thread", "missing", "wrong"]  # fmt: skip
    # Of fewer ops the 99.9th percentile is but the slowest.
    deep = any(one.ops >= 1000 for found in table.cases.values() for one in found.values())
    if not deep:
        names.remove("p99.9")
    for name in names:
        grid.add_column(name, justify="left" if name in ("case", "contender") else "right", no_wrap=True)
    for case, found in table.cases.items():
        for at, one in enumerate(found.values()):
            own = one.contender == OWN
            to_better = [ratio(getattr(one, name) / better(found, name)) if own else ""
                         for name in ("p50", "p99", "cpu_s")]  # fmt: skip
            grid.add_row(
                case if at == 0 else "", one.contender, str(one.ops), ms(one.p50), ms(one.p99),
                *([ms(one.p999)] if deep else []), ratio(one.tail), *to_better[:2],
                seconds(one.cpu_s), to_better[2], whole(one.usage.wakeups_per_s),
                whole(one.usage.busiest_wakeups_per_s),
                missing_text(one) if own else "", str(one.wrong),
            )  # fmt: skip
    return grid


def missing_text(one: Series) -> str:
    return "0" if not one.missing else f"{100 * one.missing:.5f} %"


def number(value: float) -> str:
    return "-" if math.isnan(value) else "0" if not value else f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2e}"


def checks_grid(checks: Sequence[Check]) -> Grid:
    grid = Grid(title="Criteria", title_justify="left", box=None, pad_edge=False)
    for name in ("case", "criterion", "measured", "at most", "verdict", ""):
        grid.add_column(name, justify="right" if name in ("measured", "at most") else "left")
    for check in checks:
        colour = {"pass": "green", "FAIL": "red"}.get(check.verdict, "yellow")
        remark = ", ".join(text for text in (check.text, check.note) if text)
        grid.add_row(check.case, check.name, number(check.value), number(check.limit),
                     f"[{colour}]{check.verdict}[/]", remark)  # fmt: skip
    return grid


def show(console: Console, table: Table) -> None:
    console.print(series_grid(table))
    for line in table.lines:
        console.print(line)
    for name, value in table.facts.items():
        console.print(f"{name}: {value}")
    console.print(checks_grid(table.checks))
    console.print()


def verdicts(tables: Sequence[Table]) -> dict[str, int]:
    counted = {"pass": 0, "FAIL": 0, "not measured": 0}
    for table in tables:
        for check in table.checks:
            counted[check.verdict] += 1
    return counted


def write_json(tables: Sequence[Table], facts: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    content = {"machine": facts, "tables": [table.as_dict() for table in tables]}
    path.write_text(json.dumps(content, indent=1, allow_nan=True) + "\n")
    return path
