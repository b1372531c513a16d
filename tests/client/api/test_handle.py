# SPDX-License-Identifier: Apache-2.0
"""Handles of ops under way."""

import time

import numpy as np
import pytest

import ultima
from tests.client.conftest import Pair


def test_handle__not_done_until_the_other_comes(pair: Pair) -> None:
    _, left, right = pair
    mine = np.ones(4)
    handle = left.allreduce_async(mine, "sum", deadline=20)
    assert not handle.done()
    with pytest.raises(ultima.NotDone):
        handle.wait("1ms")
    for name in ("receipt", "result"):
        with pytest.raises(ultima.NotDone):
            getattr(handle, name)
    assert mine.tolist() == [1] * 4
    right.allreduce(np.ones(4), "sum")
    assert handle.wait().complete
    assert mine.tolist() == [2] * 4
    assert handle.done() and handle.result is mine and handle.receipt == handle.wait()
    assert repr(handle) == "<ultima.Handle op 0 done>"


def test_handle__done_brings_the_result(pair: Pair) -> None:
    """done() is enough: whoever polls need not wait."""
    _, left, right = pair
    mine = np.ones(4)
    handle = left.allreduce_async(mine, "sum")
    right.allreduce(np.ones(4), "sum")
    limit = time.monotonic() + 10
    while not handle.done() and time.monotonic() < limit:
        time.sleep(0.001)
    assert mine.tolist() == [2] * 4


def test_handle__in_any_order(pair: Pair) -> None:
    _, left, right = pair
    data = [np.full(10, float(number)) for number in range(20)]
    handles = [left.allreduce_async(each, "sum") for each in data]
    for number in range(20):
        right.allreduce(np.full(10, float(number)), "sum")
    for number in (19, 0, 7, *range(20)):
        assert handles[number].wait().op_seq == number
        assert data[number].tolist() == [2.0 * number] * 10


def test_handle__context_manager_waits(pair: Pair) -> None:
    _, left, right = pair
    mine, theirs = np.ones(4), np.ones(4)
    with left.allreduce_async(mine, "sum"), right.allreduce_async(theirs, "sum") as handle:
        assert handle.op_seq == 0
    assert mine.tolist() == theirs.tolist() == [2] * 4


def test_handle__failure_again_and_again(pair: Pair) -> None:
    daemon, left, _ = pair
    handle = left.allreduce_async(np.ones(4))
    daemon.kill()
    for _ in range(3):
        with pytest.raises(ultima.DaemonLost):
            handle.wait()
    assert handle.done()
    with pytest.raises(ultima.DaemonLost):
        _ = handle.result


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "later"])
def test_handle__wrong_timeout(pair: Pair, timeout: object) -> None:
    handle = pair[1].allreduce_async(np.ones(4))
    with pytest.raises(ultima.InvalidArgument, match="timeout"):
        handle.wait(timeout)  # type: ignore[arg-type]
