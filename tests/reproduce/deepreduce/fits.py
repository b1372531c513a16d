# SPDX-License-Identifier: Apache-2.0
"""D5: curves in the place of values: volume, error and cost of Fit-Poly and Fit-DExp."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tests.reproduce.study import Grid, Row, Study
from ultima.sparse import decode, encode, parse, top_entries

SIZE, RATIO, SEEDS = 36_864, 0.01, 10
SHAPES = ("laplace", "normal")
RAW_ENTRY = 8


def measure(value: str, shape: str) -> tuple[float, float, int]:
    """Volume to raw entries with raw indices, relative L2 error, and how often the curve had to be another one; means
    over the seeds."""
    volume = error = 0.0
    others = 0
    for seed in range(SEEDS):
        dense = getattr(np.random.default_rng(seed), shape)(size=SIZE).astype(np.float32)
        chosen = top_entries(dense, RATIO)
        packed = encode(chosen.indices, chosen.values, SIZE, index="raw", value=value)
        box, whole = parse(packed), chosen.dense()
        others += box.value != value
        volume += (box.payload_bits / 8 + len(box.parameters)) / (RAW_ENTRY * chosen.indices.size) / SEEDS
        error += float(np.linalg.norm(decode(packed, SIZE).dense() - whole) / np.linalg.norm(whole)) / SEEDS
    return volume, error, others


def cost(value: str, entries: int = 200_000) -> float:
    """CPU seconds of one encoding; the least of five."""
    values = np.random.default_rng(3).laplace(size=entries).astype(np.float32)
    indices = np.arange(entries)

    def once(call: Callable[[], object]) -> float:
        begun = time.process_time()
        call()
        return time.process_time() - begun

    return min(once(lambda: encode(indices, values, entries, index="raw", value=value)) for _ in range(5))


def judge(found: dict[tuple[str, str], tuple[float, float, int]], slower: float) -> list[Row]:
    dexp, poly = found["fit-dexp", "laplace"], found["fit-poly", "laplace"]
    return [
        Row("D5: volume of Fit-DExp to Top-r", "about 50 % less", f"{dexp[0]:.3f}", "0.50 within 0.015",
            abs(dexp[0] - 0.5) <= 0.015),
        Row("D5: volume of Fit-Poly to Top-r", "about 40 % less", f"{poly[0]:.3f}", "at most 0.60", poly[0] <= 0.60),
        Row("D5: error of Fit-Poly", "accuracy unharmed", f"{100 * poly[1]:.2f} %", "L2 below 3 % on Laplace",
            poly[1] < 0.03),
        Row("D5: error of Fit-DExp", "accuracy unharmed", f"{100 * dexp[1]:.2f} %", "L2 below 3 % on Laplace",
            dexp[1] < 0.03),
        Row("D5: Fit-DExp is slower than Fit-Poly", "3.5 times", f"{slower:.2f} times", "reported", None),
    ]  # fmt: skip


def run() -> Study:
    study = Study(
        "fits",
        "D5: curves through sorted values (Figure 3, section 5)",
        f"The {int(RATIO * SIZE)} largest of {SIZE} elements, {SEEDS} seeds; raw indices in the order of the values, "
        "so that no map travels. Volumes count the payload and the codec's parameters. Fit-Poly has degree 5 and up to "
        "4 segments a sign. Fit-DExp has four coefficients a sign, found by integrals and without iteration, so it is "
        "not slower here. Cost is CPU time of one encoding of 200,000 values.",
    )
    found = {(value, shape): measure(value, shape) for value in ("fit-poly", "fit-dexp") for shape in SHAPES}
    grid = Grid("Volume and error", ("codec", "values", "volume to Top-r", "L2 error", "fell back"))
    for (value, shape), (volume, error, others) in found.items():
        grid.rows.append((value, shape, f"{volume:.3f}", f"{100 * error:.2f} %", f"{others} of {SEEDS}"))
    study.grids.append(grid)
    study.rows = judge(found, cost("fit-dexp") / cost("fit-poly"))
    return study
