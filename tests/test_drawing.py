# SPDX-License-Identifier: Apache-2.0
"""Plots are read on white and on dark pages, and show all that they have."""

import re
from pathlib import Path

import pytest

from tests import drawing
from tests.reproduce.report import draw
from tests.reproduce.study import Plot

ROOT = Path(__file__).resolve().parents[1]
LINE = ([2.0, 4.0, 10.0], [1.19, 1.2, 1.2])


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
def test_plot__has_no_paper_no_black_and_no_point_on_its_rim(names: tuple[str, ...], tmp_path: Path) -> None:
    text = draw(Plot("p", "t", "x", "y", dict.fromkeys(names, LINE)), tmp_path).read_text()
    assert not re.search("#ffffff|#000000", text) and drawing.INK in text
    assert ('id="legend_1"' in text) == (len(names) > 1)
    line = re.findall(r"[ML] [\d.]+ ([\d.]+)", re.findall(r'<path d="(M [^"]*)" clip-path', text)[0])
    rim = min(float(y) for y in re.findall(r"L [\d.]+ ([\d.]+)", text.split('id="axes_1"')[1].split("/>")[0]))
    assert min(map(float, line)) > rim + 5


def test_plots__in_the_documents_are_readable_on_a_dark_page() -> None:
    plots = sorted((ROOT / "docs/reproduction").glob("*.svg"))
    assert len(plots) > 5
    assert [path.name for path in plots if re.search("#ffffff|#000000", path.read_text())] == []
