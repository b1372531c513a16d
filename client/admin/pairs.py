# SPDX-License-Identifier: Apache-2.0
"""Times all-reduce between every two hosts of a cluster: `ultima perf` with two ranks, pair after pair.

One pair at a time, so that none shares its link or the switch with another. The hosts are reached as an operator would
reach them, by ssh or within an allocation of Slurm; nothing is installed there but Ultima, and no file is left behind.
"""

from __future__ import annotations

import itertools
import json
import shlex
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ultima.admin.paths import Path, path_of
from ultima.base.errors import UltimaError

PORT_FIRST, PORTS = 20_000, 8_000  # for names of jobs: each pair's is another
SAID_MAX = 200


@dataclass(frozen=True, slots=True)
class Pair:
    """What came of one pair. Times in us, of the slower rank."""

    a: str
    b: str
    p50_us: float = 0.0
    p99_us: float = 0.0
    loss: float = 0.0
    """Share of the bytes that were missing at the end of ops."""
    bus_gbs: float = 0.0
    error: str = ""
    """Why there are no figures."""
    path: Path = field(default_factory=Path)
    """What the way between the two is like."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is run on every pair."""

    via: Sequence[str]
    """The command that runs a shell's line on a host: its words, with "{host}" for the host, before the line itself."""
    size: str
    iterations: int
    seconds: float
    ultima: str = "ultima"
    """The command there."""
    rate: float | None = None
    """Bytes a second of the links, if somebody has said it."""


SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "{host}")
SLURM = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist={host}", "sh", "-c")


def line_of(ask: Ask, a: str, b: str, rank: int, port: int) -> str:
    """What the shell of one of the two hosts is told. It prints objects of JSON and nothing else: what its daemon has
    counted before the ops, the report on rank 0, what was counted after them, and on rank 0 how far `b` is. Only the
    ops decide how it ends."""
    variables = {
        "RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": a,
        "MASTER_PORT": port,
    }
    said = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items())
    perf = f"{said} {ask.ultima} perf -b {shlex.quote(ask.size)} -n {ask.iterations} --loss-columns"
    counted = f"{ask.ultima} status --json 2>/dev/null"
    if rank:
        return f"{counted}; {perf} >/dev/null; s=$?; {counted}; exit $s"
    ops = f'd=$(mktemp -d) && {perf} -J "$d/report" >/dev/null && cat "$d/report"; s=$?; rm -rf "$d"'
    return f"{counted}; {ops}; {counted}; {ask.ultima} ping {shlex.quote(b)} --json 2>/dev/null; exit $s"


def all_pairs(hosts: Sequence[str], ask: Ask, tell: Callable[[Pair], None] = lambda pair: None) -> list[Pair]:
    """Every pair in order; `tell` hears of each when it is done."""
    found = []
    for number, (a, b) in enumerate(itertools.combinations(hosts, 2)):
        found.append(one_pair(a, b, ask, PORT_FIRST + number % PORTS))
        tell(found[-1])
    return found


def one_pair(a: str, b: str, ask: Ask, port: int) -> Pair:
    """Runs both ranks to their end."""
    runs = []
    try:
        for rank, host in enumerate((a, b)):
            command = [word.replace("{host}", host) for word in ask.via] + [line_of(ask, a, b, rank, port)]
            runs.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
        told = [run.communicate(timeout=ask.seconds) for run in runs]
    except subprocess.TimeoutExpired:
        return Pair(a, b, error=f"no end within {ask.seconds:.0f} s")
    except OSError as error:
        raise UltimaError(f"{ask.via[0]}: {error.strerror}") from None
    finally:
        for run in runs:
            if run.poll() is None:
                run.kill()
                run.wait()
    for host, run, (_, said) in zip((a, b), runs, told, strict=True):
        if run.returncode:
            lines = said.decode(errors="replace").strip().splitlines()
            why = lines[-1][:SAID_MAX] if lines else f"status {run.returncode}"
            return Pair(a, b, error=f"{host}: {why}")
    objects = [told_by(printed) for printed, _ in told]
    try:
        report = next(each for each in objects[0] if "results" in each)
        return replace(read(a, b, report), path=path_of((a, b), objects, ask.rate))
    except (ValueError, KeyError, IndexError, TypeError, StopIteration):
        return Pair(a, b, error=f"{a}: printed no report; does an older version run there?")


def told_by(printed: bytes) -> list[dict[str, Any]]:
    """The objects of JSON that a host printed, one after the other, as far as they are any."""
    text, at, found = printed.decode(errors="replace"), 0, []
    while (at := text.find("{", at)) >= 0:
        try:
            one, at = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            break
        found.append(one)
    return found


def read(a: str, b: str, report: dict[str, Any]) -> Pair:
    """The figures in what perf wrote, of the in-place half: it is how trainers call."""
    half = report["results"][0]["in_place"]
    loss = float(half["loss_percent"]) / 100
    return Pair(a, b, float(half["p50_us"]), float(half["p99_us"]), loss, float(half["bus_bw"]))


def worst(pairs: Sequence[Pair]) -> tuple[Pair, float] | None:
    """The pair that took longest, and how many times the median of the other pairs that is; one without figures, and
    infinity, goes before any. None if there are no pairs."""
    broken = next((pair for pair in pairs if pair.error), None)
    if broken is not None or not pairs:
        return (broken, float("inf")) if broken is not None else None
    slowest = max(pairs, key=lambda pair: pair.p50_us)
    others = [pair.p50_us for pair in pairs if pair is not slowest]
    return slowest, slowest.p50_us / statistics.median(others) if others else 1.0


def stands_out(pair: Pair, others: Sequence[Pair], slow: float) -> bool:
    """Whether a pair failed, or is slower than `others` by more than they differ among themselves and over time: its
    median is `slow` times the median of theirs, and above what a hundredth of the ops of each of them took."""
    known = [other for other in others if not other.error]
    if pair.error or not known:
        return bool(pair.error)
    usual = statistics.median(other.p50_us for other in known)
    return pair.p50_us > slow * usual and pair.p50_us > max(other.p99_us for other in known)


def common_host(pairs: Sequence[Pair], slow: float) -> str:
    """The one host whose pairs all stand out from those of the others, if there is just one: then it is the host, or
    its link, and no path between two. Empty otherwise."""
    hosts = sorted({host for pair in pairs for host in (pair.a, pair.b)})
    found = []
    for host in hosts:
        own = [pair for pair in pairs if host in (pair.a, pair.b)]
        other = [pair for pair in pairs if pair not in own and not pair.error]
        if len(own) > 1 and other and all(stands_out(pair, other, slow) for pair in own):
            found.append(host)
    return found[0] if len(found) == 1 else ""
