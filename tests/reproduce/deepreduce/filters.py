# SPDX-License-Identifier: Apache-2.0
"""D4, D6, D7: Bloom filters over one layer's gradient, 36,864 elements of which 368 are sent: size and accuracy of the
policies over the filter's error rate."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tests.reproduce.study import Grid, Plot, Row, Study
from ultima.sparse import bloom, decode, encode, parse, top_entries

SIZE, RATIO, SEEDS = 36_864, 0.01, 8
ERRORS = (0.001, 0.002, 0.004, 0.007, 0.01, 0.02)
POLICIES = ("p0", "p1", "p2")
RAW_KEY, RAW_ENTRY = 4, 8  # bytes


@dataclass
class Found:
    """Means over the seeds."""

    keys: float
    """The filter's bytes to those of raw indices."""
    volume: dict[str, float]
    """Payload to that of raw indices and values, by policy."""
    true: dict[str, float]
    """Share of the entries among what arrived."""
    wrong: dict[str, float]
    """Relative L2 error of the decoded tensor, values of false members from the dense one."""
    by_chance: float
    """Entries to members of the filter: what P1 finds on average."""


def measure(error: float, seeds: int = SEEDS) -> Found:
    found = Found(0.0, dict.fromkeys(POLICIES, 0.0), dict.fromkeys(POLICIES, 0.0), dict.fromkeys(POLICIES, 0.0), 0.0)
    for seed in range(seeds):
        dense = np.random.default_rng(seed).laplace(size=SIZE).astype(np.float32)
        chosen = top_entries(dense, RATIO)
        whole = chosen.dense()
        for policy in POLICIES:
            packed = encode(chosen.indices, chosen.values, SIZE, index=f"bloom-{policy}", bloom_error=error, seed=seed)
            box, back = parse(packed), decode(packed, SIZE)
            both = np.intersect1d(back.indices, chosen.indices).size / chosen.indices.size
            found.volume[policy] += box.payload_bits / 8 / (RAW_ENTRY * chosen.indices.size) / seeds
            found.true[policy] += both / seeds
            found.wrong[policy] += float(np.linalg.norm(back.dense() - whole) / np.linalg.norm(whole)) / seeds
            if policy == "p0":
                found.keys += box.packed_indices.size / (RAW_KEY * chosen.indices.size) / seeds
                found.by_chance += chosen.indices.size / box.values / seeds
    return found


def crossover(found: dict[float, Found]) -> float:
    """The error rate at which P0 takes as much as raw entries do, between the two measured ones around it; NaN if there
    is none."""
    pairs = [(error, one.volume["p0"]) for error, one in sorted(found.items())]
    for (low, below), (high, above) in pairwise(pairs):
        if below <= 1 < above:
            return low + (1 - below) / (above - below) * (high - low)
    return float("nan")


def judge(found: dict[float, Found]) -> list[Row]:
    fine, at = found[0.001], crossover(found)
    chance = max(abs(one.true["p1"] - one.by_chance) for one in found.values())
    gain = {error: one.true["p2"] - one.true["p1"] for error, one in found.items() if 0.001 <= error <= 0.02}
    least = min(gain, key=lambda error: gain[error])
    paper = {0.001: (0.91, 0.997), 0.004: (0.71, 0.94), 0.01: (0.51, 0.73)}
    text = "; ".join(f"{error}: {found[error].true['p1']:.3f} and {found[error].true['p2']:.3f}" for error in paper)
    return [
        Row("D4: keys in a Bloom filter, FPR 0.001", "half of raw keys", f"{fine.keys:.3f}", "at most 0.5",
            fine.keys <= 0.5),
        Row("D4: P1 and P2 to Top-r, FPR 0.001", "33 % less data", f"{fine.volume['p2']:.3f}", "0.725 within 2 %",
            abs(fine.volume["p2"] / 0.725 - 1) <= 0.02),
        Row("D4: P0 to Top-r, FPR 0.001", "33 % less data", f"{fine.volume['p0']:.3f}", "0.774 within 2 %",
            abs(fine.volume["p0"] / 0.774 - 1) <= 0.02),
        Row("D7: where P0 takes more than Top-r", "FPR above 0.004 (r = 1 %)", f"FPR {at:.4f}; "
            f"{found[0.004].volume['p0']:.3f} at 0.004, {found[0.01].volume['p0']:.3f} at 0.01",
            "between 0.004 and 0.01", 0.004 < at < 0.01),
        Row("D6: P0 loses nothing", "lossless", f"largest error {max(one.wrong['p0'] for one in found.values()):g}",
            "0", all(one.wrong["p0"] == 0 for one in found.values())),
        Row("D6: P1 finds entries by chance", "-", f"at most {chance:.3f} from r / |P|; {text} (P1 and P2)",
            "r / |P| within 0.03", chance <= 0.03),
        Row("D6: P2 finds more than P1", "better than P1", f"at least {gain[least]:.3f} more, at FPR {least}",
            "at least 0.05 more for FPR 0.001 to 0.02", gain[least] >= 0.05),
    ]  # fmt: skip


def naive_error(error: float = 0.001) -> float:
    chosen = top_entries(np.random.default_rng(1).laplace(size=SIZE).astype(np.float32), RATIO)
    packed = encode(chosen.indices, chosen.values, SIZE, index="bloom-naive", bloom_error=error)
    whole = chosen.dense()
    return float(np.linalg.norm(decode(packed, SIZE).dense() - whole) / np.linalg.norm(whole))


def run() -> Study:
    study = Study(
        "filters",
        "D4, D6, D7: Bloom filters and their policies",
        f"A Laplace gradient of {SIZE} elements, its {int(RATIO * SIZE)} largest; {SEEDS} seeds. Volumes are payloads "
        "against raw indices and values. False members carry zeros. The true share is that of the entries that came.",
    )
    found = {error: measure(error) for error in ERRORS}
    grid = Grid(
        "By error rate of the filter",
        ("FPR", "hashes", "bits", "keys", "P0 volume", "P1, P2 volume", "P1 true", "P2 true", "P1 L2", "P2 L2"),
    )
    for error, one in found.items():
        hashes, bits = bloom.shape(int(RATIO * SIZE), error)
        grid.rows.append(
            (str(error), str(hashes), str(bits), f"{one.keys:.3f}", f"{one.volume['p0']:.3f}",
             f"{one.volume['p2']:.3f}", f"{one.true['p1']:.3f}", f"{one.true['p2']:.3f}", f"{one.wrong['p1']:.3f}",
             f"{one.wrong['p2']:.3f}")
        )  # fmt: skip
    study.grids.append(grid)
    naive = naive_error()
    study.rows = [
        *judge(found),
        Row("D6: the naive filter is bad", "bad", f"relative error {naive:.2f} at FPR 0.001", "above 0.5", naive > 0.5),
    ]
    lines = {policy.upper(): (ERRORS, [found[error].true[policy] for error in ERRORS]) for policy in POLICIES}
    study.plots.append(
        Plot("deepreduce_policies", "Entries that arrive, by policy", "false positive rate", "share of the entries",
             lines, log_x=True)
    )  # fmt: skip
    return study
