# SPDX-License-Identifier: Apache-2.0
"""Real daemons and trainers: computing is a sleep, and stalls come however much a rank has to compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.reproduce.coded.trainer import stalls
from tests.reproduce.partial.trainers import Trainers, trainers
from tests.reproduce.study import Grid, Row, Study, at_least
from ultima.coded import Plan

WORKERS, ELEMENTS, STEPS, SEED = 12, 5001, 200, 5
ALL_S, PROBABILITY, STALL_S = 12 * 0.020, 0.1, 0.3
LEAD_S = 0.1  # ranks need not begin together: the first steps do not count
MASTER, UNCODED, STAR = "uncoded, a master", "uncoded, TAR", "star, s = 1"
CODING, TREE = "gradient coding, S = 4", "CR (3, 2), s = 1"
PLANS: dict[str, dict[str, Any]] = {
    CODING: {"workers": WORKERS, "stragglers": 4, "children": WORKERS},
    TREE: {"workers": WORKERS, "stragglers": 1, "children": 3},
    STAR: {"workers": WORKERS, "stragglers": 1},
}
OTHERS: dict[str, dict[str, Any]] = {
    MASTER: {"options": {"algorithm": "ps"}, "first": 1},
    UNCODED: {"options": {}, "first": 0},
}
# (over, of, least gain): the criteria.
CRITERIA = ((MASTER, TREE, 2.4), (CODING, TREE, 1.15), (MASTER, STAR, 3.0))


class Refused(RuntimeError):
    """The daemons will not run the scheme."""


def expected(name: str, steps: int = STEPS, seed: int = SEED) -> float:
    """Milliseconds of a step in virtual time: an op takes none, and a stall ends with its step."""
    drawn = np.array([stalls(seed, rank, steps, PROBABILITY) for rank in range(WORKERS + 1)]).T
    if name in OTHERS:
        first = OTHERS[name]["first"]
        ready = ALL_S / WORKERS + STALL_S * drawn[:, first : first + WORKERS]
        return 1e3 * float(ready.max(axis=1).mean())
    plan = Plan(**PLANS[name])
    decodable = cache(plan.decodable)  # who does not stall comes in one order, so most steps ask the same
    ends = []
    for row in drawn:
        ready = {rank: float(plan.load) * ALL_S + STALL_S * row[rank] for rank in range(plan.first, plan.hosts)}
        came: set[int] = set()
        for rank in sorted(ready, key=lambda each: ready[each]):
            came.add(rank)
            if decodable(frozenset(came)):
                ends.append(ready[rank])
                break
    return 1e3 * float(np.mean(ends))


def run(steps: int = STEPS) -> Study:
    study = Study(
        "real",
        "Real daemons: a step with stalls",
        f"A master and {WORKERS} workers, or {WORKERS} workers alone, each with a daemon of its own on the loopback of "
        f"this machine; {ELEMENTS} elements, {steps} steps. Computing is a sleep, {1e3 * ALL_S / WORKERS:g} ms for "
        f"1/12 of the data; a rank stalls for {1e3 * STALL_S:g} ms in a step with a probability of {PROBABILITY:g}. A "
        "rank of a coded job that stalls looks every 5 ms whether its step is over (last column: only after its "
        "stall). Beside it stands virtual time, in which an op takes none. Every sum is checked.",
    )
    grid = Grid("Milliseconds of a step", ("scheme", "virtual time", "real", "looks only after a stall"))
    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    _measure(grid, found, failed, WORKERS, (STAR,), steps)
    if found:  # else there is nothing to compare
        _measure(grid, found, failed, WORKERS, (UNCODED,), steps)
        _measure(grid, found, failed, WORKERS + 1, (MASTER, CODING, TREE), steps)
        study.grids.append(grid)
    study.rows += judge(found)
    study.rows += [Row(f"Real: {name}", "-", why[:400], "-", None) for name, why in failed.items()]
    return study


def _measure(grid: Grid, found: dict[str, float], failed: dict[str, str], count: int, names: Sequence[str],
             steps: int) -> None:  # fmt: skip
    waiting = list(names)
    while waiting:  # after a scheme that fails the ranks are gone: the rest gets others
        with trainers(count, lead_s=LEAD_S, module="tests.reproduce.coded.trainer") as gang:
            while waiting:
                name = waiting.pop(0)
                try:
                    told = [ask(gang, name, steps, looks) for looks in ((True, False) if name in PLANS else (True,))]
                except Refused as error:
                    failed[name] = str(error)
                    continue
                except RuntimeError as error:
                    failed[name] = _last_line(str(error))
                    break
                found[name] = told[0]
                shown = (f"{each:.1f}" for each in told)
                grid.rows.append((name, f"{expected(name, steps):.1f}", *shown, *["-"] * (2 - len(told))))


def ask(gang: Trainers, name: str, steps: int, looks: bool = True) -> float:
    """Milliseconds of a step. Raises Refused, and RuntimeError for a sum that is not that of all data."""
    request = {"steps": steps, "seed": SEED, "probability": PROBABILITY, "stall_s": STALL_S, "all_s": ALL_S,
               "elements": ELEMENTS, "looks": looks}  # fmt: skip
    more = {"do": "coded", "plan": PLANS[name]} if name in PLANS else {"do": "plain", **OTHERS[name]}
    answers = gang.ask({**request, **more}, steps * (2 * ALL_S + STALL_S) + 60)
    refused = [one["refused"] for one in answers if "refused" in one]
    if refused:
        raise Refused(refused[0])
    wrong = sum(one.get("wrong", 0) for one in answers)
    if wrong:
        raise RuntimeError(f"{wrong} sums were not those of all data")
    return 1e3 * max(one["seconds"] for one in answers) / steps


def judge(found: dict[str, float]) -> list[Row]:
    rows = []
    for over, name, least in CRITERIA:
        gain = found.get(over, float("nan")) / found.get(name, float("nan"))
        ours = "not measured" if np.isnan(gain) else f"{gain:.2f} ({found[over]:.0f} and {found[name]:.0f} ms)"
        rows.append(Row(f"Real: {over} over {name}", "-", ours, f"at least {least:g}", at_least(gain, least)))
    return rows


def _last_line(text: str) -> str:
    """The exception that a rank ended with, or what else was said last."""
    lines = [line.strip() for line in text.strip().splitlines()]
    raised = [
        line for line in lines if re.match(r"(\w+\.)*\w*(Error|Unsupported|Behind|Gone|Exceeded|Timeout)\b", line)
    ]
    return (raised or lines or [""])[-1]
