# SPDX-License-Identifier: Apache-2.0
"""One rank of a real job with a policy, that does what it is asked to: a process of its own, started by trainers.py.

    python -m tests.reproduce.partial.trainer RANK WORLD SOCKET RENDEZVOUS

It says "ready", and then answers each line of JSON on its input with one on its output. All ranks get the same line.
They run on one machine and share its clock, so a request says when to start and nobody has to meet for it.

What computing takes is a sleep: eight ranks on a few cores must not slow each other down. The gradients are real.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ultima
from tests.reproduce.partial.workload import Values, one_slow

DEADLINE_S = 30.0


def sleep_until(moment: float) -> None:
    """A moment of time.monotonic, which all processes of a machine share."""
    time.sleep(max(0.0, moment - time.monotonic()))


class Plane:
    """A regression whose truth is known by a seed, to the harness, too; each rank draws data of its own."""

    def __init__(self, request: dict[str, Any], rank: int) -> None:
        rng = np.random.default_rng(request["seed"])
        self._truth = rng.standard_normal(request["size"])
        self._noise, self._batch = request["noise"], request["batch"]
        self._own = np.random.default_rng((request["seed"], rank))

    def gradient(self, flat: Values) -> Values:
        x = self._own.standard_normal((self._batch, len(flat)))
        off = x @ (flat - self._truth) - self._noise * self._own.standard_normal(self._batch)
        return np.asarray(2 * (off @ x) / self._batch)

    @staticmethod
    def excess(request: dict[str, Any], flat: Values) -> float:
        """Expected squared error of a model on data it has not seen: the variance of the noise, and what it is off."""
        truth = np.random.default_rng(request["seed"]).standard_normal(request["size"])
        return float(request["noise"] ** 2 + np.sum((flat - truth) ** 2))


class Rank:
    """This process's place, and the jobs that it has joined."""

    def __init__(self, rank: int, world: int, path: str, rendezvous: str) -> None:
        self.rank, self.world = rank, world
        self._where = path, rendezvous

    def join(self, name: str, **chosen: Any) -> ultima.Job:
        options = ultima.Options(**chosen) if chosen else None
        path, rendezvous = self._where
        return ultima.connect(name, self.rank, self.world, path, rendezvous, timeout=60, deadline=DEADLINE_S,
                              arena="8M", options=options)  # fmt: skip

    def skew(self, request: dict[str, Any]) -> dict[str, Any]:
        """eager-SGD's microbenchmark: rank p calls p steps late, in periods that leave time for the op."""
        latency, receipts, late = [], [], 0
        with self.join(request["job"], policy=request["policy"], policy_seed=request["policy_seed"]) as job:
            data = np.ones(request["elements"], dtype=np.float32)
            for at in range(request["iterations"]):
                moment = request["start"] + at * request["period_s"] + self.rank * request["step_s"]
                late += time.monotonic() > moment
                sleep_until(moment)
                data[:] = 1.0
                called = time.perf_counter()
                receipt = job.allreduce(data, "avg", step=at)
                latency.append(time.perf_counter() - called)
                receipts.append(short(receipt))
            # A job that loses a rank is another job: leave together.
            sleep_until(request["start"] + request["iterations"] * request["period_s"] + 0.5)
        return {"latency_s": latency, "receipts": receipts, "late": late}

    def train(self, request: dict[str, Any]) -> dict[str, Any]:
        """eager-SGD with a sleep for the time of computing, and |extra_s| more on one random rank a step."""
        steps = request["steps"]
        delays = one_slow(steps, self.world, request["base_s"], request["extra_s"], 1,
                          np.random.default_rng(request["seed"]))[:, self.rank]  # fmt: skip
        plane, flat, receipts, busy = Plane(request, self.rank), np.zeros(request["size"]), [], 0.0
        with (
            self.join(request["job"], policy=request["policy"]) as job,
            self.join(request["job"] + "-sync") as everyone,
        ):
            sleep_until(request["start"])
            for at in range(steps):
                begun = time.monotonic()
                gradient = plane.gradient(flat).astype(np.float32)
                busy += time.monotonic() - begun
                sleep_until(begun + delays[at])
                receipts.append(short(job.allreduce(gradient, "avg", step=at)))
                flat -= request["rate"] * gradient
                if (at + 1) % request["sync_every"] == 0:
                    everyone.sync_model([flat], deadline=60)
            took = time.monotonic() - request["start"]
            everyone.sync_model([flat], deadline=60)
        return {"seconds": took, "busy_s": busy, "model": flat.tolist(), "receipts": receipts}

    def rna(self, request: dict[str, Any]) -> dict[str, Any]:
        """RNA: gradients are given and results taken without waiting, until the time is up."""
        rng = np.random.default_rng((request["seed"], self.rank))
        computed = 0
        seen: list[dict[str, Any]] = []
        with self.join(request["job"], policy=request["policy"]) as job:
            slot = job.partial()
            gradient = np.ones(request["elements"], dtype=np.float32)
            sleep_until(request["start"])
            end = request["start"] + request["seconds"]
            while time.monotonic() < end:
                time.sleep(request["base_s"] + rng.uniform(0, request["extra_s"]))
                slot.give(gradient, computed)
                computed += 1
                result = slot.poll()
                if result is not None:
                    seen.append(short(result.receipt))
            took = time.monotonic() - request["start"]
            sleep_until(end + request["base_s"] + 2 * request["extra_s"] + 1.0)
        return {"computed": computed, "seconds": took, "receipts": seen}


def short(receipt: ultima.Receipt) -> dict[str, Any]:
    """What the studies look at."""
    return {
        "op_seq": receipt.op_seq, "status": receipt.status.name, "fresh": list(receipt.fresh),
        "stale": list(receipt.stale), "initiator": list(receipt.initiator), "included": receipt.included,
        "waited_s": receipt.waited_s, "kept": receipt.kept,
    }  # fmt: skip


def main(own: Rank, does: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Answers requests by what each of them is to |does|."""
    # What the libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(does[request["do"]](request)), file=answers, flush=True)


if __name__ == "__main__":
    here = Rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
    main(here, {"skew": here.skew, "train": here.train, "rna": here.rna})
