# SPDX-License-Identifier: Apache-2.0
"""Measures all-reduce on one rank of `ultima perf`, in step with the others.

Two clocks. Without `--loss-columns` it is nccl-tests': so many ops back to back, divided by their number, averaged
over the ranks. With it each op stands alone: the ranks meet at a barrier, each takes its time until its own result is
there, and the time of the op is that of the slowest. What the ranks have to tell one another they tell after the last
op, so nothing but the barrier lies between two ops; the barrier is a reliable all-reduce of one element and is not
timed.

With `--wire` each op is preceded by a dense one of the same values, so both meet the same network: the ratio of their
times, and of the bytes that they sent, is a figure of one run.

Arrays lie in the arena: no copy is in the figures.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ultima import Job, Receipt, Status
from ultima.base.words import RELIABLE_ONLY
from ultima.cli.perf_table import Dense, Half, Row, Tail, Told, quantile
from ultima.cli.perf_values import TYPES, Array, contribution, expected, slack, wrong

SCRATCH_BYTES_MIN = 4096
STATUSES = (Status.COMPLETE, Status.PARTIAL, Status.INSUFFICIENT)


@dataclass(frozen=True)
class Plan:
    """How to measure every size."""

    iterations: int
    warmup: int
    checks: int
    mode: str
    deadline: str | None
    loss_columns: bool
    agree: bool = False
    wire: str | None = None
    answer: str | None = None
    feedback: bool = False


class Account:
    """Sums over receipts; they add up over ranks as well. Nothing of a receipt is kept: a run may have millions."""

    def __init__(self) -> None:
        self.expected_bytes = 0
        self.missing_bytes = 0
        self.sent_bytes = 0
        self.statuses = dict.fromkeys(STATUSES, 0)

    def add(self, receipt: Receipt) -> None:
        self.expected_bytes += receipt.bytes_expected
        self.missing_bytes += receipt.bytes_missing
        self.sent_bytes += receipt.wire_sent
        self.statuses[receipt.status] += 1

    @property
    def incomplete_ops(self) -> int:
        return sum(self.statuses.values()) - self.statuses[Status.COMPLETE]

    def numbers(self) -> list[int]:
        """All of it in a row, to be added up over the ranks."""
        return [self.expected_bytes, self.missing_bytes, self.sent_bytes, *self.statuses.values()]

    @classmethod
    def of(cls, numbers: list[int]) -> Account:
        """The other way round."""
        made = cls()
        made.expected_bytes, made.missing_bytes, made.sent_bytes = numbers[:3]
        made.statuses = dict(zip(STATUSES, numbers[3:], strict=True))
        return made


def scratch_bytes(plan: Plan) -> int:
    """Memory for what the ranks tell one another: a float64 per iteration at most."""
    return max(SCRATCH_BYTES_MIN, 8 * plan.iterations)


class Bench:
    """One rank's arrays, and the job that they are reduced in. |bytes_max| is the largest size to come."""

    def __init__(self, job: Job, plan: Plan, bytes_max: int) -> None:
        self._job = job
        self._plan = plan
        self._send, self._receive = (_words(job, bytes_max) for _ in range(2))
        self._scratch = _words(job, scratch_bytes(plan))
        self._token = job.empty(1, "int32")
        self._residual = _words(job, bytes_max).view(np.float32) if plan.feedback else None

    def row(self, count: int, type_name: str, op: str) -> Row:
        """Measures one size, out of place and in place."""
        size = count * TYPES[type_name][1]
        halves = [self._half(count, size, type_name, op, in_place) for in_place in (False, True)]
        return Row(size, count, type_name, op, self._plan.iterations, *halves)

    def _half(self, count: int, size: int, type_name: str, op: str, in_place: bool) -> Half:
        kind = TYPES[type_name][2]
        source = self._send.view(np.uint8)[:size].view(kind)
        target = source if in_place else self._receive.view(np.uint8)[:size].view(kind)
        given = contribution(self._job.rank, self._job.world_size, count, type_name, op)
        source[:] = given
        self._forget()
        for _ in range(self._plan.warmup):
            self._reduce(source, target, type_name, op)
        account, beside = Account(), Account()
        tail = None
        if self._plan.loss_columns:
            dense_us, slowest_us = self._alone(source, target, given, type_name, op, account, beside)
            time_us = float(np.mean(slowest_us))
        else:
            dense_us, time_us = self._back_to_back(source, target, given, type_name, op, account, beside)
        total = self._sum_up(account, 0)[0]
        dense = self._beside(dense_us, time_us, total, beside) if self._plan.wire else None
        if self._plan.loss_columns:
            loss = 100 * total.missing_bytes / total.expected_bytes if total.expected_bytes else 0.0
            p50, p90, p99, p99_9 = (quantile(slowest_us, percent) for percent in (50, 90, 99, 99.9))
            tail = Tail(p50, p99, loss, p90, p99_9, max(slowest_us))
        found = self._check(source, target, count, type_name, op) if self._plan.checks else None
        world = self._job.world_size
        gbs = size / time_us * 1e-3 if time_us else 0.0
        told = Told(total.expected_bytes, total.missing_bytes, {str(s): n for s, n in total.statuses.items()})
        return Half(time_us, gbs, gbs * 2 * (world - 1) / world, found, bool(self._plan.checks), tail, told, dense)

    def _back_to_back(
        self, source: Array, target: Array, given: Array, type_name: str, op: str, account: Account, beside: Account
    ) -> tuple[float, float]:
        """Microseconds of one op of many in a row, averaged over the ranks: of the dense ones (0 if there are none),
        and of those that the plan is of."""
        self._barrier()
        spent, dense = 0.0, 0.0
        for _ in range(self._plan.iterations):
            if self._plan.wire:
                if target is source:
                    source[:] = given  # both get the same values
                started = time.perf_counter()
                beside.add(self._reduce(source, target, type_name, op, wire=False))
                dense += time.perf_counter() - started
                if target is source:
                    source[:] = given
            started = time.perf_counter()
            account.add(self._reduce(source, target, type_name, op))
            spent += time.perf_counter() - started
        mine = [seconds / self._plan.iterations * 1e6 for seconds in (dense, spent)]
        told = self._agree(mine, "sum") / self._job.world_size
        return float(told[0]), float(told[1])

    def _alone(
        self, source: Array, target: Array, given: Array, type_name: str, op: str, account: Account, beside: Account
    ) -> tuple[float, list[float]]:
        """Microseconds from a barrier until the slowest rank has its result: of the dense ops on average (0 if there
        are none), and of every op that the plan is of."""
        kinds = ((False, beside), (True, account)) if self._plan.wire else ((True, account),)
        times_us: dict[bool, list[float]] = {wire: [] for wire, _ in kinds}
        for _ in range(self._plan.iterations):
            for wire, sums in kinds:
                if target is source:
                    source[:] = given  # a sum of sums would be infinite after a hundred ops, and cost more to count
                self._barrier()
                started = time.perf_counter()
                receipt = self._reduce(source, target, type_name, op, wire=wire)
                times_us[wire].append((time.perf_counter() - started) * 1e6)
                sums.add(receipt)
        slowest = {wire: [float(value) for value in self._agree(each, "max")] for wire, each in times_us.items()}
        return float(np.mean(slowest.get(False, [0.0]))), slowest[True]

    def _beside(self, dense_us: float, time_us: float, total: Account, beside: Account) -> Dense:
        """The dense ops against which those of the plan are held."""
        sent = self._sum_up(beside, 0)[0].sent_bytes
        return Dense(dense_us, time_us / dense_us if dense_us else 0.0, total.sent_bytes / sent if sent else 0.0)

    def _check(self, source: Array, target: Array, count: int, type_name: str, op: str) -> int | None:
        """Elements that came out wrong, over all ranks and checks; None when some were bound to, for bytes are
        missing.
        """
        world = self._job.world_size
        want = expected(world, count, type_name, op)
        account, found = Account(), 0
        given = contribution(self._job.rank, world, count, type_name, op)
        self._forget()  # sums of sums in place have left what is far too large
        for _ in range(self._plan.checks):
            source[:] = given
            if target is not source:
                target.view(np.uint8)[:] = 0xFF
            account.add(self._reduce(source, target, type_name, op))
            found += wrong(target, want, self._slack(op))
        total, found = self._sum_up(account, found)
        return None if total.incomplete_ops else found

    def _reduce(self, source: Array, target: Array, type_name: str, op: str, wire: bool = True) -> Receipt:
        """One op; of a plan with a form without `wire` a dense one."""
        plan = self._plan
        few = wire and plan.wire is not None
        words: dict[str, Any] = {"wire": plan.wire, "answer": plan.answer} if few else {}
        if few and self._residual is not None:
            words["feedback"] = self._residual[: source.size]
        return self._job.allreduce(
            source,
            op=op,
            out=None if target is source else target,
            dtype=TYPES[type_name][0],
            mode="reliable" if op in RELIABLE_ONLY else self._plan.mode,
            deadline=self._plan.deadline,
            agree=self._plan.agree,
            **words,
        )

    def _slack(self, op: str) -> float:
        """By how much a result may be off."""
        plan = self._plan
        return slack(self._job.world_size, op, plan.wire, plan.answer or plan.wire) if plan.wire else 0.0

    def _forget(self) -> None:
        """Nothing is left of what rounding took so far."""
        if self._residual is not None:
            self._residual[:] = 0

    def _barrier(self) -> None:
        self._token[0] = 1
        self._job.allreduce(self._token, op="sum", mode="reliable")

    def _agree(self, values: list[float], op: str) -> Array:
        """The values of all ranks, added up or the largest of each."""
        shared = self._scratch.view(np.float64)[: len(values)]
        shared[:] = values
        self._job.allreduce(shared, op=op, mode="reliable")
        return shared.copy()

    def _sum_up(self, account: Account, found: int) -> tuple[Account, int]:
        mine = [*account.numbers(), found]
        shared = self._scratch.view(np.int64)[: len(mine)]
        shared[:] = mine
        self._job.allreduce(shared, op="sum", mode="reliable")
        *numbers, total = (int(value) for value in shared)
        return Account.of(numbers), total


def _words(job: Job, nbytes: int) -> Array:
    """At least |nbytes| of the arena, in whole words of 8 bytes."""
    return job.empty(-(-nbytes // 8), "int64")
