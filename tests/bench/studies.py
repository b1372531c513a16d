# SPDX-License-Identifier: Apache-2.0
"""The tables of `make bench`, one function each: builds its lab, measures, and returns what report.py prints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from tests.bench import call_cost, criteria, fairness
from tests.bench.criteria import Check, case_name, size_name
from tests.bench.overhead import beyond, measure
from tests.bench.rig import CODED, CONTENDERS, FORMS, OWN, STRAGGLERS, Rig, Series, moved_bytes, turns_anew
from tests.bench.usage import has_wide_products
from tests.lab.cluster import PORT
from tests.lab.distance import Far
from tests.lab.flood import Garbage
from tests.lab.traffic import Flow

RATE = 1000.0  # Mbit/s of a shaped link
HOSTS = 4
MB25, MB4, MB1 = 25_000_000, 4_000_000, 1_000_000
WAN_QUICK = ((HOSTS, 25.0, 0.0), (HOSTS, 25.0, 1.0))  # cubic takes four seconds for a MB at 1 %
SLOW_HOST = 1


@dataclass(frozen=True)
class Effort:
    """How much to measure. A contender that is too slow for |seconds| does fewer ops, and the count shows it."""

    ops: int = 200
    seconds: float = 66.0
    """Of timed ops per case and contender."""
    small_ops: int = 400
    """Of buckets up to 4 MB."""
    rounds: int = 4
    quick: bool = False
    rival_ops: int | None = None
    """Most ops of Gloo per case and way; None: as many as Ultima's."""
    only: tuple[str, ...] = ()
    """Names of cases, or parts of names; none of them: all cases."""

    def wants(self, case: str) -> bool:
        return not self.only or any(part in case for part in self.only)


QUICK = Effort(ops=12, seconds=5.0, small_ops=24, rounds=2, quick=True)
LONG = Effort(ops=2000, seconds=1000.0, small_ops=4000, rounds=10, rival_ops=300)


@dataclass
class Table:
    """What one study found: series by case, checks, and lines that say how it was measured."""

    name: str
    title: str
    cases: dict[str, dict[str, Series]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        cases = {name: [one.as_dict() for one in found.values()] for name, found in self.cases.items()}
        return {"name": self.name, "title": self.title, "lines": self.lines, "facts": self.facts, "cases": cases,
                "checks": [check.as_dict() for check in self.checks]}  # fmt: skip


Note = Callable[[str], None]


def loss(effort: Effort, note: Note) -> Table:
    table = Table("loss", "Per-packet loss at the switch, N=4, 1 Gbit/s, offloads off in front of it")
    cases = [(MB25, 0.0), (MB25, 1.0), (MB4, 1.0)] if effort.quick else list(criteria.LOSS)
    cases = [case for case in cases if effort.wants(case_name(*case))]
    measured: dict[tuple[int, float], dict[str, Series]] = {}
    with Rig(HOSTS, MB25, RATE, note=note) as rig:
        for size, percent in cases:

            def worsen(percent: float = percent) -> None:
                rig.lab.set_loss(percent)

            ops = effort.small_ops if size <= MB4 else effort.ops
            found = rig.turns(size, ops, effort.seconds, rounds=effort.rounds, before=worsen,
                              rival_ops=effort.rival_ops)  # fmt: skip
            packets, taken = rig.lab.dropped() if percent else (0, 0)
            rig.lab.set_loss(0)
            if percent and not packets:
                raise RuntimeError(f"the lab was asked for {percent} % loss and dropped nothing")
            case = case_name(size, percent)
            if packets:
                table.facts[f"{case}: bytes per loss event"] = round(taken / packets)
            table.cases[case] = measured[size, percent] = found
            table.checks += criteria.loss_checks(size, percent, found)
            if size == MB25:
                table.checks.append(criteria.wakeups_check(case, found[OWN]))
            if (size, percent) == (MB25, 0):
                table.checks.append(criteria.machine_cpu_check(case, found, criteria.CPU_SHAPED))
    table.checks += criteria.own_checks(measured, HOSTS, RATE)
    return table


def slow(effort: Effort, note: Note) -> Table:
    """A deadline of 1.3 times the healthy time, with one host's link at a quarter of the rate."""
    table = Table("slow", f"One slow host, N=4, 25 MB: host {SLOW_HOST} at {RATE / 4:g} of {RATE:g} Mbit/s")
    ops = max(8, effort.ops // 4)
    with Rig(HOSTS, MB25, RATE, note=note) as rig:
        healthy = rig.turns(MB25, ops, effort.seconds / 3, (OWN,), rounds=1)
        deadline_s = criteria.SLOW_DEADLINE * healthy[OWN].p50 / 1e6

        def worsen() -> None:
            rig.lab.host(SLOW_HOST).set_rate(RATE / 4)

        bounded = rig.turns(MB25, ops, effort.seconds / 2, (OWN,), rounds=1, deadline=deadline_s, before=worsen)
        rivals = rig.turns(MB25, max(4, ops // 4), effort.seconds / 3, CONTENDERS[:2], rounds=1)
    table.cases = {"healthy": healthy, f"slow, deadline {deadline_s * 1e3:.0f} ms": bounded, "slow, Gloo": rivals}
    table.checks = criteria.slow_checks(bounded[OWN], SLOW_HOST, deadline_s * 1e6)
    missing = 100 * bounded[OWN].missing
    kinds = {str(row.get("trouble", "not told")) for op in bounded[OWN].receipts for row in op if row["bytes_missing"]}
    table.lines.append(
        f"Bytes missing at the deadline: {missing:.2f} %. Kind of trouble told: {', '.join(sorted(kinds))}."
    )
    return table


def coded(effort: Effort, note: Note) -> Table:
    """The op of a coded job to which all give, beside the allreduce over the same hosts; without loss and with it."""
    table = Table("coded", f"Coded sums, a star with s={STRAGGLERS}, beside TAR: N={HOSTS}, 1 Gbit/s, 25 MB")
    measured: dict[float, dict[str, Series]] = {}
    with Rig(HOSTS, MB25, RATE, note=note) as rig:
        for percent in (0.0, 1.0):

            def worsen(percent: float = percent) -> None:
                rig.lab.set_loss(percent)

            measured[percent] = rig.turns(MB25, effort.ops // 2, effort.seconds / 2, (OWN, CODED), effort.rounds,
                                          before=worsen)  # fmt: skip
            table.cases[case_name(MB25, percent)] = measured[percent]
    table.checks = criteria.coded_checks(measured)
    for percent, found in measured.items():
        rows = [row for op in found[CODED].receipts for row in op]
        used = sum(row["bytes_used"] for row in rows)
        again = sum(row["redundant_bytes"] for row in rows) / max(1, used)
        table.facts[f"{percent:g} % loss: bytes redundant to used"] = round(again, 4)
    return table


# Hosts that send and milliseconds of a burst, milder first; an eighth of the time belongs to bursts. One host alone
# leaves TCP half of the link, two leave it next to nothing.
LADDER = ((1, 50.0), (1, 100.0), (1, 200.0), (2, 100.0), (2, 150.0), (2, 300.0))


def cross(effort: Effort, note: Note) -> Table:
    """Bursts of others' UDP into one host, worse and worse until Gloo's tail is what is aimed at."""
    table = Table("cross", "Cross traffic: bursts of UDP from other hosts into host 1, each at 1 Gbit/s, N=4, 4 MB")
    aims, levels = [1.5, 3.0], []
    with Rig(HOSTS, MB4, RATE, note=note) as rig:
        for senders, on_ms in LADDER:
            if not aims:
                break
            with ExitStack() as stack:
                flows = [stack.enter_context(Flow(rig.lab, source, 1, "udp", RATE, on_ms, 7 * on_ms, seed=7))
                         for source in (2, 3)[:senders]]  # fmt: skip
                found = rig.turns(MB4, effort.small_ops, effort.seconds / 3, ("gloo cubic", OWN), effort.rounds,
                                  rival_ops=effort.rival_ops)  # fmt: skip
            case = f"{senders} x {on_ms:g} ms"
            tail = found["gloo cubic"].tail
            table.cases[case] = found
            table.facts[f"{case}: Gloo's p99/p50"] = round(tail, 2)
            table.facts[f"{case}: megabytes of cross traffic"] = sum(flow.sent_bytes for flow in flows) // 1_000_000
            if tail >= aims[0]:
                # A rung may pass both aims; the lower one then has no figure of its own.
                while len(aims) > 1 and tail >= aims[1]:
                    aims.pop(0)
                levels.append((aims.pop(0), found))
    table.checks = criteria.cross_checks(levels)
    if len(levels) < 2:
        table.checks.append(Check("cross traffic", "both levels of Gloo's p99/p50 were found", math.nan, 0))
    return table


def unshaped(effort: Effort, note: Note) -> Table:
    table = Table("unshaped", "Unshaped links, offloads on: CPU per byte and wake-ups")
    wide = has_wide_products()
    sizes: dict[int, list[int]] = {}
    for hosts, size in criteria.UNSHAPED:
        sizes.setdefault(hosts, []).append(size)
    for hosts, wanted in sorted(sizes.items()):
        wanted = [size for size in wanted if effort.wants(f"N={hosts}, {size_name(size)}")]
        if not wanted or (effort.quick and hosts > HOSTS):
            continue

        def build(hosts: int = hosts, largest: int = max(wanted)) -> Rig:
            return Rig(hosts, largest, unit="burst", note=note)

        ops = {size: effort.ops if size > MB4 else effort.small_ops for size in wanted}
        for size, found in turns_anew(build, ops, effort.seconds / 2, effort.rounds, effort.rival_ops).items():
            case = f"N={hosts}, {size_name(size)}"
            table.cases[case] = found
            table.checks.append(criteria.unshaped_check(hosts, size, found, wide))
            if size == MB25:
                table.checks.append(criteria.wakeups_check(case, found[OWN]))
                moved = moved_bytes(size, hosts) * hosts * found[OWN].ops
                table.checks.append(criteria.cpu_check(hosts, size, found[OWN], moved))
                limit = criteria.CPU_WIDE if wide else criteria.CPU_NARROW
                table.checks.append(criteria.machine_cpu_check(case, found, limit))
                table.checks.append(Check(case, "feedback per data packet",
                                          found[OWN].feedback, criteria.FEEDBACK_RATIO))  # fmt: skip
    return table


def rates(effort: Effort, note: Note) -> Table:
    """Slow links as well as fast ones: what is right for one rate may be wrong for another."""
    table = Table("rates", "Links from 250 Mbit/s to 1 Gbit/s, no loss, 25 MB, offloads off in front of the switch")
    ops = max(4, effort.ops // 10)
    for hosts, mbit in criteria.RATES:
        case = criteria.rate_name(hosts, mbit)
        if not effort.wants(case):
            continue
        with Rig(hosts, MB25, mbit, note=note) as rig:
            found = rig.turns(MB25, ops, effort.seconds / 2, rounds=effort.rounds, rival_ops=effort.rival_ops)
        table.cases[case] = found
        table.checks += criteria.rate_checks(case, found)
    return table


def apart(effort: Effort, note: Note) -> Table:
    """Ranks that call one after the other, where those of the other tables leave a barrier together."""
    table = Table("apart", "Ranks that call apart, N=4, 1 Gbit/s, 25 MB; times are from the first call on")
    with Rig(HOSTS, MB25, RATE, note=note) as rig:
        for apart_s in criteria.APART_S:
            case = f"{apart_s * 1e3:.0f} ms"
            table.cases[case] = found = rig.turns(
                MB25, effort.ops // 4, effort.seconds / 2, rounds=effort.rounds, rival_ops=effort.rival_ops,
                apart_s=apart_s)  # fmt: skip
            table.checks += criteria.apart_checks(case, found)
    return table


def quantised(effort: Effort, note: Note) -> Table:
    """Elements of few bits beside dense ops and beside Gloo, over slow links, fast ones, and those of this machine."""
    table = Table("quantised", "Elements that travel as int8 and int4, 25 MB, no loss")
    contenders, cases = (*CONTENDERS, *FORMS), list(criteria.QUANTISED)
    for hosts, mbit in cases[:2] if effort.quick else cases:
        case = criteria.quantised_name(hosts, mbit)
        if not effort.wants(case):
            continue
        ops, seconds = max(4, effort.ops // (2 if not mbit else 4)), effort.seconds / 2

        def build(hosts: int = hosts, mbit: float = mbit) -> Rig:
            return Rig(hosts, MB25, mbit, unit="packet" if mbit else "burst", note=note)

        rounds = effort.rounds if not mbit else min(2, effort.rounds)
        found = turns_anew(build, {MB25: ops}, seconds, rounds, effort.rival_ops, contenders)[MB25]
        table.cases[case] = found
        table.checks += criteria.quantised_checks(hosts, mbit, found)
    return table


def wan(effort: Effort, note: Note) -> Table:
    """Hosts that are apart, behind a switch that delays. A lab for each distance, as paths know how short they were."""
    size, cases = (MB1, WAN_QUICK) if effort.quick else (MB25, criteria.WAN)
    rate = criteria.WAN_RATE
    table = Table("wan", f"Hosts apart, so many ms one way, {rate:g} Mbit/s, a queue of one round trip, {size} bytes")
    cases = tuple(case for case in cases if effort.wants(criteria.wan_name(*case)))
    for hosts, delay_ms in dict.fromkeys(case[:2] for case in cases):
        near = Far(2 * delay_ms, rate_mbit=rate, queue_ms=2 * delay_ms)
        with Rig(hosts, size, rate, note=note, far=near) as rig:
            for percent in (case[2] for case in cases if case[:2] == (hosts, delay_ms)):
                rig.lab.distance.set(near)
                before = rig.lab.distance.counts()

                def worsen(percent: float = percent, rig: Rig = rig, near: Far = near) -> None:
                    rig.lab.distance.set(replace(near, loss_pct=percent))

                found = rig.turns(size, max(4, effort.ops // 10), effort.seconds, rounds=min(2, effort.rounds),
                                  before=worsen, rival_ops=effort.rival_ops)  # fmt: skip
                now, case = rig.lab.distance.counts(), criteria.wan_name(hosts, delay_ms, percent)
                if percent and now.lost == before.lost:
                    raise RuntimeError(f"the lab was asked for {percent} % loss and dropped nothing")
                table.facts[f"{case}: frames lost, and dropped by queues"] = (
                    now.lost - before.lost,
                    now.crowded - before.crowded,
                )
                table.cases[case] = found
                table.checks += criteria.wan_checks(hosts, delay_ms, percent, size, found)
    return table


def fair(effort: Effort, note: Note) -> Table:
    """Ten seconds on one link with a cubic TCP flow in the same direction."""
    table = Table("fair", "Beside one cubic TCP flow from host 0 to host 1, N=2, 1 Gbit/s, 25 MB")
    seconds = 3.0 if effort.quick else 10.0
    with Rig(2, MB25, RATE, note=note) as rig:
        rig.gang(OWN).run(MB25, 2, 10)
        with Flow(rig.lab, 0, 1, "tcp", congestion="cubic") as flow:
            time.sleep(1.0)  # past slow start
            begun, before = time.monotonic(), flow.received()
            meter = rig.meter(OWN)
            us = rig.gang(OWN).run(MB25, 10_000, seconds)
            usage = meter.used()
            theirs, lasted = flow.received() - before, time.monotonic() - begun
        account = rig.gang(OWN).account()
    series = Series(OWN, us, account.wrong, account.receipts, usage=usage)
    own = moved_bytes(MB25, 2) * series.ops
    table.cases["beside TCP"] = {OWN: series}
    table.checks = criteria.fair_checks(own / (own + theirs) if own + theirs else math.nan)
    table.lines.append(
        f"{lasted:.1f} s: own {own * 8e-6 / lasted:.0f} Mbit/s, TCP {theirs * 8e-6 / lasted:.0f} Mbit/s of payload."
    )
    return table


FLOOD_PER_SECOND = 60_000  # 84 bytes of wire each: 4 % of the link, whoever receives it
FLOODED_HOST, FLOODING_HOST = 0, 2
FLOODED_PORTS = {"flooded": (PORT + 1, PORT + 2), "flooded elsewhere": (9, 19)}


def flood(effort: Effort, note: Note) -> Table:
    """A million datagrams of garbage at both ports of the first lane of one host, while ops run.

    The same at ports where nobody listens shows what link, kernels and the flooding host take of the one machine.
    """
    table = Table("flood", f"Garbage at {FLOOD_PER_SECOND} datagrams a second into one host, N=3, 1 Gbit/s, 25 MB")
    ops, seconds = max(4, effort.ops // (4 * effort.rounds)), effort.seconds / 3 / effort.rounds
    found = {case: Series(OWN) for case in ("calm", *FLOODED_PORTS)}
    with Rig(3, MB25, RATE, note=note) as rig:
        for _ in range(effort.rounds):
            found["calm"].extend(rig.turns(MB25, ops, seconds, (OWN,), rounds=1)[OWN])
            for case, ports in FLOODED_PORTS.items():
                with Garbage(rig.lab, FLOODING_HOST, FLOODED_HOST, ports, FLOOD_PER_SECOND):
                    found[case].extend(rig.turns(MB25, ops, seconds, (OWN,), rounds=1)[OWN])
    table.cases = {case: {OWN: series} for case, series in found.items()}
    table.checks = criteria.flood_checks(found["calm"], found["flooded"], found["flooded elsewhere"])
    return table


def overhead(effort: Effort, note: Note) -> Table:
    """What Python and the way to the daemon cost a small op; no lab, the two daemons meet on loopback."""
    table = Table("overhead", "Beyond the engine's own time: from the call to the result, N=2 on loopback, 1 KiB")
    note("four ways to call it, in turn")
    found = measure(100 if effort.quick else 5 * effort.ops)
    case = "N=2 on loopback, 1 KiB"
    table.cases[case] = {name: Series(name, row["wall"]) for name, row in found.items()}
    table.checks = criteria.overhead_checks(case, {name: beyond(row) for name, row in found.items()})
    note("CPU of the caller alone, the engine played")
    table.checks += criteria.call_cost_checks(call_cost.measure())
    return table


def beside_a_hog(effort: Effort, note: Note) -> Table:
    """A small job alone, and beside one of the same daemons whose trainer keeps 64 huge ops open; no lab."""
    table = Table("fairness", f"Ops of {fairness.SMALL_BYTES} bytes beside a job that keeps 64 huge ones open")
    ops, seconds = (300, 15.0) if effort.quick else (max(2000, effort.ops), 120.0)
    for hosts, pause_s in ((1, 0.001), (1, 0.0), (2, 0.001), (2, 0.0)):
        size = min(fairness.hog_bytes(hosts), 16 << 20 if effort.quick else fairness.HOG_BYTES)
        how = f"N={hosts}, {'one a ms' if pause_s else 'back to back'}"
        case = f"{how}, beside {size >> 20} MiB"
        note(case)
        found = fairness.measure(hosts, ops, seconds, size, pause_s)
        alone, beside = Series(OWN, found.alone), Series(OWN, found.beside)
        table.cases[f"{how}, alone"], table.cases[case] = {OWN: alone}, {OWN: beside}
        table.facts[f"{case}: huge ops that ended meanwhile"] = found.big_ops
        table.checks += criteria.fairness_checks(case, alone, beside, found.status_ms)
    return table


STUDIES: dict[str, Callable[[Effort, Note], Table]] = {
    "unshaped": unshaped,
    "loss": loss,
    "rates": rates,
    "apart": apart,
    "slow": slow,
    "coded": coded,
    "cross": cross,
    "fair": fair,
    "flood": flood,
    "overhead": overhead,
    "fairness": beside_a_hog,
    "quantised": quantised,
    "wan": wan,
}
LENGTHY = ("quantised", "wan")
"""Tables that are measured only if they are named: the first takes 15 minutes, the second an hour, most of which Gloo
over cubic takes."""

CASED = {
    "loss": [case_name(*case) for case in criteria.LOSS],
    "rates": [criteria.rate_name(*case) for case in criteria.RATES],
    "unshaped": [f"N={hosts}, {size_name(size)}" for hosts, size in criteria.UNSHAPED],
    "quantised": [criteria.quantised_name(*case) for case in criteria.QUANTISED],
    "wan": [criteria.wan_name(*case) for case in criteria.WAN],
}
"""Tables of which cases can be asked for, and the names of these."""
