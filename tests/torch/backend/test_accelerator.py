# SPDX-License-Identifier: Apache-2.0
"""Collectives of tensors on an accelerator, with one that is none: a missing wait shows as an old value."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
from torch._C._distributed_c10d import AllreduceOptions  # noqa: E402

from tests.torch.fake_device import Rank, two_ranks  # noqa: E402
from tests.torch.fake_group import on_all  # noqa: E402

A_WHILE_S = 0.1
"""Time for a thread that forgets to wait to do harm."""


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    with two_ranks() as found:
        yield found


def options(op: Any = dist.ReduceOp.SUM, asynchronous: bool = True) -> AllreduceOptions:
    made = AllreduceOptions()
    made.reduceOp, made.asyncOp = op, asynchronous
    return made


def filled_late(here: Rank, tensor: Any) -> threading.Timer:
    """Has the current stream write the rank's number and one into |tensor|, but not soon."""
    go = here.cuda.kernel(lambda: tensor.as_subclass(torch.Tensor).fill_(here.rank + 1.0))
    timer = threading.Timer(A_WHILE_S, go.set)
    timer.start()
    return timer


WAYS = {
    "wait": lambda work: work.wait(),
    "wait when a thread has finished it": lambda work: (wait_for_end(work), work.wait()),
    "future": lambda work: work.get_future().wait(),
    "future of a callback": lambda work: work.get_future().then(lambda done: done.value()[0]).wait(),
}


def wait_for_end(work: Any) -> None:
    ended = threading.Event()
    work.get_future().add_done_callback(lambda _: ended.set())
    assert ended.wait(20)


@pytest.mark.parametrize("strided", [False, True], ids=["", "strided"])
@pytest.mark.parametrize("way", WAYS)
def test_gloo__on_a_stream_that_is_not_the_default_one(ranks: list[Rank], way: str, strided: bool) -> None:
    """Its kernels' values are sent, not what was there before them; and what the stream does then sees the result."""

    def act(rank: int, here: Rank) -> list[float]:
        whole = here.cuda.tensor(torch.zeros(3, 2))
        tensor = whole.detach()[:, 1] if strided else whole
        with here.cuda.stream(here.cuda.Stream()):
            filled_late(here, tensor)
            work = here.group.allreduce([tensor], options())
            WAYS[way](work)
            return tensor.clone().tolist()

    want = [3.0] * 3 if strided else [[3.0, 3.0]] * 3
    assert on_all(ranks, act) == [want] * 2


def test_gloo__gets_one_from_whoever_waits_for_a_later_one(ranks: list[Rank]) -> None:
    """Which was called on another stream."""

    def act(rank: int, here: Rank) -> list[float]:
        first, second = here.tensor(0.0), here.tensor(5.0)
        with here.cuda.stream(here.cuda.Stream()):
            filled_late(here, first)
            work = here.group.allreduce([first], options(asynchronous=False))
        here.group.allreduce([second], options(asynchronous=False)).wait()
        work.wait()
        return [*first.tolist(), *second.tolist()]

    assert on_all(ranks, act) == [[3.0, 10.0]] * 2


def test_several__in_one_work(ranks: list[Rank]) -> None:
    """A work of works, of which none is waited for by itself."""

    def act(rank: int, here: Rank) -> list[Any]:
        tensors = [here.cuda.tensor(torch.zeros(2)) for _ in range(2)]
        with here.cuda.stream(here.cuda.Stream()):
            for tensor in tensors:
                filled_late(here, tensor)
            here.group.allreduce_coalesced(tensors, options()).wait()
            return [tensor.clone().tolist() for tensor in tensors]

    assert on_all(ranks, act) == [[[3.0, 3.0], [3.0, 3.0]]] * 2


def test_entries__are_written_before_the_waiter_reads(ranks: list[Rank]) -> None:
    """Sparse selection on the device: the average comes back from the host on a thread, while a kernel holds up the
    stream that reads it."""

    def act(rank: int, here: Rank) -> list[float]:
        tensor = here.cuda.tensor(torch.full((4,), 9.0))
        with here.cuda.stream(here.cuda.Stream()):
            go = here.cuda.kernel(lambda: tensor.as_subclass(torch.Tensor).fill_(7.0))
            threading.Timer(A_WHILE_S, go.set).start()
            indices, values = np.array([rank, 2], np.uint32), np.array([4.0, 2.0], np.float32)
            work = here.group.average_entries(tensor, indices, values, lambda *_: None, mode="reliable", deadline=20)
            wait_for_end(work)
            work.wait()
            return tensor.clone().tolist()

    assert on_all(ranks, act) == [[2.0, 2.0, 2.0, 0.0]] * 2, "and not over what the stream wrote before the call"
