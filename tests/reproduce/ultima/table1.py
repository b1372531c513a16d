# SPDX-License-Identifier: Apache-2.0
"""U1, U2, U3, U4, the paper's Table 1: throughput over loss, of Ring, BCube, TAR over a reliable transport, and ULTIMA.

In a lab of namespaces: real stacks, real loss on one host's link. The paper's Ring, BCube and TAR run over TCP; here
Gloo's ring runs over TCP, and our own executor runs all of them over our reliable transport, so that schedule and
transport can be told apart.
"""

from __future__ import annotations

import importlib.util
import math
import statistics

from tests.bench.gang import GangError
from tests.bench.rig import OWN, Rig, Series
from tests.lab.lab import unavailable
from tests.reproduce.study import Grid, Plot, Row, Study, at_least, at_most

HOSTS, RATE, SIZE = 4, 400.0, 4 * 65536
LOSSES = (0.0, 0.01, 0.1, 1.0)
LOSSY_HOST = 1
GLOO, RING, BCUBE, TAR = "gloo cubic", "ultima ring", "ultima bcube", "ultima tar"
LABELS = {GLOO: "Gloo ring, TCP", RING: "ring, reliable", BCUBE: "BCube, reliable", TAR: "TAR, reliable", OWN: "Ultima"}
PAPER_MINUTES = {"Ring": (100, 116, 184, 271), "BCube": (117, 122, 171, 230), "TAR+TCP": (102, 112, 134, 156),
                 "ULTIMA": (99, 102, 107, 105)}  # fmt: skip


def heard(algorithm: str, hosts: int) -> int | None:
    """From how many peers a host hears in the first stage under |algorithm|; None where it does not tell them apart."""
    return {"ring": 1, "tar": hosts - 1}.get(algorithm)


def in_force(series: Series, algorithm: str) -> bool:
    """Whether the receipts show this schedule: a build that does not know it must not pass for one that does."""
    expected = heard(algorithm, HOSTS)
    rows = [receipt["heard"][0] for op in series.receipts for receipt in op]
    if not rows:
        return False
    return all(row == expected for row in rows) if expected is not None else any(row < HOSTS - 1 for row in rows)


def rate_of(series: Series) -> float:
    """Ops per second."""
    return 1e6 / statistics.fmean(series.us) if series.us else math.nan


def paper_rows() -> list[Row]:
    """U2: the paper's headline against its own table."""
    ring, own = PAPER_MINUTES["Ring"], PAPER_MINUTES["ULTIMA"]
    mean = statistics.fmean(1 - b / a for a, b in zip(ring, own, strict=True))
    drift = max(own) / own[0] - 1
    return [
        Row("U2: the paper's \"60 % faster on average\"", "60 %", f"its own table gives {100 * mean:.0f} % on average",
            "the table gives it", abs(mean - 0.60) <= 0.05),
        Row("U2: the paper's \"within 6 %\" under loss", "6 %", f"its own table gives {100 * drift:.0f} %",
            "the table gives it", drift <= 0.06),
    ]  # fmt: skip


def judge(found: dict[float, dict[str, Series]], t_b_us: float) -> list[Row]:
    """The rows of U1, U3 and U4. A contender that is not there leaves its rows untested."""

    def ops(name: str, loss: float) -> float:
        series = found.get(loss, {}).get(name)
        return rate_of(series) if series else math.nan

    rows = [_own_kept(ops(OWN, 1.0) / ops(OWN, 0.0))]
    for name, what in (
        (GLOO, "Gloo's ring over TCP (the paper's Ring)"),
        (RING, "our ring over our reliable transport"),
    ):
        kept, ahead, level = (
            ops(name, 1.0) / ops(name, 0.0),
            ops(OWN, 1.0) / ops(name, 1.0),
            ops(OWN, 0.0) / ops(name, 0.0),
        )
        rows += [
            Row(f"U1: {what} collapses at 1 %", "0.37 of no loss", _number(kept), "at most 0.5", at_most(kept, 0.5)),
            Row(f"U1: Ultima to {what} at 1 %", "2.58", _number(ahead), "at least 2.0", at_least(ahead, 2.0)),
            Row(f"U1: Ultima to {what} at no loss", "1.01", _number(level), "at least 0.85", at_least(level, 0.85)),
        ]
    own = {loss: one[OWN] for loss, one in found.items() if OWN in one}
    dropped = all(series.missing <= (1.2 * loss / 100 if loss else 1e-4) for loss, series in own.items())
    text = ", ".join(f"{100 * series.missing:.5f} %" for series in own.values())
    rows.append(Row("U3: bytes dropped by Ultima", ".00009, .0003, .02, .08 %", text or "-",
                    "at most 1.2 of what was injected; at 0 % under 0.01 %", dropped if own else None))  # fmt: skip
    grown = ops(GLOO, 0.0) / ops(GLOO, 1.0)
    rows.append(Row("U4: mean time of an op over TCP grows at 1 %", "3 times", _number(grown), "at least 3 times",
                    at_least(grown, 3.0)))  # fmt: skip
    tail = own[1.0].p99 / t_b_us if 1.0 in own and t_b_us else math.nan
    missing = "no t_B in the receipts of this build"
    rows.append(Row("U4: Ultima's p99 to t_B at 1 %", "bounded", _number(tail) if tail == tail else missing,
                    "at most 1.5", at_most(tail, 1.5)))  # fmt: skip
    return rows


def _own_kept(kept: float) -> Row:
    return Row("U1: Ultima keeps its rate at 1 %", "0.94", _number(kept), "at least 0.9", at_least(kept, 0.9))


def _number(value: float) -> str:
    return "not measured" if math.isnan(value) else f"{value:.2f}"


def t_b_of(series: Series) -> float:
    """Median of the t_B that the receipts name, in microseconds; 0 where they name none."""
    named = [receipt.get("t_b_s") or 0.0 for op in series.receipts for receipt in op]
    return statistics.median(named) * 1e6 if any(named) else 0.0


def run(ops: int = 400, seconds: float = 12.0) -> Study:
    study = Study(
        "table1",
        "U1 to U4: throughput over loss (Table 1)",
        f"A lab of {HOSTS} hosts at {RATE:g} Mbit/s, 256 KiB an op (64 KiB a shard), packets to host {LOSSY_HOST} "
        f"lost for themselves, offloads off, up to {ops} ops or {seconds:g} s a cell, contenders in turn. Ops per "
        "second of communication alone: the paper's minutes hold computing, which does not slow down. Its Ring "
        "runs over TCP, as Gloo's does; the executor's own ring, BCube and TAR in the reliable mode run over a "
        "transport that repairs a loss in a fraction of a millisecond, so they cannot collapse as TCP does.",
        rows=paper_rows(),
    )
    reason = unavailable()
    if reason is not None:
        study.rows.append(Row("U1, U3, U4", "Table 1", reason, "-", None))
        return study
    names = [GLOO, TAR, OWN]
    if importlib.util.find_spec("ultima.settings.options") is not None:
        names[1:1] = [RING, BCUBE]
    environments = {name: {"ULTIMA_ALGORITHM": name.split()[1]} for name in (RING, BCUBE)}
    modes = dict.fromkeys((RING, BCUBE, TAR), "reliable")
    found: dict[float, dict[str, Series]] = {}
    with Rig(HOSTS, SIZE, RATE, environments=environments) as rig:
        for name in (RING, BCUBE):
            try:
                if name in names:
                    rig.gang(name)
            except GangError:  # the engine knows the option and refuses the schedule
                names.remove(name)
        for loss in LOSSES:

            def worsen(loss: float = loss) -> None:
                rig.lab.set_loss(loss, to=[LOSSY_HOST])

            found[loss] = rig.turns(SIZE, ops, seconds, names, rounds=2, mode=modes, before=worsen)
            rig.lab.set_loss(0)
    for name in (RING, BCUBE):
        if name in names and all(in_force(one[name], name.split()[1]) for one in found.values()):
            continue
        study.rows.append(Row(f"U1: {LABELS[name]}", "Table 1", "this build does not run this schedule", "-", None))
        for one in found.values():
            one.pop(name, None)
    study.rows += judge(found, t_b_of(found[1.0][OWN]))
    _show(study, found)
    return study


def _show(study: Study, found: dict[float, dict[str, Series]]) -> None:
    names = [name for name in LABELS if name in found[0.0]]
    rates = Grid("Ops per second (mean; p99 in ms, ops)", ("loss %", *(LABELS[name] for name in names)))
    for loss, one in found.items():
        cells = (f"{rate_of(one[name]):.1f} ({one[name].p99 / 1e3:.1f}, {one[name].ops})" for name in names)
        rates.rows.append((f"{loss:g}", *cells))
    paper = Grid("The paper's minutes to accuracy", ("loss %", *PAPER_MINUTES))
    for at, loss in enumerate(LOSSES):
        paper.rows.append((f"{loss:g}", *(str(values[at]) for values in PAPER_MINUTES.values())))
    study.grids += [rates, paper]
    shares = {LABELS[name]: (LOSSES, [rate_of(found[loss][name]) / rate_of(found[0.0][name]) for loss in LOSSES])
              for name in names}  # fmt: skip
    shown = {name: ([max(loss, 0.003) for loss in x], y) for name, (x, y) in shares.items()}
    title = "Ops per second over loss, as a share of those without loss (left: none)"
    study.plots.append(Plot("table1", title, "loss on one host's link, percent", "share", shown, log_x=True))
