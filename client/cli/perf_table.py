# SPDX-License-Identifier: Apache-2.0
"""The table and the JSON of `ultima perf`, in the form of nccl-tests, so that what reads those reads these.

Column widths, number forms, the footer and the JSON's keys are those of nccl-tests 2.19 (src/util.cu): flags in its
JSON are the strings "true" and "false", the root is a string, and a count of wrong values is null where none was
made. What Ultima adds stands behind: four columns at the end of a row, further keys in the JSON.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import ceil
from typing import Any

PROGRAM = "all_reduce_perf"
JSON_VERSION = 2
DENSE_HEADER = (("dense", "(us)"), ("t/dense", ""), ("B/dense", ""))
LOSS_HEADER = (("p50", "(us)"), ("p99", "(us)"), ("p99/p50", ""), ("loss%", ""))


@dataclass(frozen=True)
class Tail:
    """What `--loss-columns` adds: each iteration from a barrier until the slowest rank has its result, microseconds."""

    p50_us: float
    p99_us: float
    loss_percent: float
    p90_us: float = 0.0
    p99_9_us: float = 0.0
    max_us: float = 0.0

    @property
    def ratio(self) -> float:
        return self.p99_us / self.p50_us if self.p50_us else 1.0


@dataclass(frozen=True)
class Dense:
    """Of ops that travel in few bits: the dense ops that took turns with them, and the ratios to those."""

    time_us: float
    time_ratio: float
    bytes_ratio: float
    """Of the payload that all ranks sent, without headers. 0 where nothing was sent."""


@dataclass(frozen=True)
class Told:
    """What the receipts of all ranks say together: bytes, and how many ended how."""

    expected_bytes: int
    missing_bytes: int
    statuses: dict[str, int]


@dataclass(frozen=True)
class Half:
    """One half of a row, out of place or in place. Times in microseconds, bandwidths in 1e9 bytes per second.

    |wrong| is None when values were not compared: asked so, or bytes were missing and none of them can be exact.
    """

    time_us: float
    algorithm_gbs: float
    bus_gbs: float
    wrong: int | None
    checked: bool = True
    tail: Tail | None = None
    told: Told | None = None
    dense: Dense | None = None


@dataclass(frozen=True)
class Row:
    """One size."""

    size: int
    count: int
    type: str
    redop: str
    iterations: int
    out_of_place: Half
    in_place: Half


@dataclass
class Report:
    """All rows, and what is said of them together."""

    config: dict[str, Any]
    ranks: list[dict[str, Any]]
    started: str = field(default_factory=lambda: timestamp())
    rows: list[Row] = field(default_factory=list)

    def out_of_bounds(self) -> int:
        """Halves of rows that held wrong values."""
        return sum(bool(half.wrong) for row in self.rows for half in (row.out_of_place, row.in_place))

    def average_bus_gbs(self) -> float:
        halves = [half for row in self.rows for half in (row.out_of_place, row.in_place)]
        return sum(half.bus_gbs for half in halves) / len(halves) if halves else 0.0


def timestamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def quantile(values: list[float], percent: float) -> float:
    """The nearest rank: the least value that |percent| of all do not exceed. |values| must not be empty."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * round(percent * 10) / 1000) - 1)]


def number(value: float, width: int) -> str:
    """As many decimals as fit: two, one, none, then an exponent. |value| is not negative."""
    digits = len(str(int(value))) if value >= 1 else 0
    if digits < width - 2:
        return f"{value:{width}.2f}"
    if digits < width - 1:
        return f"{value:{width}.1f}"
    if digits < width + 1:
        return f"{value:{width}.0f}"
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


def header(loss_columns: bool, wire: bool = False) -> str:
    """Three lines over the table, without a newline at the end."""
    empty = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
    names = f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
    units = f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}"
    name = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
    unit = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
    titles = (LOSS_HEADER if loss_columns else ()) + (DENSE_HEADER if wire else ())
    more, more_units = ("".join(f"  {title[at]:>7}" for title in titles) for at in (0, 1))
    return "\n".join(
        (
            f"{empty}           out-of-place                       in-place          ",
            f"{names}{name}{name}{more or ' '}",
            f"{units}{unit}{unit}{more_units or ' '}",
        )
    )


def line(row: Row) -> str:
    """One row, without a newline. What is behind the two halves is of the in-place one: it is how trainers call."""
    text = f"{row.size:12d}  {row.count:12d}  {row.type:>8}  {row.redop:>6}  {-1:6d}"
    for half in (row.out_of_place, row.in_place):
        text += f"  {number(half.time_us, 7)}  {number(half.algorithm_gbs, 6)}  {number(half.bus_gbs, 6)}"
        text += f"  {_wrong(half):>6}"
    tail = row.in_place.tail
    if tail:
        text += f"  {number(tail.p50_us, 7)}  {number(tail.p99_us, 7)}  {tail.ratio:7.3f}  {tail.loss_percent:7.4f}"
    dense = row.in_place.dense
    if dense:
        text += f"  {number(dense.time_us, 7)}  {dense.time_ratio:7.3f}  {dense.bytes_ratio:7.3f}"
    return text


def _wrong(half: Half) -> str:
    if half.wrong is not None:
        return f"{half.wrong:g}"
    return "n/a" if half.checked else "N/A"


def footer(report: Report) -> str:
    bad = report.out_of_bounds()
    return "\n".join(
        (
            f"# {'Out of bounds values':<20} : {bad} {'FAILED' if bad else 'OK'}",
            f"# {'Avg bus bandwidth':<20} : {report.average_bus_gbs():g} ",
            "#",
            f"# Collective test concluded: {PROGRAM}",
        )
    )


def to_json(report: Report, arguments: list[str]) -> dict[str, Any]:
    """The report as nccl-tests writes it, with percentiles and `loss_percent` where tails were measured, and for each
    half the bytes that are missing and how many receipts, over all ranks, had each status.
    """
    bad = report.out_of_bounds()
    return {
        "version": JSON_VERSION,
        "start_time": report.started,
        "args": arguments,
        "config": {**report.config, "devices": report.ranks},
        "results": [_row_json(row) for row in report.rows],
        "out_of_bounds": {"count": bad, "okay": "false" if bad else "true"},
        "average_bus_bandwidth": {"bandwidth": report.average_bus_gbs(), "okay": "unchecked"},
        "errors": [],
        "end_time": timestamp(),
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "size": row.size,
        "count": row.count,
        "type": row.type,
        "redop": row.redop,
        "root": f"{-1:6d}",
        "out_of_place": _half_json(row.out_of_place),
        "in_place": _half_json(row.in_place),
        **_tail_json(row.in_place.tail),
        "actual_iterations": row.iterations,
        "experiment_name": PROGRAM,
    }


def _half_json(half: Half) -> dict[str, Any]:
    return {
        "time": half.time_us,
        "alg_bw": half.algorithm_gbs,
        "bus_bw": half.bus_gbs,
        "nwrong": None if half.wrong is None else float(half.wrong),
        **_tail_json(half.tail),
        **_told_json(half.told),
        **_dense_json(half.dense),
    }


def _tail_json(tail: Tail | None) -> dict[str, Any]:
    if tail is None:
        return {}
    return {
        "p50_us": tail.p50_us,
        "p90_us": tail.p90_us,
        "p99_us": tail.p99_us,
        "p99_9_us": tail.p99_9_us,
        "max_us": tail.max_us,
        "p99_over_p50": tail.ratio,
        "loss_percent": tail.loss_percent,
    }


def _dense_json(dense: Dense | None) -> dict[str, Any]:
    if dense is None:
        return {}
    return {"dense_time": dense.time_us, "time_to_dense": dense.time_ratio, "bytes_to_dense": dense.bytes_ratio}


def _told_json(told: Told | None) -> dict[str, Any]:
    if told is None:
        return {}
    return {
        "bytes_expected": told.expected_bytes,
        "bytes_missing": told.missing_bytes,
        "statuses": told.statuses,
    }
