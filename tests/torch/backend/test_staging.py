# SPDX-License-Identifier: Apache-2.0
"""Staging for an accelerator, with one that is none (`fake_device.py`): whoever forgets to wait, or to keep an order,
finds old values.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions  # noqa: E402

import ultima  # noqa: E402  # only where torch is
from tests.torch.fake_device import Rank, two_ranks  # noqa: E402
from tests.torch.fake_group import FakeGroup, on_all  # noqa: E402
from ultima.testing import FakeDaemon  # noqa: E402
from ultima.torch.backend.staging import PAGE, Queue  # noqa: E402
from ultima.torch.hooks import HookState, average_hook  # noqa: E402

COUNT = 1000
A_WHILE_S = 0.1
"""Time for a thread that forgets to wait to do harm."""


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    with two_ranks() as found:
        yield found


def filled(here: Rank, count: int, value: float, dtype: Any = None) -> Any:
    return here.cuda.tensor(torch.full((count,), value, dtype=dtype))


def started(here: Rank, tensor: Any, deadline: Any = 20, mode: Any = None) -> Any:
    return here.group.allreduce_with(tensor, mode=mode, deadline=deadline)


def average(sizes: list[int], offset: float = 0.0) -> Callable[[int, Rank], list[list[float]]]:
    """Sends tensors of these sizes; what is in them when the consumer's stream sees them."""

    def act(rank: int, here: Rank) -> list[list[float]]:
        tensors = [filled(here, size, 10.0 * at + rank + offset) for at, size in enumerate(sizes)]
        works = [started(here, tensor) for tensor in tensors]
        for work in works:
            work.wait()
        return [sorted(set(tensor.tolist())) for tensor in tensors]

    return act


def pinned(here: Rank) -> dict[int, int]:
    return here.cuda.runtime.pinned


def test_stage__averages(ranks: list[Rank]) -> None:
    sizes = [COUNT, 3, 2 * COUNT]
    assert on_all(ranks, average(sizes)) == [[[0.5], [10.5], [20.5]]] * 2
    assert [count for count, _, _ in ranks[0].group.asked] == sizes, "in the order of the calls"
    assert all(at % PAGE == 0 and size % PAGE == 0 for at, size in pinned(ranks[0]).items()) and len(pinned(ranks[0]))


def test_stage__does_not_hold_up_the_caller(ranks: list[Rank]) -> None:
    """The kernels have not run yet, and the calls return. Nothing was started; then all is, in order."""
    sizes = (30, 10, 20)
    tensors = [[filled(here, size, -1.0) for size in sizes] for here in ranks]
    kernels, works = [], []
    for here, mine in zip(ranks, tensors, strict=True):
        with here.cuda.stream(here.cuda.Stream()):
            for tensor in mine:
                fill = tensor.as_subclass(torch.Tensor).fill_
                kernels.append(here.cuda.kernel(lambda fill=fill, value=float(here.rank): fill(value)))
                works.append(started(here, tensor))
    assert [here.group.asked for here in ranks] == [[], []]
    assert not any(work.is_success() for work in works)
    for go in kernels:
        go.set()
    for work in works:
        work.get_future().wait()
    assert [[count for count, _, _ in here.group.asked] for here in ranks] == [[*sizes]] * 2
    assert [tensor.tolist()[0] for mine in tensors for tensor in mine] == [0.5] * 6
    assert all(work.is_success() and work.receipts[0].complete for work in works)


def test_stage__copies_back_on_a_stream_of_its_own(ranks: list[Rank]) -> None:
    """While that is held up the work is done all the same; who asks for values follows the stream."""

    def act(rank: int, here: Rank) -> list[float]:
        tensor = filled(here, COUNT, float(rank))
        with here.card.inbound():
            go = here.cuda.kernel()
        work = started(here, tensor)
        work.wait()
        before = float(tensor.as_subclass(torch.Tensor)[0])
        threading.Timer(A_WHILE_S, go.set).start()
        return [before, tensor.tolist()[0]]

    assert on_all(ranks, act) == [[0.0, 0.5], [1.0, 0.5]]


def test_stage__uses_a_block_again_only_after_its_copy_back(ranks: list[Rank]) -> None:
    """The first tensor's copy back is still queued when the second takes the block."""

    def act(rank: int, here: Rank) -> list[float]:
        first, second = filled(here, COUNT, float(rank)), filled(here, COUNT, 100.0 + rank)
        with here.card.inbound():
            go = here.cuda.kernel()
        started(here, first).wait()
        with here.cuda.stream(here.cuda.Stream()):
            work = started(here, second)
        threading.Timer(A_WHILE_S, go.set).start()
        work.wait()
        return [first.tolist()[0], second.tolist()[0]]

    assert on_all(ranks, act) == [[0.5, 100.5]] * 2
    assert [len(pinned(here)) for here in ranks] == [1, 1]


def test_stage__gives_idle_blocks_up_when_the_arena_is_full(ranks: list[Rank]) -> None:
    """Blocks of another size lie idle in an arena of 1 MiB; this one needs their room."""
    assert on_all(ranks, average([40_000, 50_000, 60_000]))[0] == [[0.5], [10.5], [20.5]]
    assert on_all(ranks, average([200_000], 7.0)) == [[[7.5]]] * 2
    assert [list(pinned(here).values()) for here in ranks] == [[-(-800_000 // PAGE) * PAGE]] * 2


def test_stage__group_that_is_closed_leaves_nothing_pinned(ranks: list[Rank]) -> None:
    """Not even a block whose copy back was still under way."""
    on_all(ranks, average([COUNT]))
    here = ranks[0]
    here.group._stages.close()
    assert pinned(here) == {} and len(pinned(ranks[1])) == 1
    assert on_all(ranks, average([COUNT])) == [[[0.5]]] * 2
    assert pinned(here) == {}


def test_stage__op_that_fails(ranks: list[Rank]) -> None:
    """Its block is not used again, and the next op is well."""
    work = started(ranks[0], filled(ranks[0], COUNT, 1.0), "100ms", "reliable")
    with pytest.raises(ultima.DeadlineExceeded):
        work.wait()
    assert not work.is_success() and pinned(ranks[0]) == {}
    with pytest.raises(ultima.RanksGone):  # rank 0 has given that op up
        ranks[1].group.allreduce_with(torch.ones(COUNT), mode="reliable", deadline=20).wait()
    assert on_all(ranks, average([COUNT])) == [[[0.5]]] * 2


def test_stage__op_that_is_refused(ranks: list[Rank]) -> None:
    work = started(ranks[0], filled(ranks[0], COUNT, 1, torch.uint8))
    with pytest.raises(ultima.InvalidArgument, match="uint8"):
        work.wait()
    assert pinned(ranks[0]) == {}


def test_stage__copy_back_that_fails(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    """The block it drops is not pinned any more: memory at its address may be pinned later."""

    def fails(after: Any = None) -> Any:
        raise RuntimeError("the device has failed")

    monkeypatch.setattr(ranks[0].card, "inbound", fails)
    works = [started(here, filled(here, COUNT, 1.0)) for here in ranks]
    works[1].wait()
    with pytest.raises(RuntimeError, match="the device has failed"):
        works[0].wait()
    assert [len(pinned(here)) for here in ranks] == [0, 1]


class Inner:
    """The work of a block, ended by the test."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.future: Any = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future

    def exception(self) -> Exception | None:
        return self._error


@pytest.mark.parametrize(("answer", "copy"), [(A_WHILE_S, 0.0), (0.0, A_WHILE_S)], ids=["answer", "copy"])
@pytest.mark.parametrize("when", ["under way", "at its start"])
def test_stage__error_is_told_when_later_buckets_write_no_more(
    ranks: list[Rank], when: str, answer: float, copy: float
) -> None:
    """DDP gives up with the first bucket that failed, and the next step writes where the later ones still may."""
    here = ranks[0]
    stage, job = here.group._stages.of(here.card), here.group.job
    failed, later, both_called = Inner(RuntimeError("gone")), Inner(), threading.Event()

    def start(host: Any) -> Any:
        assert both_called.wait(20)
        if when == "at its start":
            raise RuntimeError("gone")
        failed.future.set_result(None)
        return failed

    tensors = [filled(here, COUNT, 1.0), filled(here, COUNT, 1.0)]
    assert job is not None
    with here.card.inbound():
        go = here.cuda.kernel()

    def answered(host: Any) -> Inner:
        host.fill_(7.0)
        threading.Timer(answer, later.future.set_result, [None]).start()
        threading.Timer(copy, go.set).start()
        return later

    works = [stage.allreduce(tensor, job, how) for tensor, how in zip(tensors, (start, answered), strict=True)]
    both_called.set()
    with pytest.raises(RuntimeError, match="gone"):
        works[0].wait()
    assert float(tensors[1].as_subclass(torch.Tensor)[0]) == 7.0, "not only queued"
    works[1].wait()


def test_stage__arena_too_small(ranks: list[Rank]) -> None:
    with pytest.raises(ultima.ResourceExhausted):
        started(ranks[0], filled(ranks[0], 1 << 20, 1.0))


# Other ops between staged buckets


def held(here: Rank, tensor: Any, until_s: float) -> None:
    """A kernel on a stream of its own, which becomes the current one, fills |tensor| with the rank, but not before."""
    fill = tensor.as_subclass(torch.Tensor).fill_
    go = here.cuda.kernel(lambda: fill(float(here.rank)))
    threading.Timer(until_s, go.set).start()


def wait_for_ops(here: Rank, count: int) -> None:
    limit = time.monotonic() + 20
    while len(here.group.asked) < count:
        assert time.monotonic() < limit
        time.sleep(0.001)


def between(here: Rank, call: Callable[[Rank], Any]) -> list[Any]:
    """A bucket whose kernel is slow on rank 1, and whose op has started on rank 0, then |call|, then another bucket: as
    with SyncBatchNorm in backward.
    """
    first, last = filled(here, 40, -1.0), filled(here, 30, 10.0 + here.rank)
    with here.cuda.stream(here.cuda.Stream()):
        held(here, first, A_WHILE_S * here.rank)
        works = [started(here, first)]
        if here.rank == 0:
            wait_for_ops(here, 1)
        said = call(here)
        works.append(started(here, last))
        for work in works:
            work.wait()
        return [first.tolist()[0], said, last.tolist()[0]]


def by_gloo(here: Rank) -> float:
    tensor, opts = filled(here, 5, 2.0 + here.rank), AllreduceOptions()
    here.group.allreduce([tensor], opts).wait()
    return float(tensor.tolist()[0])


def on_the_host(here: Rank) -> float:
    tensor = torch.full((40,), 2.0 + here.rank)
    here.group.allreduce([tensor], AllreduceOptions()).wait()
    return float(tensor[0])


def by_entries(here: Rank) -> float:
    tensor, one = filled(here, 4, 0.0), np.array([2.5 * 2], np.float32)
    here.group.average_entries(tensor, np.array([here.rank], np.uint32), one, lambda *_: None).wait()
    return float(tensor.tolist()[0]) * 2


@pytest.mark.parametrize("call", [by_gloo, on_the_host, by_entries])
def test_order__of_another_op_between_buckets_is_that_of_the_calls(ranks: list[Rank], call: Any) -> None:
    """On one rank the first bucket is ready at once, on the other it is not. Both number the ops alike."""
    assert on_all(ranks, lambda rank, here: between(here, call)) == [[0.5, 5.0, 10.5]] * 2


def test_order__of_two_states_of_one_group(ranks: list[Rank]) -> None:
    """Two models that share a group, as in a GAN."""

    def act(rank: int, here: Rank) -> list[float]:
        states = [HookState(here.group, mode="reliable", deadline=20, budget=None) for _ in range(2)]
        tensors = [filled(here, 50, -1.0), filled(here, 50, 10.0 + rank)]
        with here.cuda.stream(here.cuda.Stream()):
            held(here, tensors[0], A_WHILE_S * rank)
            sent = [states[0].send(tensors[0], 0, True)]
        if rank == 0:
            wait_for_ops(here, 1)
        sent.append(states[1].send(tensors[1], 0, True))
        for each in sent:
            each.wait()
        return [tensor.tolist()[0] for tensor in tensors]

    assert on_all(ranks, act) == [[0.5, 10.5]] * 2


def test_queue__drain_in_a_task_and_while_there_is_one() -> None:
    done: list[int] = []
    queue = Queue(lambda task: threading.Thread(target=task).start())
    go = threading.Event()
    queue.put(lambda: done.append(int(go.wait(20))))
    queue.put(lambda: (queue.drain(), done.append(2)))  # type: ignore[arg-type,func-returns-value]
    assert done == []
    threading.Timer(A_WHILE_S, go.set).start()
    queue.drain()
    assert done == [1, 2] and not queue.busy


class Bucket:
    """As DDP gives it to a hook."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def buffer(self) -> Any:
        return self._tensor

    def index(self) -> int:
        return 0


def test_average_hook__is_bounded_on_an_accelerator_too(ranks: list[Rank]) -> None:
    """It is Ultima's, in the group's mode, and not Gloo's: which torch's all-reduce of such a tensor is."""

    def act(rank: int, here: Rank) -> list[Any]:
        tensor = filled(here, COUNT, float(rank))
        average_hook(here.group, Bucket(tensor)).wait()  # type: ignore[arg-type]
        return [tensor.tolist()[0], here.group.asked, here.group.log.last(1)[0].complete]

    assert on_all(ranks, act) == [[0.5, [(COUNT, None, None)], True]] * 2


# What Gloo takes for memory of the host


def test_peers__tensors_on_a_device_go_through_the_host(ranks: list[Rank]) -> None:
    """What is sent is what a slow kernel writes first; what is received comes before whoever waits, strided memory too.
    An average that was called after a receive does not wait for it.
    """

    def act(rank: int, here: Rank) -> Any:
        group = here.group
        if rank == 0:
            tensor = filled(here, COUNT, -1.0)
            go = here.cuda.kernel(lambda: tensor.as_subclass(torch.Tensor).fill_(7.0))
            threading.Timer(A_WHILE_S, go.set).start()
            sent = group.send([tensor], 1, 0)
            mean = filled(here, 3, 0.0)
            average_hook(group, Bucket(mean)).wait()  # type: ignore[arg-type]
            group.send([here.tensor(1.0, 2.0)], 1, 0)
            sent.wait()
            return mean.tolist()
        tensor, memory = filled(here, COUNT, -1.0), filled(here, 4, 99.0)
        group.recv([tensor], 0, 0).wait()
        found = [sorted(set(tensor.tolist()))]
        late = group.recv_anysource([memory[::2]], 0)
        mean = filled(here, 3, 1.0)
        average_hook(group, Bucket(mean)).wait()  # type: ignore[arg-type]
        late.wait()
        return [*found, memory.tolist(), late._source_rank(), mean.tolist()]

    assert on_all(ranks, act) == [[0.5] * 3, [[7.0], [1.0, 99.0, 2.0, 99.0], 0, [0.5] * 3]]


def test_allgather_coalesced__of_tensors_on_a_device_goes_through_the_host(ranks: list[Rank]) -> None:
    def act(rank: int, here: Rank) -> Any:
        given = [here.tensor(1.0 + rank, 2.0), here.tensor(10.0 * rank)]
        outputs = [[here.tensor(0.0, 0.0), here.tensor(0.0)] for _ in range(2)]
        here.group.allgather_coalesced(outputs, given, AllgatherOptions()).wait()
        return [[tensor.tolist() for tensor in row] for row in outputs]

    assert on_all(ranks, act) == [[[[1.0, 2.0], [0.0]], [[2.0, 2.0], [10.0]]]] * 2


# What the driver refuses


def test_pin__that_is_refused_costs_speed_alone(ranks: list[Rank]) -> None:
    """No later kernel hears of it, and nothing is unpinned that was not pinned."""
    for here in ranks:
        here.cuda.runtime.refuses = True

    def act(rank: int, here: Rank) -> Any:
        said = average([COUNT, 3])(rank, here)
        here.cuda.runtime.check_launch()
        here.group._stages.close()
        here.cuda.runtime.check_launch()
        return said

    assert on_all(ranks, act) == [[[0.5], [10.5]]] * 2


def test_pin__of_memory_that_the_driver_has_forgotten(ranks: list[Rank]) -> None:
    def act(rank: int, here: Rank) -> Any:
        said = average([COUNT])(rank, here)
        pinned(here).clear()
        here.group._stages.close()
        here.cuda.runtime.check_launch()
        return said

    assert on_all(ranks, act) == [[[0.5]]] * 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
def test_stage__on_an_accelerator() -> None:
    """Both ranks on one device, on streams of their own."""
    with FakeDaemon(world_size=2) as daemon:
        groups = [FakeGroup(daemon.connect(rank)) for rank in range(2)]

        def act(rank: int, group: FakeGroup) -> list[float]:
            tensors = [torch.full((1 << 20,), 10.0 * at, device="cuda") + rank for at in range(4)]
            works = [group.allreduce_with(tensor, deadline=20) for tensor in tensors]
            for work in works:
                work.wait()
            return [float(tensor.sum()) / (1 << 20) for tensor in tensors]

        assert on_all(groups, act) == [[0.5, 10.5, 20.5, 30.5]] * 2
