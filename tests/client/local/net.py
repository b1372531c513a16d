# SPDX-License-Identifier: Apache-2.0
"""A job of ranks in one thread, for `Outer`: its ops sum what was given, less what a test has lost on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

import ultima
from ultima.base.receipt import Status
from ultima.base.sparse_form import rounded as narrow
from ultima.quant import Draws, rounded


@dataclass
class Net:
    """Op i of each rank meets op i of the others; its result is made when the first rank waits for it."""

    ranks: int
    lost: dict[int, list[tuple[int, slice]]] = field(default_factory=dict)
    """By op: of which rank which elements do not come."""
    deaf: dict[int, set[int]] = field(default_factory=dict)
    """By op: ranks that get no result, though the others do."""
    given: dict[int, dict[int, Any]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    wire: str = ""
    """A form of few bits in which vectors and results travel, by the daemon's own kernels."""
    payload: int = 1440
    narrow: set[tuple[int, int]] = field(default_factory=set)
    """By op and rank, contributions that were rounded with feedback when they were given."""
    rung: dict[int, Any] = field(default_factory=dict)
    """By rank, what it left with the bell."""

    def jobs(self) -> list[FakeJob]:
        return [FakeJob(self, rank) for rank in range(self.ranks)]

    def result(self, op: int) -> Any:
        if op not in self.results:
            total = np.zeros_like(next(iter(self.given[op].values())))
            for rank, vector in sorted(self.given[op].items()):
                came = vector.copy() if (op, rank) in self.narrow else self._arrives(op, rank, vector)
                for who, where in self.lost.get(op, ()):
                    if who == rank:
                        came[where] = 0
                total += came
            self.results[op] = self._arrives(op, None, total)
        return self.results[op]

    def fed(self, op: int, rank: int, vector: Any, feedback: Any) -> Any:
        """A contribution with what rounding took before, as it arrives; `feedback` then holds what rounding takes."""
        self.narrow.add((op, rank))
        return np.concatenate(
            [
                rounded(vector[low:high], self.wire, residual=feedback[low:high], payload=self.payload)
                for low, high in self._chunks(vector.size)
            ]
        )

    def _chunks(self, size: int) -> list[tuple[int, int]]:
        return list(pairwise(size * chunk // self.ranks for chunk in range(self.ranks + 1)))

    def _arrives(self, op: int, rank: int | None, vector: Any) -> Any:
        """What becomes of a contribution, or of the sum for None, on its way: each rank sums one chunk."""
        if not self.wire:
            return vector.copy()
        answer = rank is None
        wire = "int8" if answer and self.wire == "int4" else self.wire
        parts = [
            rounded(
                vector[low:high], wire, Draws(op, chunk if answer else rank or 0, chunk, answer), payload=self.payload
            )
            for chunk, (low, high) in enumerate(self._chunks(vector.size))
        ]
        return np.concatenate(parts)


@dataclass
class FakeHandle:
    job: FakeJob
    op: int
    array: Any

    @property
    def op_seq(self) -> int:
        return self.op

    def done(self) -> bool:
        return True

    def wait(self) -> Any:
        if self.job.rank in self.job.net.deaf.get(self.op, ()):
            raise ultima.DeadlineExceeded("this rank got no result", None)
        self.array[:] = self.job.net.result(self.op)
        return SimpleNamespace(status=Status.COMPLETE, op_seq=self.op, bytes_used=self.array.nbytes, wire_received=0)


@dataclass(eq=False)
class FakeJob:
    net: Net
    rank: int
    op: int = 0

    @property
    def world_size(self) -> int:
        return self.net.ranks

    bucket_bytes_max = 1 << 20

    def beside(self, *_: object, **__: object) -> FakeJob:
        return self

    def partial(self, **_: object) -> FakeBell:
        return FakeBell(self)

    def empty(self, count: int) -> Any:
        return np.empty(count, np.float32)

    def holds(self, address: int, nbytes: int) -> bool:
        return True

    def close(self) -> None: ...

    def broadcast_async(self, array: Any) -> SimpleNamespace:
        return SimpleNamespace(wait=lambda: None)

    def all_gather(self, array: Any, out: Any) -> None:
        out.reshape(self.net.ranks, -1)[:] = array

    def allreduce_sparse_async(self, indices: Any, values: Any, out: Any, **said: Any) -> FakeHandle:
        out[:] = 0
        out[indices] = narrow(values, said["form"])
        return self.allreduce_async(out)

    def allreduce_async(self, array: Any, *_: object, feedback: Any = None, **__: object) -> FakeHandle:
        op, self.op = self.op, self.op + 1
        given = array.copy() if feedback is None else self.net.fed(op, self.rank, array, feedback)
        if op not in self.net.results:  # else it is over: what comes now is late
            self.net.given.setdefault(op, {})[self.rank] = given
        return FakeHandle(self, op, array)


@dataclass
class FakeBell:
    job: FakeJob

    def give(self, array: Any, sticky: bool) -> None:
        assert sticky
        self.job.net.rung[self.job.rank] = array.copy()

    def wait(self, deadline: float, out: Any) -> object:
        if not self.job.net.rung:
            return None
        out[:] = sum(self.job.net.rung.values())
        return out


def outers(net: Net, size: int, **options: Any) -> tuple[list[Any], list[ultima.Outer]]:
    """The parameters of each rank, zeros at first, and its `Outer`."""
    models = [np.zeros(size, np.float32) for _ in range(net.ranks)]
    options = {"every": 2, "delay": 1, **options}
    made = [ultima.Outer(job, {"w": model}, **options) for job, model in zip(net.jobs(), models, strict=True)]
    return models, made


def run(
    models: Sequence[Any], made: Sequence[ultima.Outer], steps: int, train: Callable[[int, int, Any], None]
) -> None:
    """All ranks make their steps side by side; `train(rank, step, parameters)` changes the parameters."""
    for step in range(steps):
        for rank, (model, outer) in enumerate(zip(models, made, strict=True)):
            train(rank, step, model)
            outer.step()
