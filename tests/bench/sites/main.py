# SPDX-License-Identifier: Apache-2.0
"""Training between sites: DiLoCo on Ultima beside plain DDP and torchft's DiLoCo over Gloo, on a long path.

    python -m tests.bench.sites.main [--only time|share|bytes] [--seeds 2]

Four sites in a lab of namespaces (root), 50 ms there and back, 50 Mbit/s, no loss and 1 %.

    time     LeNet-5 on the demo's images, 4 x 32 a step, AdamW 2e-3, rounds each 20 steps: the time until the accuracy
             at which plain DDP ends after `--steps`. DDP is measured for a while, and its steps are counted by that.
    share    a model of 25 MB whose steps sleep for as long as its wire takes: how much of the time is computed
    bytes    rounds of 100 MB in int8 beside float32

torchft is measured where `make torchft` has put it. Only one contender is at work at a time, in turn. The exit status
is 1 if something failed, whatever the verdicts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.gang import Gang, GangError
from tests.bench.sites.rank import TORCHFT
from tests.bench.tta.curves import time_to
from tests.lab.cluster import Cluster
from tests.lab.distance import Far
from tests.lab.lab import Lab, unavailable

SITES, TRIP_MS, RATE_MBIT, LOSSES = 4, 50.0, 50.0, (0.0, 1.0)
RANK = Path(__file__).with_name("rank.py")
EVERY, BATCH, IMAGES, RATE = 20, 32, 2000, 2e-3
STEPS, LONGER = 400, 4  # of DDP, and how many times as many DiLoCo may take
SAMPLE_S, PATIENCE_S = 40.0, 600.0
PORT = 29700
MODEL_BYTES, LARGE_BYTES = 25_000_000, 100_000_000
OVERHEAD = 1.05  # what a round takes beyond its bytes


@dataclass(frozen=True)
class Contender:
    """What trains, and the gang that it is of."""

    name: str
    how: str
    gang: str
    wire: str = "float32"


PLAIN = tuple(Contender(f"DDP over {name}", "ddp", gang) for name, gang in
              (("Gloo, cubic", "gloo cubic"), ("Gloo, bbr", "gloo bbr"), ("Ultima", "ultima")))  # fmt: skip
THEIRS = tuple(Contender(f"torchft's DiLoCo over Gloo, {name}", "torchft", f"gloo {name}") for name in ("cubic", "bbr"))
OWN = tuple(Contender(f"DiLoCo on Ultima, {wire}", "diloco", "ultima", wire) for wire in ("float32", "int8"))


@dataclass
class Found:
    """What a contender came to in a network, of all seeds. Seconds until the target; infinity if it was not reached."""

    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)


class Bench:
    """A lab, its daemons, and a gang for each word."""

    def __init__(self, lab: Lab, cluster: Cluster) -> None:
        self._lab, self._cluster = lab, cluster
        self._gangs: dict[str, Gang] = {}
        self._port = PORT

    def ask(self, gang: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Of each site its answer. Raises GangError."""
        if gang not in self._gangs:
            self._gangs[gang] = Gang(self._lab, gang, [str(RANK)], self._cluster)
        kind, _, congestion = gang.partition(" ")
        if kind == "gloo":
            self._lab.set_congestion(congestion)
        self._port += 1
        addresses = [host.address for host in self._lab.hosts]
        try:
            return self._gangs[gang].ask({**request, "port": self._port, "addresses": addresses}, PATIENCE_S)
        except GangError:
            self._gangs.pop(gang).stop()
            raise

    def weather(self, loss_pct: float) -> None:
        self._lab.distance.set(Far(TRIP_MS, loss_pct, RATE_MBIT, TRIP_MS))

    def stop(self) -> None:
        for gang in self._gangs.values():
            gang.stop()


def wire_s(nbytes: float) -> float:
    """How long a link has to carry what a site sends in a round."""
    return 2 * (SITES - 1) / SITES * nbytes * 8 / (RATE_MBIT * 1e6)


def study_time(bench: Bench, seeds: int, steps: int) -> Iterator[str]:
    """Lines of what was found."""
    base = {"batch": BATCH, "every": EVERY, "rate": RATE, "images": IMAGES, "wire": "float32", "target": math.inf}
    found: dict[tuple[str, float], Found] = {}
    contenders = (*PLAIN, *(THEIRS if TORCHFT.exists() else ()), *OWN)
    targets: dict[int, float] = {}
    bench.weather(0.0)
    for seed in range(1, seeds + 1):
        answers = bench.ask("ultima", {**base, "how": "ddp", "seed": seed, "steps": steps, "seconds": PATIENCE_S})
        targets[seed] = statistics.fmean(point[2] for point in answers[0]["points"][-3:])
    yield f"plain DDP after {steps} steps: " + " / ".join(f"{100 * each:.1f} %" for each in targets.values())
    for loss, seed in ((loss, seed) for loss in LOSSES for seed in targets):
        bench.weather(loss)
        for each in contenders:
            which = found.setdefault((each.name, loss), Found())
            request = {**base, "how": each.how, "wire": each.wire, "seed": seed}
            if each.how == "ddp":
                answer = bench.ask(each.gang, {**request, "steps": steps, "seconds": SAMPLE_S})[0]
                which.seconds.append(answer["seconds"] / answer["steps"] * steps)
                which.steps.append(steps)
                continue
            request |= {"target": targets[seed], "steps": LONGER * steps, "seconds": PATIENCE_S / 2}
            answers = bench.ask(each.gang, request)
            which.seconds.append(time_to(answers[0]["points"], targets[seed]))
            which.steps.append(answers[0]["steps"])
            which.rounds += [max(times) for times in zip(*(each["rounds"] for each in answers), strict=True)]
            print(f"  {each.name}, {loss:g} %, seed {seed}: {which.seconds[-1]:.1f} s, {which.steps[-1]} steps",
                  file=sys.stderr, flush=True)  # fmt: skip
    for loss in LOSSES:
        bbr = found.get((THEIRS[1].name, loss))
        for each in contenders:
            which = found[each.name, loss]
            text = f"{loss:g} % | {each.name} | {statistics.fmean(which.seconds):.1f} s | {which.steps}"
            if which.rounds:
                ordered = sorted(which.rounds)
                text += (
                    f" | {EVERY} steps {statistics.median(ordered):.2f} s, p90 {ordered[len(ordered) * 9 // 10]:.2f} s"
                )
                text += f" [{len(ordered)}]"
            if each in OWN and bbr is not None:
                cubic = found[THEIRS[0].name, loss]
                ratios = [statistics.fmean(which.seconds) / statistics.fmean(its.seconds) for its in (cubic, bbr)]
                text += f" | {ratios[0]:.2f} and {ratios[1]:.2f} of torchft's"
            yield text


def study_share(bench: Bench, rounds: int) -> Iterator[str]:
    for loss in LOSSES:
        bench.weather(loss)
        for wire, fragments in (("float32", 1), ("float32", 4), ("int8", 1), ("int8", 4)):
            took = OVERHEAD * wire_s(MODEL_BYTES * (1 if wire == "float32" else 0.253))
            request = {"how": "rounds", "size": MODEL_BYTES // 4, "rounds": rounds * fragments, "wire": wire,
                       "every": EVERY, "delay": EVERY // fragments, "fragments": fragments}  # fmt: skip
            answers = bench.ask("ultima", {**request, "step_s": took / EVERY})
            computed = [100 * answer["computed"] for answer in answers]
            waited, spent = (
                statistics.fmean(100 * answer[key] / answer["elapsed_s"] for answer in answers)
                for key in ("waited_s", "spent_s")
            )
            ops = [each for answer in answers for each in answer["rounds"]]
            yield (
                f"{loss:g} %, {wire}, {fragments} fragments, {took:.1f} s of steps to {EVERY}: computed "
                f"{statistics.fmean(computed):.1f} % of the time, {min(computed):.1f} % at least; waited {waited:.1f} "
                f"%, made and took rounds {spent:.1f} %; a fragment's op "
                f"{statistics.median(ops):.2f} s, at most {max(ops):.2f} s [{len(ops)}]"
            )


def study_bytes(bench: Bench, rounds: int) -> Iterator[str]:
    for loss in LOSSES:
        bench.weather(loss)
        took = {}
        for wire in ("float32", "int8"):
            request = {"how": "rounds", "size": LARGE_BYTES // 4, "rounds": rounds, "wire": wire, "every": 1,
                       "delay": 0, "fragments": 1, "step_s": 0.0}  # fmt: skip
            answers = bench.ask("ultima", request)
            took[wire] = statistics.median(each for answer in answers for each in answer["rounds"])
        yield (
            f"{loss:g} %: a round of 100 MB takes {took['int8']:.2f} s in int8, {took['float32']:.2f} s in float32: "
            f"{took['int8'] / took['float32']:.3f}; the wire of float32 takes {wire_s(LARGE_BYTES):.1f} s"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("time", "share", "bytes"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS, help="of plain DDP")
    parser.add_argument("--rounds", type=int, default=10, help="of share; a third of them of bytes")
    said = parser.parse_args(arguments)
    if why := unavailable():
        print(f"sites: {why}", file=sys.stderr)
        return 1
    if not TORCHFT.exists():
        print("torchft is not measured: `make torchft` fetches it", file=sys.stderr)
    began = time.monotonic()
    far = Far(TRIP_MS, 0.0, RATE_MBIT, TRIP_MS)
    with Lab(SITES, RATE_MBIT, unit="packet", far=far) as lab, Cluster(lab, anew=True) as cluster:
        bench = Bench(lab, cluster)
        studies = {
            "time": lambda: study_time(bench, said.seeds, said.steps),
            "share": lambda: study_share(bench, said.rounds),
            "bytes": lambda: study_bytes(bench, max(2, said.rounds // 3)),
        }
        failed = 0
        for name in [said.only] if said.only else studies:
            try:
                for line in studies[name]():
                    print(line, flush=True)
            except GangError as error:
                failed = 1
                print(f"sites: {name}: {error}", file=sys.stderr, flush=True)
        bench.stop()
    print(f"{time.monotonic() - began:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
