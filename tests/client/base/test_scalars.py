# SPDX-License-Identifier: Apache-2.0
"""Receipts as curves: what they add up to, and how each kind of tracker is called."""

import dataclasses
from typing import Any

import pytest

import ultima
from tests.client.base.test_receipt import COMPLETE, PARTIAL
from ultima.base.errors import InvalidArgument
from ultima.base.scalars import scalars

BOTH = {
    "ultima/ops": 2.0,
    "ultima/complete_share": 0.5,
    "ultima/missing_share": pytest.approx(1024 / 12288),
    "ultima/op_median_s": pytest.approx(1.0023450 / 2),
    "ultima/op_max_s": 1.0,
    "ultima/ranks_min": 2.0,
}
SLOW = dataclasses.replace(PARTIAL, elapsed_s=1.0)


class Board:
    """As TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int | None]] = []

    def add_scalar(self, tag: str, value: float, global_step: int | None = None) -> None:
        self.rows.append((tag, value, global_step))


class Run:
    """As a run of Weights & Biases."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, float], int | None]] = []

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        self.calls.append((data, step))


class Flow(Run):
    """As MLflow, which has a `log` of another kind too."""

    def log(self, data: Any, step: Any = None) -> None:
        raise AssertionError("not meant")

    def log_metrics(self, data: dict[str, Any], step: int | None = None) -> None:
        self.calls.append((data, step))


def test_scalars__of_some_ops_and_of_none() -> None:
    assert scalars([COMPLETE, SLOW]) == BOTH
    assert scalars([]) == {}


def test_log_receipts__to_each_kind_of_tracker() -> None:
    board, run, flow = Board(), Run(), Flow()
    for writer in (board, run, flow):
        assert ultima.log_receipts(writer, [COMPLETE, SLOW], 7) == BOTH
        assert ultima.log_receipts(writer, [], 8) == {}
    assert {tag: value for tag, value, _ in board.rows} == BOTH and {step for *_, step in board.rows} == {7}
    assert run.calls == flow.calls == [(BOTH, 7)], "a step without ops is no row"
    assert ultima.log_receipts(run, COMPLETE)["ultima/ops"] == 1
    with pytest.raises(InvalidArgument, match=r"writer is 'int'.*add_scalar"):
        ultima.log_receipts(3, [COMPLETE])
