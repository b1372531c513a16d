# SPDX-License-Identifier: Apache-2.0
"""What has to be reached, and whether it was. Pure: from measured series to rows of a table.

The limits are the project's own targets: ratios to the better of Gloo over cubic and over bbr, column by column,
measured in one run. A row that could not be measured is neither passed nor failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.rig import CODED, FORMS, MTU, OWN, Series, wire_bound_us

FRAME = 1514  # bytes of a full packet's frame, as the switch of a lab with distance counts
TAIL_OPS_MIN = 20  # of fewer ops nobody can tell a 99th percentile


@dataclass(frozen=True)
class Check:
    """One criterion: |value| must be at most |limit|. NaN: not measured."""

    case: str
    name: str
    value: float
    limit: float
    note: str = ""
    text: str = ""
    """The value as it is to be read, where the number alone does not say it."""

    @property
    def verdict(self) -> str:
        if math.isnan(self.value):
            return "not measured"
        return "pass" if self.value <= self.limit else "FAIL"

    def as_dict(self) -> dict[str, Any]:
        value = None if math.isnan(self.value) else self.value
        return {"case": self.case, "name": self.name, "value": value, "limit": self.limit, "verdict": self.verdict,
                "note": self.note}  # fmt: skip


@dataclass(frozen=True)
class LossLimits:
    p50_better: float
    p50_cubic: float
    p99_better: float
    own_tail: float
    missing: float
    """Share of the bytes that may be missing."""


# (bytes, loss in percent) -> limits, four hosts on 1 Gbit/s links, each packet lost for itself.
LOSS: dict[tuple[int, float], LossLimits] = {
    (25_000_000, 0): LossLimits(1.02, 1.02, 1.05, 1.05, 0),
    (25_000_000, 0.1): LossLimits(1.03, 0.80, 0.52, 1.10, 1e-6),
    (25_000_000, 1): LossLimits(0.50, 0.25, 0.28, 1.15, 1e-4),
    (25_000_000, 5): LossLimits(0.62, 0.02, 0.45, 1.25, 1e-3),
    (4_000_000, 0.1): LossLimits(1.05, 0.95, 0.60, 1.15, 1e-6),
    (4_000_000, 1): LossLimits(0.92, 0.16, 0.25, 1.25, 1e-4),
}
# (hosts, bytes) -> own median against the better Gloo's, unshaped: on CPUs with wide carry-less products (vpclmulqdq),
# and without.
UNSHAPED: dict[tuple[int, int], tuple[float, float]] = {
    (2, 25_000_000): (0.95, 1.05),
    (4, 25_000_000): (0.95, 1.05),
    (8, 25_000_000): (1.05, 1.15),
    (4, 4_000_000): (0.70, 0.70),
    (4, 65_536): (0.30, 0.30),
    (4, 262_144): (0.30, 0.30),
    (4, 1_048_576): (0.30, 0.30),
}
# (hosts, Mbit/s of every link) at which a bucket of 25 MB is measured; four hosts on 1 Gbit/s are in LOSS.
RATES = ((4, 250), (4, 300), (4, 400), (4, 500), (4, 700), (2, 500), (2, 1000))
RATE_P50 = 1.02  # to the better Gloo's: nothing is lost, and both have to move the same bytes
# Seconds from the first rank's call to the last one's, four hosts, 25 MB, 1 Gbit/s: in training no two call together.
APART_S = (0.01, 0.02)
APART_P50 = 1.05
# Of hosts that are apart, 25 MB, 100 Mbit/s: how many, ms one way, loss in percent; by loss the most that the median
# and the 99th percentile may be of the better Gloo's, and the median of the wire's bound and two round trips.
WAN = tuple((hosts, delay_ms, loss) for hosts in (4, 2) for delay_ms in (25.0, 50.0) for loss in (0.0, 0.1, 1.0))
WAN_RATE = 100.0
WAN_MOST = {0.0: (1.0, math.inf, 1.05), 0.1: (0.8, math.inf, 1.10), 1.0: (0.7, 0.6, 1.10)}
# (hosts, Mbit/s of every link, 0 for unshaped) -> by form the most that the median of an op of 25 MB may be of the
# dense op's, and by form the most of the better Gloo's.
QUANTISED: dict[tuple[int, float], tuple[dict[str, float], dict[str, float]]] = {
    (4, 100.0): ({"int8": 0.27, "int4": 0.15}, {}),
    (4, 1000.0): ({"int8": 0.29, "int4": 0.18}, {"int8": 0.30}),
    (4, 0.0): ({"int8": 0.8}, {"int8": 0.8}),
    (2, 0.0): ({"int8": 0.8}, {"int8": 0.8}),
}
OWN_LOSS_RATIO, OWN_BOUND_RATIO = 1.06, 1.05
CROSS_GROWTH = 1.05
CPU_NS_PER_BYTE = 0.45
# CPU seconds of the whole machine per op to Gloo's: unshaped, where the checksum takes a fifth on CPUs without wide
# carry-less products (vpclmulqdq), and on shaped links without offloads.
CPU_WIDE, CPU_NARROW, CPU_SHAPED = 1.05, 1.15, 1.5
FEEDBACK_RATIO = 1 / 64
WAKEUPS_PER_S = 4000
SLOW_DEADLINE = 1.3
SLOW_GRACE_US = 50_000.0  # what the client promises for returning after the engine's receipt
FLOOD_GROWTH = 1.10
OVERHEAD_US = 150.0
CALL_JOB_US, CALL_TORCH_US = 50.0, 80.0
FAIRNESS_GROWTH, FAIRNESS_MS = 0.1, 2.0
STATUS_MS = 50.0
FAIR_LOW, FAIR_HIGH = 0.40, 0.60


def size_name(size: int) -> str:
    return f"{size // 1_000_000} MB" if size % 1_000_000 == 0 else f"{size // 1024} KiB"


def case_name(size: int, loss: float) -> str:
    return f"{size_name(size)}, {f'{loss:g} %' if loss else 'no loss'}"


def rivals(found: Mapping[str, Series]) -> list[Series]:
    return [series for name, series in found.items() if not name.startswith(OWN) and series.ops]


def better(found: Mapping[str, Series], column: str) -> float:
    """The least |column| ("p50", "p99" or "cpu_s") of the rivals; NaN if none has it, or enough ops for it."""
    least = TAIL_OPS_MIN if column == "p99" else 1
    values = [getattr(one, column) for one in rivals(found) if one.ops >= least]
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def loss_checks(size: int, loss: float, found: Mapping[str, Series]) -> list[Check]:
    limits, own = LOSS[size, loss], found[OWN]
    case = case_name(size, loss)
    cubic = found["gloo cubic"].p50 if "gloo cubic" in found else math.nan
    delivered = "all" if not own.missing else f"{100 * (1 - own.missing):.6f} %"
    return [
        Check(case, "p50 to better Gloo", own.p50 / better(found, "p50"), limits.p50_better),
        Check(case, "p50 to Gloo over cubic", own.p50 / cubic, limits.p50_cubic),
        Check(case, "p99 to better Gloo", own.p99 / better(found, "p99"), limits.p99_better),
        Check(case, "own p99/p50", own.tail, limits.own_tail),
        Check(case, "share of bytes missing", own.missing, limits.missing, text=f"delivered {delivered}"),
        Check(case, "feedback per data packet", own.feedback, FEEDBACK_RATIO),
    ]


def own_checks(cases: Mapping[tuple[int, float], Mapping[str, Series]], hosts: int, mbit: float) -> list[Check]:
    """Own figures against own figures and against the wire, of the loss table as a whole."""
    none, one = cases.get((25_000_000, 0)), cases.get((25_000_000, 1))
    base = none[OWN].p50 if none else math.nan
    lossy = one[OWN].p50 if one else math.nan
    bound = wire_bound_us(25_000_000, hosts, mbit)
    return [
        Check("25 MB", "own p50 at 1 % to own at no loss", lossy / base, OWN_LOSS_RATIO),
        Check("25 MB", "own p50 at no loss to the wire's bound", base / bound, OWN_BOUND_RATIO,
              note=f"bound {bound / 1e3:.1f} ms"),
    ]  # fmt: skip


def unshaped_check(hosts: int, size: int, found: Mapping[str, Series], wide: bool) -> Check:
    """|wide|: the CPU has wide carry-less products."""
    ratio = found[OWN].p50 / better(found, "p50")
    return Check(f"N={hosts}, {size_name(size)}", "p50 to better Gloo", ratio, UNSHAPED[hosts, size][0 if wide else 1])


def rate_name(hosts: int, mbit: int) -> str:
    return f"N={hosts}, {mbit} Mbit/s"


def rate_checks(case: str, found: Mapping[str, Series]) -> list[Check]:
    own = found[OWN]
    return [
        Check(case, "p50 to better Gloo", own.p50 / better(found, "p50"), RATE_P50),
        Check(case, "share of bytes missing", own.missing, 0.0),
        wakeups_check(case, own),
        machine_cpu_check(case, found, CPU_SHAPED),
    ]


def apart_checks(case: str, found: Mapping[str, Series]) -> list[Check]:
    own = found[OWN]
    return [
        Check(case, "p50 to better Gloo", own.p50 / better(found, "p50"), APART_P50),
        Check(case, "share of bytes missing", own.missing, 0.0),
        machine_cpu_check(case, found, CPU_SHAPED),
    ]


def quantised_name(hosts: int, mbit: float) -> str:
    return f"N={hosts}, {f'{mbit:g} Mbit/s' if mbit else 'unshaped'}"


def quantised_checks(hosts: int, mbit: float, found: Mapping[str, Series]) -> list[Check]:
    """Ops whose elements travel in few bits, beside dense ops of the same job's kind and beside Gloo."""
    case, (to_dense, to_gloo) = quantised_name(hosts, mbit), QUANTISED[hosts, mbit]
    checks = []
    for name, form in FORMS.items():
        own, dense = found[name], found[OWN]
        checks += [
            Check(case, f"{form}: p50 to dense", own.p50 / dense.p50, to_dense.get(form, math.nan)),
            Check(case, f"{form}: p50 to better Gloo", own.p50 / better(found, "p50"), to_gloo.get(form, math.nan)),
            Check(case, f"{form}: CPU of the machine an op, to dense", own.cpu_s / dense.cpu_s, 1.0),
            Check(case, f"{form}: share of bytes missing", own.missing, 0.0),
        ]
    return [check for check in checks if not math.isnan(check.limit)]


def wan_name(hosts: int, delay_ms: float, loss: float) -> str:
    return f"N={hosts}, {delay_ms:g} ms, {f'{loss:g} %' if loss else 'no loss'}"


def wan_checks(hosts: int, delay_ms: float, loss: float, size: int, found: Mapping[str, Series]) -> list[Check]:
    """|size|: bytes of the bucket. An op may take two round trips besides what the wire needs: somebody has to say what
    may come, in each of its two stages."""
    case, own = wan_name(hosts, delay_ms, loss), found[OWN]
    p50, p99, goal = WAN_MOST[loss]
    goal_us = wire_bound_us(size, hosts, WAN_RATE) * FRAME / MTU + 4 * delay_ms * 1e3
    checks = [
        Check(case, "p50 to better Gloo", own.p50 / better(found, "p50"), p50),
        Check(case, "own p50 to the wire and two round trips", own.p50 / goal_us, goal, note=f"{goal_us / 1e3:.0f} ms"),
        Check(case, "share of bytes missing", own.missing, 0.0),
    ]
    if not math.isinf(p99):
        tail = own.p99 if own.ops >= TAIL_OPS_MIN else math.nan
        checks.append(Check(case, "p99 to better Gloo", tail / better(found, "p99"), p99))
    return checks


def cpu_check(hosts: int, size: int, own: Series, moved: float) -> Check:
    """|moved|: payload bytes that all hosts sent in the case, ops that were not timed included."""
    value = own.counters.get("cpu_ns", 0) / moved if moved and own.counters.get("cpu_ns") else math.nan
    return Check(f"N={hosts}, {size_name(size)}", "CPU ns per byte moved", value, CPU_NS_PER_BYTE)


def machine_cpu_check(case: str, found: Mapping[str, Series], limit: float) -> Check:
    own = found[OWN].cpu_s
    return Check(case, "CPU of the machine per op to better Gloo", own / better(found, "cpu_s"), limit,
                 note=f"{own:.3f} s" if not math.isnan(own) else "")  # fmt: skip


def names_host(receipt: Mapping[str, Any], host: int) -> bool:
    """With one rank a host, ranks are hosts."""
    return list(receipt["culprit"]) == [host]


def wakeups_check(case: str, own: Series) -> Check:
    return Check(case, "wake-ups a second of the busiest thread", own.usage.busiest_wakeups_per_s, WAKEUPS_PER_S)


def slow_checks(own: Series, host: int, deadline_us: float) -> list[Check]:
    """One host's link is slow: every rank returns by the deadline, and every receipt that misses bytes names it."""
    case = f"host {host} at a quarter of the rate"
    rows = [(rank, receipt) for op in own.receipts for rank, receipt in enumerate(op)]
    latest = max((receipt["elapsed_s"] * 1e6 for _, receipt in rows), default=math.nan)
    short = [(rank, receipt) for rank, receipt in rows if receipt["bytes_missing"]]
    silent = [rank for rank, receipt in short if not names_host(receipt, host)]
    others = sum(1 for rank in silent if rank != host)
    share = len(silent) / len(short) if short else math.nan
    return [
        Check(case, "latest receipt to the deadline", latest / deadline_us, 1.0,
              note=f"deadline {deadline_us / 1e3:.0f} ms"),
        Check(case, "latest return to deadline + 50 ms", max(own.us, default=math.nan) / (deadline_us + SLOW_GRACE_US),
              1.0),
        Check(case, "share of incomplete receipts that do not name it", share, 0.0,
              note=f"{len(short)} incomplete of {len(rows)}; {others} of other hosts silent"),
    ]  # fmt: skip


def cross_checks(levels: Iterable[tuple[float, Mapping[str, Series]]]) -> list[Check]:
    """|levels|: the factor aimed at (1.5, 3) with what was measured there; the first is the base of the growth."""
    checks: list[Check] = []
    base = math.nan
    for aim, found in levels:
        ratio = found["gloo cubic"].tail
        case = f"cross traffic, Gloo's p99/p50 {ratio:.2f} (aim {aim:g})"
        if math.isnan(base):
            base = found[OWN].p50
            checks.append(Check(case, "own p50 to itself", 1.0, 1.0, note=f"{base / 1e3:.1f} ms"))
        else:
            reached = found[OWN].p50 / base if ratio >= 0.9 * aim else math.nan
            checks.append(Check(case, "own p50 to the level before", reached, CROSS_GROWTH))
    return checks


def flood_checks(calm: Series, flooded: Series, elsewhere: Series) -> list[Check]:
    """|elsewhere|: the same garbage at ports where nobody listens, which costs what the link and the machine take.

    The machine is all hosts at once; what a flood costs beyond that is the engine's.
    """
    case = "garbage at one host"
    refused = flooded.counters.get("malformed", 0) + flooded.counters.get("unknown", 0)
    p50 = flooded.p50 if refused else math.nan  # without garbage the rows would prove nothing
    return [
        Check(case, "own p50 flooded to calm", p50 / calm.p50, FLOOD_GROWTH, note=f"{refused} refused"),
        Check(case, "own p50 flooded to flooded elsewhere", p50 / elsewhere.p50, FLOOD_GROWTH),
        Check(case, "share of bytes missing", flooded.missing, 0.0),
    ]


CODED_TO_TAR, CODED_LOSS = 0.80, 1.05


def coded_checks(found: Mapping[float, Mapping[str, Series]]) -> list[Check]:
    """|found|: by loss in percent, 0 and another one: a coded op beside the ordinary one."""
    whole = found[0.0]
    checks = [Check("no loss", "coded op to TAR's, p50", whole[CODED].p50 / whole[OWN].p50, CODED_TO_TAR)]
    for percent, lossy in found.items():
        if percent:
            ratio = lossy[CODED].p50 / whole[CODED].p50
            checks.append(Check(f"{percent:g} % loss", "coded op to that without loss, p50", ratio, CODED_LOSS))
        inexact = sum(row["exact"] is not True for op in lossy[CODED].receipts for row in op)
        checks.append(Check(f"{percent:g} % loss", "receipts that are not exact", float(inexact), 0.0))
    return checks


def fair_checks(share: float) -> list[Check]:
    case = "beside one cubic TCP flow, 10 s"
    text = f"{100 * share:.0f} % of the link" if not math.isnan(share) else ""
    return [
        Check(case, "own share at most", share, FAIR_HIGH, text=text),
        Check(case, "own share at least (its complement)", 1 - share, 1 - FAIR_LOW, text=text),
    ]


def overhead_checks(case: str, beyond_us: Mapping[str, float]) -> list[Check]:
    """|beyond_us|: by the way to call it, what an op takes beyond the engine's own time."""
    return [Check(case, f"{name}: us beyond the engine, p50", us, OVERHEAD_US) for name, us in beyond_us.items()]


def call_cost_checks(cpu_us: Mapping[str, float]) -> list[Check]:
    """|cpu_us|: by the way to call it, the CPU time of the caller's thread beyond the wait."""
    return [
        Check("1 KiB, engine played", f"{name}: us of CPU beyond the wait, at best", us,
              CALL_TORCH_US if name.startswith("dist.") else CALL_JOB_US)
        for name, us in cpu_us.items()
    ]  # fmt: skip


def fairness_checks(case: str, alone: Series, beside: Series, status_ms: Sequence[float]) -> list[Check]:
    """The small op's tail may grow by a tenth or 2 ms, whichever is more. |status_ms|: each answer of status."""
    text = f"p99 {alone.p99 / 1e3:.3f} ms alone, {beside.p99 / 1e3:.3f} ms beside: {beside.p99 / alone.p99:.2f} of it"
    return [
        Check(case, "ms that p99 grows by", (beside.p99 - alone.p99) / 1e3,
              max(FAIRNESS_GROWTH * alone.p99 / 1e3, FAIRNESS_MS), text=text),
        Check(case, "ms that status takes, worst", max(status_ms, default=math.nan), STATUS_MS,
              text=f"of {len(status_ms)}"),
    ]  # fmt: skip
