# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: a table, the criteria, a JSON file from which all can be made again, and curves."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from tests import drawing
from tests.bench.report import checks_grid
from tests.bench.tta import curves
from tests.bench.tta.curves import BBR, BEST_EFFORT, GLOO, HADAMARD, INT4, INT8, OWN, SHOWN, SPARSE, Run
from tests.bench.tta.study import Study

COLOURS = {GLOO: "#c44e52", BBR: "#dd8452", OWN: "#4c72b0", BEST_EFFORT: "#55a868", HADAMARD: "#8172b3",
           SPARSE: "#937860", INT8: "#64b5cd", INT4: "#8c8c8c"}  # fmt: skip
LABELS = {GLOO: "Gloo, cubic", BBR: "Gloo, bbr", OWN: "Ultima, bounded", BEST_EFFORT: "Ultima, best effort",
          HADAMARD: "Ultima, best effort, Hadamard", SPARSE: "Ultima, sparse 1 %", INT8: "Ultima, int8",
          INT4: "Ultima, int4"}  # fmt: skip
MODELS = {"lenet": "LeNet-5, 0.25 MB", "wide": "CNN, 25 MB"}


def save(study: Study, machine: dict[str, Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = [run.as_dict() for run in study.runs]
    content = {"machine": machine, "facts": study.facts, "failures": study.failures, "runs": runs}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def load(path: Path) -> tuple[Study, dict[str, Any]]:
    """What `save` wrote: the study and the machine's facts."""
    content = json.loads(path.read_text())
    runs = [Run.from_dict(run) for run in content["runs"]]
    return Study(runs, content["facts"], content["failures"]), content["machine"]


def rows(runs: Sequence[Run], model: str) -> list[list[str]]:
    """The table's lines: network, contender, how many seeds came to the target by themselves, ms a step, seconds in all
    and to the target, ratio to the better Gloo, final accuracy, bytes missing.
    """
    found = []
    wanted = curves.targets(runs, model)
    for network in dict.fromkeys(run.network for run in runs):
        gloo = [curves.everywhere(runs, model, network, name) for name in (GLOO, BBR)]
        for name in SHOWN:
            mine = curves.of(runs, model, network, name)
            if not mine:
                continue
            ratios = [curves.ratio(mine, theirs, wanted, rivals=True) for theirs in gloo]
            shown = max(ratios) if name not in (GLOO, BBR) and not any(map(math.isnan, ratios)) else math.nan
            step = median([ms for run in mine.values() for ms in run.step_ms])
            reached = f"{curves.there(mine, wanted)} of {len(mine)}"
            missing = sum(run.receipts.get("missing_bytes", 0) for run in mine.values())
            expected = sum(run.receipts.get("expected_bytes", 0) for run in mine.values())
            found.append([
                network, name, reached, f"{step:.1f}", f"{fmean(run.seconds for run in mine.values()):.1f}",
                _number(curves.time_of(mine, wanted), ".1f"), _number(shown, ".2f"),
                f"{100 * fmean(run.final for run in mine.values()):.2f}",
                f"{missing / 1e6:.1f} MB ({100 * missing / expected:.3f} %)" if expected else "",
            ])  # fmt: skip
    return found


def _number(value: float, form: str) -> str:
    return "never" if math.isinf(value) else "-" if math.isnan(value) else format(value, form)


def show(console: Console, study: Study) -> None:
    for model in dict.fromkeys(run.model for run in study.runs):
        grid = Grid(title=f"{MODELS.get(model, model)}: time to what lossless Gloo ends with, less 0.3 points",
                    title_justify="left", box=None, pad_edge=False)  # fmt: skip
        for name in ("network", "contender"):
            grid.add_column(name, no_wrap=True)
        for name in ("seeds there", "step ms", "all s", "target s", "to Gloo", "final %", "missing"):
            grid.add_column(name, justify="right", no_wrap=True)
        before = ""
        for row in rows(study.runs, model):
            grid.add_row("" if row[0] == before else row[0], *row[1:])
            before = row[0]
        console.print(grid)
        console.print(checks_grid(curves.checks(study.runs, model)))
        console.print()
    for name, value in study.facts.items():
        console.print(f"{name}: {value}")
    for line in study.failures:
        console.print(f"[red]failed: {line}[/]")


def draw(study: Study, path: Path, stamp: str) -> Path:
    """Accuracy over wall-clock, a row of pictures per model and a column per network, of the first seed."""
    pyplot = drawing.pyplot(8)
    models = list(dict.fromkeys(run.model for run in study.runs))
    networks = list(dict.fromkeys(run.network for run in study.runs))
    size = (2.6 * len(networks), 2.4 * len(models) + 0.5)
    figure, grid = pyplot.subplots(len(models), len(networks), figsize=size, layout="constrained", squeeze=False)
    for row, model in enumerate(models):
        wanted = curves.targets(study.runs, model)
        for column, network in enumerate(networks):
            axes = grid[row][column]
            for name in SHOWN:
                for seed, run in sorted(curves.of(study.runs, model, network, name).items())[:1]:
                    x, y = [0.0, *(point[1] for point in run.points)], [curves.CHANCE, *(p[2] for p in run.points)]
                    axes.plot(x, [100 * value for value in y], color=COLOURS[name], label=LABELS[name], lw=1.4)
                    if name == OWN and seed in wanted:
                        axes.axhline(100 * wanted[seed], color="#999999", lw=0.8, ls=":")
            axes.set_title(f"{MODELS.get(model, model)}, {network}", loc="left", fontsize=8)
            axes.set_xlabel("seconds")
            drawing.from_zero(axes)
        grid[row][0].set_ylabel("test accuracy, %")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=7)
    figure.suptitle(stamp, x=1.0, ha="right", fontsize=5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=150, metadata={"Software": None})
    pyplot.close(figure)
    return path
