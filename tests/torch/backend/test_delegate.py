# SPDX-License-Identifier: Apache-2.0
"""Torch calls a collective that a Python process group leaves to its base class with the GIL held, and Gloo's worker
wants the GIL under the lock that this call needs: a deadlock once in a thousand calls. So none may be left.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.distributed import BroadcastOptions  # noqa: E402

from ultima.base.errors import ClosedHandle  # noqa: E402
from ultima.torch.backend.delegate import DELEGATED, DelegatingProcessGroup  # noqa: E402
from ultima.torch.backend.group import UltimaProcessGroup  # noqa: E402

# The collectives of torch's PyProcessGroup that Gloo can do (torch/csrc/distributed/c10d/PyProcessGroup.hpp).
CALLED_WITH_THE_GIL = (
    "all_gather_single",
    "all_to_all_single",
    "allgather",
    "allreduce",
    "allreduce_coalesced",
    "barrier",
    "broadcast",
    "recv",
    "reduce_scatter",
    "reduce_scatter_single",
    "send",
)


@pytest.mark.parametrize("name", CALLED_WITH_THE_GIL)
def test_process_group__leaves_no_collective_to_its_base(name: str) -> None:
    assert any(name in vars(kind) for kind in (UltimaProcessGroup, DelegatingProcessGroup))


@pytest.mark.parametrize("inner", sorted({*DELEGATED.values()}))
def test_delegate__calls_a_method_that_gloo_has(inner: str) -> None:
    """Under a name that torch has, too: some names are of torch 2.13 and newer."""
    assert callable(getattr(torch.distributed.ProcessGroupGloo, inner))
    names = [name for name, other in DELEGATED.items() if other == inner]
    assert any(hasattr(torch.distributed.ProcessGroup, name) for name in names)


class Recorder:
    """In the place of Gloo: every method answers with its own name and what it was given."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: (name, args, named)


@pytest.fixture
def group() -> DelegatingProcessGroup:
    return DelegatingProcessGroup(0, 1)


@pytest.mark.parametrize(("name", "inner"), DELEGATED.items())
def test_delegate__passes_on_all_that_it_was_given(group: DelegatingProcessGroup, name: str, inner: str) -> None:
    group._inner = Recorder()  # type: ignore[assignment]
    assert getattr(group, name)([1], "two", opts=3) == (inner, ([1], "two"), {"opts": 3})
    method = getattr(DelegatingProcessGroup, name)
    assert method.__name__ == name and inner in method.__doc__


@pytest.mark.parametrize("name", DELEGATED)
def test_delegate__once_it_has_ended_says_so(group: DelegatingProcessGroup, name: str) -> None:
    group._inner = Recorder()  # type: ignore[assignment]
    group._end_gloo()
    with pytest.raises(ClosedHandle, match="destroyed"):
        getattr(group, name)([torch.zeros(1)])


def test_delegate__two_ranks_through_gloo() -> None:
    """Real ones: what Gloo does comes back in the caller's tensors, and its threads end with the group."""
    before, store, limit = threading.active_count(), torch.distributed.HashStore(), timedelta(seconds=30)

    def one(rank: int) -> tuple[list[float], list[float]]:
        group = DelegatingProcessGroup(rank, 2)
        group._start_gloo(store, rank, 2, limit)
        mine = torch.full((3,), float(rank))
        gathered = [torch.zeros(3), torch.zeros(3)]
        group.allgather([gathered], [mine]).wait()
        group.broadcast([mine], BroadcastOptions()).wait()  # of rank 0
        group._end_gloo()
        return [float(each[0]) for each in gathered], mine.tolist()

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(one, range(2)))
    assert answers == [([0.0, 1.0], [0.0, 0.0, 0.0])] * 2
    assert threading.active_count() == before
