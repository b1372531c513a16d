# SPDX-License-Identifier: Apache-2.0
"""Moving a tensor's memory into the arena, views and all; over a fake daemon, whose arena is a real one."""

import gc
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from ultima import Job  # noqa: E402  # only where torch is
from ultima.testing import FakeDaemon  # noqa: E402
from ultima.torch.hooks.placement import place  # noqa: E402

COUNT = 1000
NBYTES = 4 * COUNT


def inside(job: Job, tensor: torch.Tensor) -> bool:
    return job.holds(tensor.data_ptr(), tensor.nbytes)


def test_place__takes_all_views_along() -> None:
    with FakeDaemon(1) as daemon, daemon.connect(0, arena="64K") as job:
        tensor = torch.arange(COUNT, dtype=torch.float32)
        view = tensor[10:20].view(2, 5)
        assert not inside(job, tensor)
        assert place(tensor, job)
        assert inside(job, tensor) and inside(job, view)
        assert torch.equal(tensor, torch.arange(COUNT, dtype=torch.float32))
        tensor[12] = -1.0
        assert view.tolist() == [[10.0, 11.0, -1.0, 13.0, 14.0], [15.0, 16.0, 17.0, 18.0, 19.0]]
        where = tensor.data_ptr()
        assert place(tensor, job) and tensor.data_ptr() == where, "once is enough"


def test_place__memory_goes_back_with_the_last_view() -> None:
    with FakeDaemon(1) as daemon, daemon.connect(0, arena="64K") as job:
        free = job.arena_free_bytes
        tensor = torch.ones(COUNT)
        place(tensor, job)
        view = tensor[-5:]
        del tensor
        gc.collect()
        assert job.arena_free_bytes <= free - NBYTES
        assert view.tolist() == [1.0] * 5
        del view
        gc.collect()
        assert job.arena_free_bytes == free


def test_place__leaves_half_of_the_arena() -> None:
    """Two of these fill its half; the third stays where it was."""
    with FakeDaemon(1) as daemon, daemon.connect(0, arena="16K") as job:
        tensors = [torch.full((COUNT,), float(number)) for number in range(3)]
        assert [place(tensor, job) for tensor in tensors] == [True, True, False]
        assert [inside(job, tensor) for tensor in tensors] == [True, True, False]
        assert [float(tensor.sum()) for tensor in tensors] == [0.0, COUNT, 2.0 * COUNT]


def test_place__where_torch_cannot_exchange_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before 2.12: the bucket stays, and is copied."""
    with FakeDaemon(1) as daemon, daemon.connect(0, arena="64K") as job:
        tensor, free = torch.ones(COUNT), job.arena_free_bytes
        monkeypatch.setattr(torch.Tensor, "untyped_storage", lambda _: SimpleNamespace(nbytes=lambda: NBYTES))
        assert not place(tensor, job) and job.arena_free_bytes == free


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(COUNT)[:500], torch.ones(0), torch.ones(COUNT, device="meta")],
    ids=["a part of a storage", "nothing", "another device"],
)
def test_place__not_for(tensor: torch.Tensor) -> None:
    with FakeDaemon(1) as daemon, daemon.connect(0, arena="64K") as job:
        where = None if tensor.is_meta else tensor.data_ptr()
        assert not place(tensor, job)
        assert tensor.is_meta or tensor.data_ptr() == where


def test_place__job_that_was_closed() -> None:
    """Its arena is still mapped, and no daemon reads it: the op that follows says what is wrong."""
    with FakeDaemon(1) as daemon:
        job = daemon.connect(0, arena="64K")
        job.close()
        tensor = torch.ones(COUNT)
        place(tensor, job)
        assert float(tensor.sum()) == COUNT
