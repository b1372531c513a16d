# SPDX-License-Identifier: Apache-2.0
"""Staging for an accelerator, with one whose streams do nothing until somebody waits for them: whoever forgets to wait,
or to keep an order, finds old values.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ultima  # noqa: E402  # only where torch is
from tests.torch.fake_group import FakeGroup, on_all  # noqa: E402
from ultima.testing import FakeDaemon  # noqa: E402
from ultima.torch.hooks.staging import PAGE, CudaDevice, Stage  # noqa: E402

COUNT = 1000


class LazyEvent:
    """A step of a lazy stream. It happens when somebody waits for it, after all that it comes behind."""

    def __init__(self, act: Callable[[], Any], behind: list["LazyEvent"]) -> None:
        self._act: Callable[[], Any] | None = act
        self._behind = behind
        self._lock = threading.Lock()

    def synchronize(self) -> None:
        for other in self._behind:
            other.synchronize()
        with self._lock:
            act, self._act = self._act, None
            if act is not None:
                act()


class LazyDevice:
    """An accelerator in host memory. `gate` holds up its copies to the host."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.pinned: dict[int, int] = {}
        self._out: list[LazyEvent] = []
        self._in: list[LazyEvent] = []

    def pin(self, block: torch.Tensor) -> None:
        assert block.data_ptr() % PAGE == 0 and block.nbytes % PAGE == 0
        self.pinned[block.data_ptr()] = block.nbytes

    def unpin(self, block: torch.Tensor) -> None:
        del self.pinned[block.data_ptr()]

    def to_host(self, host: torch.Tensor, tensor: torch.Tensor, after: LazyEvent | None) -> LazyEvent:
        def act() -> None:
            assert self.gate.wait(20)
            host.copy_(tensor)

        self._out.append(LazyEvent(act, self._out[-1:] + ([after] if after is not None else [])))
        return self._out[-1]

    def to_device(self, tensor: torch.Tensor, host: torch.Tensor) -> LazyEvent:
        self._in.append(LazyEvent(lambda: tensor.copy_(host), self._in[-1:]))
        return self._in[-1]

    def behind_copies(self, act: Callable[[], None]) -> None:
        act()

    def future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return torch.futures.Future()

    def synchronize(self) -> None:
        """What a consumer's stream does when it takes up the order of ours."""
        if self._in:
            self._in[-1].synchronize()


class Rank:
    def __init__(self, daemon: FakeDaemon, rank: int) -> None:
        self.device = LazyDevice()
        self.group = FakeGroup(daemon.connect(rank, arena="1M"))
        self.stage = Stage(self.group, self.device)


@pytest.fixture
def ranks() -> Any:
    with FakeDaemon(world_size=2) as daemon:
        yield [Rank(daemon, rank) for rank in range(2)]


def average(sizes: list[int], offset: float = 0.0) -> Callable[[int, Rank], list[list[float]]]:
    """Sends tensors of these sizes; what is in them when the consumer's stream sees them."""

    def act(rank: int, here: Rank) -> list[list[float]]:
        tensors = [torch.full((size,), 10.0 * at + rank + offset) for at, size in enumerate(sizes)]
        works = [here.stage.allreduce(tensor, None, 20) for tensor in tensors]
        for work in works:
            work.wait()
        here.device.synchronize()
        return [sorted(set(tensor.tolist())) for tensor in tensors]

    return act


def test_stage__averages(ranks: list[Rank]) -> None:
    sizes = [COUNT, 3, 2 * COUNT]
    assert on_all(ranks, average(sizes)) == [[[0.5], [10.5], [20.5]]] * 2
    assert [count for count, _, _ in ranks[0].group.asked] == sizes, "in the order of the calls"


def test_stage__does_not_hold_up_the_caller(ranks: list[Rank]) -> None:
    """The copies out cannot happen yet, and the calls return. Nothing was started; then all is, in order."""
    for rank in ranks:
        rank.device.gate.clear()
    tensors = [[torch.full((size,), float(rank)) for size in (30, 10, 20)] for rank in range(2)]
    works = [[rank.stage.allreduce(tensor, None, 20) for tensor in tensors[at]] for at, rank in enumerate(ranks)]
    assert [rank.group.asked for rank in ranks] == [[], []]
    assert not any(work.is_success() for mine in works for work in mine)
    for rank in ranks:
        rank.device.gate.set()
    for mine in works:
        for work in mine:
            work.wait()
    assert [[count for count, _, _ in rank.group.asked] for rank in ranks] == [[30, 10, 20]] * 2
    # The works are done, and the copies back are only queued: who asks for values follows the stream.
    assert float(tensors[1][0][0]) == 1.0
    for rank in ranks:
        rank.device.synchronize()
    assert [float(tensor[0]) for mine in tensors for tensor in mine] == [0.5] * 6
    assert all(work.is_success() and work.receipts[0].complete for mine in works for work in mine)


def test_stage__uses_a_block_again_only_after_its_copy_back(ranks: list[Rank]) -> None:
    """The first tensor's copy back is still queued when the second takes the block."""

    def act(rank: int, here: Rank) -> list[float]:
        first, second = torch.full((COUNT,), float(rank)), torch.full((COUNT,), 100.0 + rank)
        here.stage.allreduce(first, None, 20).wait()
        here.stage.allreduce(second, None, 20).wait()
        here.device.synchronize()
        return [float(first[0]), float(second[0])]

    assert on_all(ranks, act) == [[0.5, 100.5]] * 2
    assert [len(rank.device.pinned) for rank in ranks] == [1, 1]


def test_stage__gives_idle_blocks_up_when_the_arena_is_full(ranks: list[Rank]) -> None:
    """Blocks of another size lie idle in an arena of 1 MiB; this one needs their room."""
    assert on_all(ranks, average([40_000, 50_000, 60_000]))[0] == [[0.5], [10.5], [20.5]]
    assert on_all(ranks, average([200_000], 7.0)) == [[[7.5]]] * 2
    assert [list(rank.device.pinned.values()) for rank in ranks] == [[-(-800_000 // PAGE) * PAGE]] * 2


def test_stage__op_that_fails(ranks: list[Rank]) -> None:
    """Its block is not used again, and the next op is well."""
    work = ranks[0].stage.allreduce(torch.ones(COUNT), "reliable", "100ms")
    with pytest.raises(ultima.DeadlineExceeded):
        work.wait()
    assert not work.is_success() and ranks[0].device.pinned == {}
    ranks[1].group.allreduce_with(torch.ones(COUNT), mode="reliable", deadline=20).wait()
    assert on_all(ranks, average([COUNT])) == [[[0.5]]] * 2


def test_stage__op_that_is_refused(ranks: list[Rank]) -> None:
    work = ranks[0].stage.allreduce(torch.ones(COUNT, dtype=torch.uint8), None, 20)
    with pytest.raises(ultima.InvalidArgument, match="uint8"):
        work.wait()
    assert ranks[0].device.pinned == {}


def test_stage__group_that_was_destroyed(ranks: list[Rank]) -> None:
    ranks[0].group._job = None
    with pytest.raises(ultima.ClosedHandle):
        ranks[0].stage.allreduce(torch.ones(COUNT), None, 20)


def test_stage__arena_too_small(ranks: list[Rank]) -> None:
    with pytest.raises(ultima.ResourceExhausted):
        ranks[0].stage.allreduce(torch.ones(1 << 20), None, 20)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
def test_stage__on_an_accelerator() -> None:
    """Both ranks on one device, on streams of their own."""
    with FakeDaemon(world_size=2) as daemon:
        stages = [Stage(FakeGroup(daemon.connect(rank)), CudaDevice(torch.device("cuda", 0))) for rank in range(2)]

        def act(rank: int, stage: Stage) -> list[float]:
            tensors = [torch.full((1 << 20,), 10.0 * at, device="cuda") + rank for at in range(4)]
            works = [stage.allreduce(tensor, None, 20) for tensor in tensors]
            for work in works:
                work.wait()
            return [float(tensor.sum()) / (1 << 20) for tensor in tensors]

        assert on_all(stages, act) == [[0.5, 10.5, 20.5, 30.5]] * 2
