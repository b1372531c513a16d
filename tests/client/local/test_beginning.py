# SPDX-License-Identifier: Apache-2.0
"""The first copy of the outer model, and the deadline that follows from how long it took."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.client.api.slots import at_once
from ultima import Job
from ultima.local import beginning
from ultima.local.settings import deadline_of
from ultima.testing import FakeDaemon


@pytest.mark.parametrize("size", [1, 100, 1050])
def test_adopt_first__in_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(beginning, "_PIECE", 100)
    thetas = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(3)]
    first = thetas[0].copy()
    with ExitStack() as stack:
        daemon = stack.enter_context(FakeDaemon(3))
        jobs = [stack.enter_context(daemon.connect(rank, arena="1M")) for rank in range(3)]
        copies = [
            lambda job=job, theta=theta: beginning.adopt_first(job, theta)
            for job, theta in zip(jobs, thetas, strict=True)
        ]
        took = at_once(*copies)
        ops = at_once(*[lambda job=job: job.allreduce(np.ones(1, np.float32)) for job in jobs])
    assert all(seconds > 0 for seconds in took)
    assert all((theta == first).all() for theta in thetas)
    assert {receipt.op_seq for receipt in ops} == {-(-size // 100)}, "a piece is an op"


def test_deadline__is_what_is_said_or_follows_from_the_copy() -> None:
    told, silent = (
        cast(Job, SimpleNamespace(_connection=SimpleNamespace(settings=SimpleNamespace(adaptive=each))))
        for each in (False, True)
    )
    assert deadline_of(silent, "2s", 1000.0) == "2s"
    assert deadline_of(silent, None, 7.5) is None, "the job's, which is 30 s"
    assert deadline_of(silent, None, 25.0) == 100.0
    assert deadline_of(told, None, 25.0) is None, "the one that the job was told"
