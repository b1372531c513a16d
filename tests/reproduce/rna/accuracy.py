# SPDX-License-Identifier: Apache-2.0
"""R4 and R7, RNA's Figures 6 to 8 and Tables 3 and 4: time to a loss, and how good the model is in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.reproduce.partial import blocking, learning, rounds, workload
from tests.reproduce.partial.tasks import Digits
from tests.reproduce.partial.workload import Values
from tests.reproduce.study import Grid, Plot, Row, Study

SEEDS = (1, 2, 3)
RANKS, BASE_MS, OP_MS = 8, 20.0, 2.0
LOOK_MS, TARGET_AT = 250.0, 0.7
SYNC, OWN, NEWEST = "synchronous", "RNA", "RNA, newest result only"


@dataclass
class Case:
    """What one way of training came to, over the seeds."""

    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    speed_up: list[float] = field(default_factory=list)
    curve: list[list[float]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def delays(name: str, steps: int, rng: np.random.Generator) -> Values:
    """[iteration, rank] of computing, ms: all ranks alike, or the second half always slower."""
    if name == "U(0, 50) on all":
        return workload.uniform(steps, RANKS, BASE_MS, 0, 50, rng)
    half = RANKS // 2
    return np.hstack([workload.uniform(steps, half, BASE_MS, 0, 50, rng),
                      workload.uniform(steps, half, BASE_MS, 50, 100, rng)])  # fmt: skip


SETTINGS = ("U(0, 50) on all", "two classes")


def smooth(losses: list[float], over: int = 5) -> list[float]:
    """Running median: single points of a stochastic loss say little."""
    half = over // 2
    return [float(np.median(losses[max(0, at - half) : at + half + 1])) for at in range(len(losses))]


def train(setting: str, seed: int, steps: int, cases: dict[str, Case]) -> None:
    """One seed of all ways: RNA runs until synchronous training has done |steps|."""
    task = Digits(seed)
    compute = delays(setting, steps, np.random.default_rng((seed, 0)))
    timed = blocking.run(compute, "full", op_time=OP_MS)
    until = float(timed.left[-1].max())
    runs: dict[str, learning.Learned] = {SYNC: learning.eager(task, timed, look_every=LOOK_MS)}
    finished = np.cumsum(delays(setting, 4 * steps, np.random.default_rng((seed, 1))), axis=0)
    # Rounds take as long as two probes need: as many as fit are found from a few.
    pick = rounds.chooser(RANKS, 2, np.random.default_rng((seed, 2)))
    few = rounds.run(finished, 300, pick, OP_MS)
    pick = rounds.chooser(RANKS, 2, np.random.default_rng((seed, 2)))
    made = rounds.run(finished, int(until * few.rate * 1.2), pick, OP_MS)
    kept = made.until(until)
    runs[OWN] = learning.rna(task, finished, kept, look_every=LOOK_MS)
    runs[NEWEST] = learning.rna(task, finished, kept, every_result=False, look_every=LOOK_MS)
    target = smooth(runs[SYNC].losses)[int(TARGET_AT * len(runs[SYNC].losses))]
    for name, learned in runs.items():
        learned.losses = smooth(learned.losses)
        case = cases[name]
        case.accuracy.append(task.accuracy(learned.mean))
        case.loss.append(task.loss(learned.mean))
        case.speed_up.append(runs[SYNC].time_to(target) / learned.time_to(target))
        case.curve.append(learned.losses)
        case.times = learned.times if not case.times or len(learned.times) < len(case.times) else case.times


def run(steps: int = 500) -> Study:
    study = Study(
        "accuracy",
        "R4, R7: time to a loss, and accuracy (Figures 6 to 8, Tables 3 and 4)",
        f"Virtual time and a net of 64-64-10 on digits: {RANKS} ranks, {BASE_MS:g} ms of computing and U(0, 50) ms "
        f"more, or in two classes U(0, 50) and U(50, 100); an op takes {OP_MS:g} ms, two probes, eta 4, learning rate "
        f"scaled by the contributors, no groups. Seeds {', '.join(map(str, SEEDS))}. Time to the loss that synchronous "
        f"training has after {100 * TARGET_AT:g} % of its {steps} steps; the final loss is that after the same time. "
        "Rounds are quicker than a rank's iterations. A rank that uses the newest result only, as the paper's buffer "
        "does when it is read literally, misses those between: replicas drift apart and training fails. So a rank "
        "here applies every result that came since its last iteration; the other reading is told beside it.",
    )
    grid = Grid("Means of the seeds",
                ("delays", "training", "time-to-loss speed-up", "final loss", "accuracy %"))  # fmt: skip
    for setting in SETTINGS:
        cases = {name: Case() for name in (SYNC, OWN, NEWEST)}
        for seed in SEEDS:
            train(setting, seed, steps, cases)
        mean = {name: (float(np.mean(case.speed_up)), float(np.mean(case.loss)), float(np.mean(case.accuracy)))
                for name, case in cases.items()}  # fmt: skip
        for name, (speed_up, loss, accuracy) in mean.items():
            grid.rows.append((setting, name, f"{speed_up:.2f}", f"{loss:.4f}", f"{accuracy:.2f}"))
        gained, loss, accuracy = mean[OWN]
        _, sync_loss, sync_accuracy = mean[SYNC]
        each = ", ".join(f"{one:.2f}" for one in cases[OWN].speed_up)
        paper = "2.2" if setting == SETTINGS[0] else "2.3; 1.5 without groups"
        study.rows += [
            Row(f"R4: time to a loss, {setting}", paper, f"{gained:.2f} ({each})",
                "at least 1.2 over synchronous", gained >= 1.2),
            Row(f"R4: final loss, {setting}", "the same", f"{loss:.4f} against {sync_loss:.4f}",
                "at most 2 % above synchronous", loss <= 1.02 * sync_loss),
            Row(f"R7: accuracy, {setting}", "within 0.5 points", f"{accuracy:.2f} of {sync_accuracy:.2f} %",
                "less than 1 point below", sync_accuracy - accuracy < 1),
            Row(f"R4: the newest result alone, {setting}", "\"output tensors overwrite\"",
                f"loss {mean[NEWEST][1]:.3f}, accuracy {mean[NEWEST][2]:.1f} %", "less than 1 point below",
                sync_accuracy - mean[NEWEST][2] < 1),
        ]  # fmt: skip
        if setting == SETTINGS[0]:
            curves = {}
            for name, case in cases.items():
                count = min(len(curve) for curve in case.curve)
                losses = np.mean([curve[:count] for curve in case.curve], axis=0)
                curves[name] = ([one / 1e3 for one in case.times[:count]], [float(value) for value in losses])
            title = f"Loss over time, digits, {RANKS} ranks, {BASE_MS:g} ms and U(0, 50) ms more"
            study.plots.append(Plot("rna_loss", title, "seconds of virtual time", "loss", curves, log_y=True))
    study.grids.append(grid)
    return study
