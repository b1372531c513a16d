# SPDX-License-Identifier: Apache-2.0
"""The studies as one Markdown page, and their plots as SVG."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import drawing
from tests.reproduce.study import Grid, Plot, Row, Study

POINTS_MAX = 200  # of a line of a plot: more than its pixels show, and the file of a plot stays small
MARKED_MAX = 50  # each point has a mark of its own
WIDTH = 120  # of a line of a document, as tests/test_architecture.py has it


def page(studies: Sequence[Study], facts: dict[str, Any], command: str, title: str = "ULTIMA's own claims") -> str:
    rows = [row for study in studies for row in study.rows]
    counted = ", ".join(
        f"{sum(row.verdict == verdict for row in rows)} {verdict}" for verdict in ("pass", "FAIL", "not tested")
    )
    parts = [
        f"# {title}, reproduced",
        _fill(
            f"Written by `{command}` on {facts['date']}, commit {facts['commit']}, {facts['cores']} cores of "
            f"{facts['cpu']}, Linux {facts['kernel']}. Do not edit: run it again. The criteria are ours, chosen before "
            "the figures; a claim that does not hold stands here with its figures."
        ),
        f"**{counted}.** Each claim stands with what the paper reports, what was read here, and a criterion.",
        "\n".join(map(_claim, rows)),
    ]
    for study in studies:
        parts += [f"## {study.title}", _fill(study.how)]
        parts += [f"{grid.title}:\n\n{_table(grid.header, grid.rows)}" for grid in study.grids]
        parts += [f"![{plot.title}]({plot.name}.svg)" for plot in study.plots]
    return "\n\n".join(parts) + "\n"


def _fill(text: str, first: str = "", rest: str = "") -> str:
    """|text| in lines that a document may have. The first begins with |first|, all others with |rest|."""
    held = re.sub(r" (?=[-+*] |\d+\. )", "\0", text)  # what would begin an item of a list stays on its line
    return textwrap.fill(
        held, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    ).replace("\0", " ")


def _claim(row: Row) -> str:
    """One claim as an item of a list: its cells are too long for the columns of a table."""
    result = f"Paper: {row.paper}. Here: {row.ours}. Criterion: {row.criterion}."
    return "\n".join([_fill(f"{row.claim}.", f"* **{row.verdict}**: ", "  "), _fill(result, "  ", "  ")])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(grid: Grid) -> str:
    """A table for the screen."""
    rows = [list(grid.header), *map(list, grid.rows)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(grid.header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([grid.title, *lines])


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS_MAX of them, evenly by their place, with the first and the last."""
    if len(points) <= POINTS_MAX:
        return points
    return [points[at * (len(points) - 1) // (POINTS_MAX - 1)] for at in range(POINTS_MAX)]


def draw(plot: Plot, folder: Path) -> Path:
    pyplot = drawing.pyplot()
    figure, axes = pyplot.subplots(figsize=(5.4, 3.2), layout="constrained")
    for name, (x, y) in plot.lines.items():
        shown = [(a, b) for a, b in zip(x, y, strict=True) if not math.isnan(b) and (b > 0 or not plot.log_y)]
        few = thinned(shown)
        axes.plot([a for a, _ in few], [b for _, b in few], marker="o" if len(shown) <= MARKED_MAX else "", label=name)
    axes.set_xscale("log" if plot.log_x else "linear")
    axes.set_yscale("log" if plot.log_y else "linear")
    every_x = [value for x, _ in plot.lines.values() for value in x]
    if not plot.log_x:
        drawing.whole(axes.xaxis, every_x)
    if not plot.log_y:
        drawing.from_zero(axes)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.set_title(plot.title, loc="left", fontsize=9)
    drawing.legend(axes)
    path = folder / f"{plot.name}.svg"
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return path
