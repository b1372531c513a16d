# SPDX-License-Identifier: Apache-2.0
"""A lab with its contenders, and measuring them in turn: whatever the machine does, it does to all of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tests.bench.gang import RANK, Gang
from tests.bench.usage import ENGINE, Meter, Usage
from tests.lab.cluster import Cluster
from tests.lab.distance import Far
from tests.lab.lab import Lab, Unit

OWN = "ultima"
CODED = "ultima coded"
STRAGGLERS = 1  # of CODED
FORMS = {"ultima int8": "int8", "ultima int4": "int4"}  # ops whose elements travel in few bits
CONTENDERS = ("gloo cubic", "gloo bbr", OWN)
TCP_PAYLOAD, UDP_PAYLOAD, MTU = 1448, 1440, 1500


@dataclass
class Series:
    """All that one contender did in one case. Times in microseconds, one of each op, that of its slowest rank."""

    contender: str
    us: list[float] = field(default_factory=list)
    wrong: int = 0
    receipts: list[list[dict[str, Any]]] = field(default_factory=list)
    """Ultima's: of each op one of each rank."""
    counters: dict[str, int] = field(default_factory=dict)
    """Ultima's: what the engines of all hosts counted during the case, ops that were not timed included."""
    usage: Usage = field(default_factory=Usage)
    """Of the whole machine while the ops ran, with the barriers between them."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the whole machine per op; NaN if nobody looked."""
        return self.usage.cpu_s / self.ops if self.ops and self.usage.seconds else math.nan

    @property
    def ops(self) -> int:
        return len(self.us)

    @property
    def p50(self) -> float:
        return statistics.median(self.us) if self.us else math.nan

    @property
    def p99(self) -> float:
        return quantile(self.us, 99)

    @property
    def p999(self) -> float:
        return quantile(self.us, 99.9)

    @property
    def tail(self) -> float:
        """p99 / p50."""
        return self.p99 / self.p50 if self.us else math.nan

    @property
    def missing(self) -> float:
        """Share of the expected bytes that never came, 0 to 1, over all ops and ranks."""
        rows = [receipt for op in self.receipts for receipt in op]
        expected = sum(row["bytes_expected"] for row in rows)
        return sum(row["bytes_missing"] for row in rows) / expected if expected else 0.0

    @property
    def feedback(self) -> float:
        """Feedback packets sent per data packet sent."""
        data = self.counters.get("data_sent", 0)
        return self.counters.get("feedback_sent", 0) / data if data else math.nan

    def extend(self, more: Series) -> None:
        """Adds what the same contender did later in the same case."""
        self.us += more.us
        self.wrong += more.wrong
        self.receipts += more.receipts
        self.usage += more.usage
        self.counters = {name: value + self.counters.get(name, 0) for name, value in more.counters.items()}

    def as_dict(self) -> dict[str, Any]:
        statuses: dict[str, int] = {}
        for op in self.receipts:
            for receipt in op:
                statuses[receipt["status"]] = statuses.get(receipt["status"], 0) + 1
        return {
            "contender": self.contender, "ops": self.ops, "p50_us": self.p50, "p99_us": self.p99, "p999_us": self.p999,
            "cpu_s": self.cpu_s, "wakeups_per_s": self.usage.wakeups_per_s,
            "busiest_wakeups_per_s": self.usage.busiest_wakeups_per_s,
            "us": self.us, "wrong": self.wrong, "missing_share": self.missing, "statuses": statuses,
            "counters": self.counters,
        }  # fmt: skip


def quantile(values: Sequence[float], percent: float) -> float:
    """The nearest rank, as `ultima perf` takes it; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def share_of(total: int, turn: int, rounds: int) -> int:
    """How many of |total| ops belong to round |turn| of |rounds|, from 0 on; the shares add up to |total|."""
    return total * (turn + 1) // rounds - total * turn // rounds


def wire_bound_us(size: int, hosts: int, mbit: float) -> float:
    """Least time of an all-reduce over links of |mbit| Mbit/s: each host sends 2 (N - 1) / N of a bucket of |size|
    bytes in IP packets of 1500 bytes with 1440 of payload. Without Ethernet's own headers, so no system reaches it.
    """
    return 2 * (hosts - 1) / hosts * size * MTU / UDP_PAYLOAD * 8 / mbit


def moved_bytes(size: int, hosts: int) -> float:
    """Payload that one host sends in one op; it receives as much."""
    return 2 * (hosts - 1) / hosts * size


class Rig:
    """|hosts| hosts with a daemon each, and gangs of contenders that start when they are first asked for.

    |rate|: Mbit/s of every link, 0 for unshaped. |bytes_max|: largest bucket to come. |environments|: by contender,
    such as "ultima ring", the options of its job. |note| is told what goes on, for a progress bar. |far|: how far the
    hosts are apart.
    """

    def __init__(
        self,
        hosts: int,
        bytes_max: int,
        rate: float = 0,
        unit: Unit = "packet",
        environments: Mapping[str, Mapping[str, str]] | None = None,
        note: Callable[[str], None] | None = None,
        far: Far | None = None,
    ) -> None:
        self.lab = Lab(hosts, rate, unit=unit, far=far)
        self.cluster = Cluster(self.lab, anew=True)
        self.hosts, self.rate = hosts, rate
        self._bytes_max, self._environments = bytes_max, environments or {}
        self._note = note or (lambda text: None)
        self._gangs: dict[str, Gang] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Rig:
        try:
            self._stack.enter_context(self.lab)
            self._stack.enter_context(self.cluster)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Ranks that only wait for a request leave quickly; after an error the lab ends them.
        if error is None:
            for gang in self._gangs.values():
                gang.stop()
        self._stack.close()

    def gang(self, name: str) -> Gang:
        if name not in self._gangs:
            self._note(f"starting {name}")
            environment = self._environments.get(name)
            program = [str(RANK), "--bytes-max", str(self._bytes_max)]
            program += ["--stragglers", str(STRAGGLERS)] if name == CODED else []
            program += ["--wire", FORMS[name]] if name in FORMS else []
            self._gangs[name] = Gang(self.lab, name, program, self.cluster, environment)
        return self._gangs[name]

    def counters(self) -> dict[str, int]:
        """Counters of the engines of all hosts, added up."""
        total: dict[str, int] = {}
        for host in self.lab.hosts:
            for name, value in self.cluster.status(host.index)["engine"]["counters"].items():
                total[name] = total.get(name, 0) + int(value)
        return total

    def meter(self, name: str) -> Meter:
        """Counts from now on what |name| takes: Ultima's engine threads wake up in the daemons, Gloo's in the ranks."""
        if name.startswith("gloo"):
            return Meter(self.gang(name).pids)
        return Meter([daemon.pid for daemon in self.cluster.daemons], ENGINE)

    def turns(self, size: int, ops: int, seconds: float, contenders: Sequence[str] = CONTENDERS, rounds: int = 4,
              mode: str | Mapping[str, str] = "bounded", deadline: float | None = None,
              before: Callable[[], None] | None = None,
              rival_ops: int | None = None, apart_s: float = 0.0) -> dict[str, Series]:  # fmt: skip
        """Measures |size| bytes on each of |contenders|: |ops| ops, or as many as |seconds| allow, over |rounds|.

        |rival_ops|: the most of Gloo's. |mode|: of all, or by contender. |apart_s|: from the first rank's call to the
        last one's. Two ops of each warm up first; then |before|
        is called, which makes the network bad. Each contender goes first in some round: what runs before must not
        always be the same. Raises GangError.
        """
        found = {name: Series(name) for name in contenders}
        spent = dict.fromkeys(contenders, 0.0)
        for name in contenders:
            self.gang(name).run(size, 2, 60)
        if before is not None:
            before()
        start = self.counters() if OWN in found else {}
        for turn in range(rounds):
            first = turn % len(contenders)
            for name in [*contenders[first:], *contenders[:first]]:
                series, rest = found[name], rounds - turn
                wanted = ops if rival_ops is None or not name.startswith("gloo") else min(ops, rival_ops)
                due, time_s = math.ceil((wanted - series.ops) / rest), (seconds - spent[name]) / rest
                if due <= 0 or time_s <= 0:
                    continue
                self._note(f"{self.hosts} hosts, {size} B, {name}, round {turn + 1} of {rounds}")
                its_mode = mode if isinstance(mode, str) else mode.get(name, "bounded")
                meter = self.meter(name)
                us = self.gang(name).run(size, due, time_s, its_mode, deadline, apart_s=apart_s)
                series.usage += meter.used()
                account = self.gang(name).account()
                series.us += us
                series.wrong += account.wrong
                series.receipts += account.receipts
                spent[name] += sum(us) / 1e6
        if OWN in found:
            found[OWN].counters = {name: value - start.get(name, 0) for name, value in self.counters().items()}
        return found


def turns_anew(
    build: Callable[[], Rig],
    ops: Mapping[int, int],
    seconds: float,
    rounds: int,
    rival_ops: int | None = None,
    contenders: Sequence[str] = CONTENDERS,
) -> dict[int, dict[str, Series]]:
    """`Rig.turns` for buckets of several sizes, with a rig of its own for each of |rounds|.

    Where processors are the limit, rigs of one kind differ by a tenth for as long as they stand, and one of them tells
    of itself alone. |ops| of each size; |seconds| of each size and contender, all rounds together.
    """
    found = {size: {name: Series(name) for name in contenders} for size in ops}
    for turn in range(rounds):
        first = turn % len(contenders)
        order = [*contenders[first:], *contenders[:first]]
        with build() as rig:
            for size, most in ops.items():
                now = rig.turns(size, share_of(most, turn, rounds), seconds / rounds, order, rounds=1,
                                rival_ops=None if rival_ops is None else share_of(rival_ops, turn, rounds))  # fmt: skip
                for name, series in now.items():
                    series.usage = series.usage.by_place()
                    found[size][name].extend(series)
    return found
