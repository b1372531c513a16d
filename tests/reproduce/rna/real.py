# SPDX-License-Identifier: Apache-2.0
"""R1, R2, R3 with eight real daemons and trainers: rounds that are probed for over gRPC, beside virtual time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reproduce.partial import rounds, theory, workload
from tests.reproduce.partial.trainers import trainers
from tests.reproduce.study import Grid, Row, Study

RANKS = 8
BASE_S, EXTRA_S, SECONDS, SEED = 0.1, 0.1, 20.0, 9
Answers = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """What a run of RNA came to, over all ranks."""

    rounds: int
    seconds: float
    contributors: float
    """Mean ranks whose gradients went into a round."""
    computed: int
    taken: int
    """Contributions that rounds held; one may hold several gradients of its rank."""


def found(answers: Answers) -> Found:
    """Rounds that at least one rank has seen: a rank that computes through several sees the newest of them."""
    seen = {receipt["op_seq"]: receipt["included"] for one in answers for receipt in one["receipts"]}
    total = max(seen) + 1 if seen else 0
    mean = statistics.fmean(seen.values()) if seen else 0.0
    return Found(total, max(one["seconds"] for one in answers), mean, sum(one["computed"] for one in answers),
                 round(mean * total))  # fmt: skip


def expected(op_s: float) -> tuple[float, float]:
    """Rounds per second and contributors in virtual time, an op and its probe taking |op_s|."""
    rng = np.random.default_rng(SEED)
    finished = np.cumsum(workload.uniform(1000, RANKS, BASE_S, 0, EXTRA_S, rng), axis=0)
    made = rounds.run(finished, 900, rounds.chooser(RANKS, 2, rng), op_s)
    return made.rate, made.contributors_mean


def run(seconds: float = SECONDS) -> Study:
    study = Study(
        "real",
        "R2, R3: eight real daemons and trainers",
        f"{RANKS} daemons and {RANKS} trainers on the loopback of this machine, policy probe with q = 2, {seconds:g} "
        f"s. Computing is a sleep of {1e3 * BASE_S:g} to {1e3 * (BASE_S + EXTRA_S):g} ms, uniform; a rank gives its "
        "gradient and polls for a result, and waits for nothing. Virtual time stands beside it, an op taking none and "
        "5 ms.",
    )
    request = {"do": "rna", "policy": "probe", "base_s": BASE_S, "extra_s": EXTRA_S, "seconds": seconds, "seed": SEED,
               "elements": 4096}  # fmt: skip
    try:
        with trainers(RANKS) as gang:
            judge(study, found(gang.ask(request, seconds + 60)))
    except (RuntimeError, OSError) as error:
        study.rows.append(Row("R2, R3 with real trainers", "Table 4", str(error)[:600], "-", None))
    return study


def judge(study: Study, real: Found) -> None:
    grid = Grid("Rounds", ("where", "rounds/s", "contributors a round"))
    for op_ms in (0.0, 5.0):
        rate, contributors = expected(op_ms / 1e3)
        grid.rows.append((f"virtual time, op {op_ms:g} ms", f"{rate:.2f}", f"{contributors:.2f}"))
    grid.rows.append(("real", f"{real.rounds / real.seconds:.2f}", f"{real.contributors:.2f}"))
    study.grids.append(grid)
    mean = theory.active_mean("probe", RANKS)
    pace = real.computed / real.seconds
    free = RANKS / (BASE_S + EXTRA_S / 2)
    share = real.taken / max(1, real.computed)
    study.rows += [
        Row("R3, real: contributions to a round, q = 2", "-",
            f"{real.contributors:.2f} of {RANKS}, {real.rounds / real.seconds:.1f} rounds/s",
            f"(N + 1) / 3 = {mean:g}, within 15 %", abs(real.contributors / mean - 1) <= 0.15),
        Row("R2, real: computing waits for nothing", "-", f"{pace:.1f} gradients/s of {free:.1f} without any op",
            "at least 0.95", pace >= 0.95 * free),
        Row("R2, real: gradients that a round took", "-", f"{100 * share:.1f} % as contributions of their own",
            "at least 90 %; the others were combined with a newer one, or are left over", share >= 0.9),
    ]  # fmt: skip
