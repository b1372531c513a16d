# SPDX-License-Identifier: Apache-2.0
"""How the plots of figures look: readable on a white page and on a dark one, and the same file for the same figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

INK = "#767676"
"""Of axes and words. Its contrast is 4.5 to 1 with white, and 4.6 to 1 with black."""
_INKED = ("text", "axes.edge", "axes.label", "axes.title", "xtick.", "ytick.", "legend.label")


def pyplot(font: float = 9) -> ModuleType:
    """matplotlib's, without a screen, in this style."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as made

    colours = {f"{name}color": INK for name in _INKED if name not in ("text", "axes.title")}
    matplotlib.rcParams.update({
        "font.size": font, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "ultima",
        "svg.fonttype": "none", "savefig.transparent": True, "text.color": INK, "axes.titlecolor": INK, **colours,
    })  # fmt: skip
    return made


def from_zero(axes: Any) -> None:
    """A linear axis from zero to above the highest point, so that none lies on the rim."""
    axes.set_ylim(bottom=0, top=axes.dataLim.ymax * 1.08 or 1.0)


def logarithmic(axis: Any, least: float, most: float) -> None:
    """Plain numbers on a logarithmic axis, 1, 2 and 5 of each power of ten where it has few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    few = math.log10(most / least) < 2 if 0 < least < most else True
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def legend(axes: Any, **how: Any) -> None:
    """Only where there is something to tell apart."""
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False, **how)


def whole(axis: Any, values: Sequence[float]) -> None:
    """No tick between whole numbers where all that is shown is one."""
    from matplotlib.ticker import MaxNLocator

    if all(float(value).is_integer() for value in values):
        axis.set_major_locator(MaxNLocator(integer=True))
