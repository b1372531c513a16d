# SPDX-License-Identifier: Apache-2.0
"""The figures of a run as plots. SVG, with nothing in it that changes when the figures do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tests import drawing
from tests.bench.rig import Series
from tests.bench.studies import Table

COLOURS = {"gloo cubic": "#c44e52", "gloo bbr": "#dd8452", "ultima": "#4c72b0"}
LABELS = {"gloo cubic": "Gloo, cubic", "gloo bbr": "Gloo, bbr", "ultima": "Ultima"}

STEP = 1.05  # from a point of a tail to the next, in what is left of the ops: evenly on a logarithmic axis

# Not times of Ultima's beside those of Gloo.
UNDRAWN = ("fair", "overhead")


def draw(tables: Sequence[Table], folder: Path, stamp: str) -> list[Path]:
    """Writes one file for each table that has a picture; |stamp| says where the figures are from."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        if table.name not in UNDRAWN and table.cases:
            written.append(_dots(table, folder / f"{table.name}.svg", stamp))
        if table.name == "loss":
            written.append(_tails(table, folder / "tails.svg", stamp))
    return written


def _dots(table: Table, path: Path, stamp: str) -> Path:
    """Medians as dots, from there to the 99th percentile a line; milliseconds, logarithmic, where a bar has no foot."""
    names = [name for name in COLOURS if any(name in found for found in table.cases.values())]
    figure, axes = drawing.pyplot().subplots(figsize=(7.2, 3.4), layout="constrained")
    width = 0.8 / len(names)
    for at, name in enumerate(names):
        shown = [(case, found[name]) for case, found in enumerate(table.cases.values()) if name in found]
        where = [case + (at - (len(names) - 1) / 2) * width for case, _ in shown]
        middles = [one.p50 / 1e3 for _, one in shown]
        up = [max(0.0, one.p99 - one.p50) / 1e3 for _, one in shown]
        axes.errorbar(where, middles, [[0.0] * len(up), up], color=COLOURS[name], label=LABELS[name],
                      fmt="o", ms=4, lw=1, capsize=2)  # fmt: skip
    axes.set_yscale("log")
    drawing.logarithmic(axes.yaxis, axes.dataLim.minpos[1], axes.dataLim.ymax)
    axes.set_ylabel("ms: dot p50, line to p99")
    axes.set_xticks(range(len(table.cases)), [case.replace(", ", "\n", 1) for case in table.cases])
    axes.set_title(table.title, loc="left", fontsize=9)
    drawing.legend(axes, ncols=len(names), loc="upper left")
    axes.margins(y=0.25)
    return _save(figure, path, stamp)


def _tails(table: Table, path: Path, stamp: str) -> Path:
    """Of each case the share of ops that took longer than so many times the least median, logarithmic both ways."""
    columns = min(3, len(table.cases))
    rows = math.ceil(len(table.cases) / columns)
    figure, grid = drawing.pyplot().subplots(
        rows, columns, figsize=(7.2, 2.3 * rows + 0.3), layout="constrained", sharey=True, squeeze=False
    )
    for axes in grid.flat[len(table.cases) :]:
        axes.set_visible(False)
    for axes, (case, found) in zip(grid.flat, table.cases.items(), strict=False):
        for name, one in found.items():
            axes.step(*_exceeded(one), where="post", color=COLOURS[name], label=LABELS[name])
        axes.set_xscale("log")
        axes.set_yscale("log")
        drawing.logarithmic(axes.xaxis, axes.dataLim.minpos[0], axes.dataLim.xmax)
        ops = " and ".join(map(str, sorted({one.ops for one in found.values()})))
        axes.set_title(f"{case}; {ops} ops", loc="left", fontsize=9)
        axes.set_xlabel("ms")
        axes.tick_params(labelsize=7)
    grid.flat[0].set_ylabel("share of ops that took longer")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=8)
    return _save(figure, path, stamp)


def _exceeded(one: Series) -> tuple[list[float], list[float]]:
    """Times and the share of ops that took longer; of thousands of ops some hundred points, the longest ones all."""
    ordered = sorted(one.us)
    count, shown = len(ordered), list[int]()
    left = count
    while left:
        shown.append(count - left)
        left = min(left - 1, int(left / STEP))
    return [ordered[at] / 1e3 for at in shown], [1 - at / count for at in shown]


def _save(figure: object, path: Path, stamp: str) -> Path:
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    figure.supxlabel(stamp, x=1.0, ha="right", fontsize=5)  # below all else, as the layout leaves room for it
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return path
