# SPDX-License-Identifier: Apache-2.0
"""One rank of a contender, Gloo or Ultima, that measures all-reduce on request.

It joins its group as torchrun's variables say, prints "ready", and then answers each line of JSON on its input with one
on its output. All ranks are asked the same. An iteration starts behind a barrier and is timed on each rank until its
own result is there; whoever asked takes the slowest. The barrier is an all-reduce of one number that is not timed, and
carries whether somebody's time is up, so that all ranks stop after the same iteration.

A request: bytes, iterations, seconds (of all iterations together), apart_s (how long after the first rank the last one
calls; the others call in between, in turns), and for Ultima mode and deadline (seconds or null).
The answer: us (of each iteration). What is worked out of each op comes in a second answer, to the request "account",
for the CPU that it takes is the benchmark's own: wrong (elements of complete results that were looked at), and for
Ultima the receipts in short.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ultima.base.receipt import Receipt


class Contender(Protocol):
    """What is measured. `reduce` sums the first |count| elements of the bucket, which `fill` has set to one. `told`
    says what it returned in short, once all ops have been measured.
    """

    world: int

    def fill(self, count: int) -> None: ...
    def meet(self, stop: bool) -> bool: ...
    def reduce(self, count: int, request: dict[str, Any]) -> Any: ...
    def told(self, receipt: Any) -> dict[str, Any] | None: ...
    def wrong(self, count: int, stride: int) -> int: ...
    def close(self) -> None: ...


class Gloo:
    def __init__(self, bytes_max: int) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self._dist = dist
        self.world = dist.get_world_size()
        self._bucket = torch.ones(bytes_max // 4)
        self._token = torch.zeros(1, dtype=torch.int32)

    def fill(self, count: int) -> None:
        self._bucket[:count].fill_(1.0)

    def meet(self, stop: bool) -> bool:
        self._token[0] = int(stop)
        self._dist.all_reduce(self._token)
        return bool(self._token[0])

    def reduce(self, count: int, request: dict[str, Any]) -> None:
        self._dist.all_reduce(self._bucket[:count])

    def told(self, receipt: None) -> None:
        return None

    def wrong(self, count: int, stride: int) -> int:
        return int((self._bucket[:count:stride] != self.world).sum())

    def close(self) -> None:
        self._dist.destroy_process_group()


STEPS = {"int16": 2.0**-14, "int8": 2.0**-6, "int4": 2.0**-2}
"""By form the most that an element may be off, of the largest beside it."""


class Ultima:
    """|wire|: the form in which elements travel, one of STEPS; None: as they are."""

    def __init__(self, bytes_max: int, wire: str | None = None) -> None:
        import ultima

        self._wire = wire
        self._job = ultima.connect(arena=bytes_max + (1 << 20), bucket_bytes_max=bytes_max)
        self.world = self._job.world_size
        self._bucket = self._job.empty(bytes_max // 4, "float32")
        self._bucket[:] = 1.0
        self._token = self._job.empty(1, "int32")

    def fill(self, count: int) -> None:
        self._bucket[:count] = 1.0

    def meet(self, stop: bool) -> bool:
        self._token[0] = int(stop)
        # Of a whole number, which has no unit, each call would warn.
        self._job.allreduce(self._token, "sum", mode="reliable", deadline=600.0)
        return bool(self._token[0])

    def reduce(self, count: int, request: dict[str, Any]) -> Receipt:
        bucket = self._bucket[:count]
        how = {"mode": request["mode"], "deadline": request["deadline"], "wire": self._wire}
        return self._job.allreduce(bucket, "sum", **how)

    def told(self, receipt: Receipt) -> dict[str, Any]:
        short = receipt.as_dict()
        # Which peers it waited for tells the schedule that was really in force.
        short["heard"] = [sum(1 for peer in receipt.peers if peer.expected_bytes[stage]) for stage in (0, 1)]
        del short["peers"]
        return short

    def wrong(self, count: int, stride: int) -> int:
        if self._wire is None:
            return int((self._bucket[:count:stride] != self.world).sum())
        off = abs(self._bucket[:count:stride] - self.world)
        return int((off > self.world * STEPS[self._wire]).sum())

    def close(self) -> None:
        self._job.close()


class Coded(Ultima):
    """A coded job beside the ordinary one, which is for the barriers: all ranks give to every step, none is late."""

    def __init__(self, bytes_max: int, stragglers: int) -> None:
        import ultima
        from ultima.coded import Plan

        super().__init__(bytes_max)
        plan = Plan(self.world, stragglers)
        self._beside = self._job.beside(
            "coded", ultima.Options(**plan.options()), arena_bytes=8 * bytes_max, bucket_bytes=bytes_max
        )
        self._coded = self._beside.coded(plan)
        self._bucket = self._beside.empty(bytes_max // 4, "float32")
        self._bucket[:] = 1.0
        self._groups = self.world // (stragglers + 1)
        self._step = 0

    def reduce(self, count: int, request: dict[str, Any]) -> Receipt:
        receipt = self._coded.reduce(self._bucket[:count], self._step, deadline=request["deadline"])
        self._step += 1
        return receipt

    def told(self, receipt: Receipt) -> dict[str, Any]:
        short = receipt.as_dict()
        del short["peers"]
        return short

    def wrong(self, count: int, stride: int) -> int:
        return int((self._bucket[:count:stride] != self._groups).sum())

    def close(self) -> None:
        self._beside.close()
        super().close()


@dataclass
class Measured:
    """Of each op: microseconds, what it returned, and wrong elements of those that were looked at."""

    us: list[float] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)

    def account(self, contender: Contender) -> dict[str, Any]:
        """The second answer; see the head of this file."""
        receipts = [contender.told(returned) for returned in self.returned]
        complete = [receipt is None or receipt["status"] == "COMPLETE" for receipt in receipts]
        wrong = sum(wrong for wrong, counts in zip(self.wrong, complete, strict=True) if counts)
        return {"wrong": wrong, "receipts": [receipt for receipt in receipts if receipt is not None]}


def measure(contender: Contender, request: dict[str, Any]) -> Measured:
    """Does what one request asks for; see the head of this file."""
    count = request["bytes"] // 4
    found = Measured()
    end = time.monotonic() + request["seconds"]
    step_s = request.get("apart_s", 0.0) / max(1, contender.world - 1)
    while len(found.us) < request["iterations"]:
        contender.fill(count)
        if contender.meet(bool(found.us) and time.monotonic() > end):
            break
        if step_s:
            time.sleep((int(os.environ["RANK"]) + len(found.us)) % contender.world * step_s)
        start = time.perf_counter_ns()
        returned = contender.reduce(count, request)
        found.us.append((time.perf_counter_ns() - start) / 1e3)
        found.returned.append(returned)
        # All elements of the first op; of the others some, for looking costs as much as a small op.
        found.wrong.append(contender.wrong(count, 1 if len(found.us) == 1 else 997))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of a contender of the benchmark.")
    parser.add_argument("contender", choices=("gloo", "ultima"))
    parser.add_argument("--bytes-max", type=int, required=True)
    parser.add_argument("--stragglers", type=int, default=0, help="of a coded job; 0 for ordinary allreduces")
    parser.add_argument("--wire", choices=STEPS, help="the form of Ultima's elements under way")
    options = parser.parse_args()
    # What the libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contender: Contender
    if options.stragglers:
        contender = Coded(options.bytes_max, options.stragglers)
    elif options.contender == "gloo":
        contender = Gloo(options.bytes_max)
    else:
        contender = Ultima(options.bytes_max, options.wire)
    print("ready", file=answers, flush=True)
    found = Measured()
    for line in sys.stdin:
        request = json.loads(line)
        if "account" in request:
            answer = found.account(contender)
        else:
            found = measure(contender, request)
            answer = {"us": found.us}
        print(json.dumps(answer), file=answers, flush=True)
    contender.close()


if __name__ == "__main__":
    main()
