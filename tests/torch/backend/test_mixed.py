# SPDX-License-Identifier: Apache-2.0
"""A group with a backend for each kind of device, on two hosts; `mixed.py` has what the ranks do."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.ranks import run_ranks  # noqa: E402
from ultima.demo.cluster import Cluster  # noqa: E402
from ultima.torch.backend.delegate import NEEDS_STAND_IN  # noqa: E402
from ultima.torch.backend.mixed import FORWARDED, UltimaBackend  # noqa: E402

MODULE = "tests.torch.mixed"


def on_two(cluster: Cluster, case: str) -> list[Any]:
    outcomes = run_ranks(case, 2, cluster.sockets, 100, module=MODULE)
    assert all(outcome.result is not None for outcome in outcomes), outcomes[0].errors + outcomes[1].errors
    return [outcome.result for outcome in outcomes]


def wanted(rank: int) -> dict[str, Any]:
    return {
        "torch's own": True,
        "cuda": "ProcessGroupGloo",
        "all_reduce": [3.0] * 4,
        "broadcast": [2.0] * 4,
        "all_gather": [1.0, 2.0],
        "all_gather_into_tensor": [1.0, 2.0],
        "reduce_scatter_tensor": [3.0, 3.0],
        "all_to_all_single": [1.0, 1.0, 2.0, 2.0],
        "reduce": 3.0,
        "sparse": [1.0, 1.0],
        **({"recv": 1.0} if rank == 1 else {}),
        "coalesced": [[1.0, 2.0], [1.0, 1.0, 2.0, 2.0]],
        "ddp": [1.5] * 4,
        "ops of DDP": True,
        "receipts": True,
        "closed": True,
    }


def check(results: list[Any], wanted: list[Any], asked: str) -> None:
    """Before 2.14 torch would give ours all devices, without a word."""
    if NEEDS_STAND_IN:
        assert results == wanted
    else:
        for result in results:
            assert asked in result["refused"] and "torch 2.14 or newer" in result["refused"]


def test_mixed__ours_beside_another_backend(cluster: Cluster) -> None:
    check(on_two(cluster, "beside"), [wanted(0), wanted(1)], "cpu:ultima,cuda:gloo")


def test_mixed__the_other_backend_gets_its_device(cluster: Cluster) -> None:
    results = on_two(cluster, "other_way")
    check(results, [{"all_reduce": [3.0] * 4, "ops": 0}] * 2, "cpu:gloo,cuda:ultima")


@pytest.mark.parametrize(("name", "inner"), FORWARDED.items())
def test_mixed__passes_on_all_that_it_was_given(name: str, inner: str) -> None:
    class Group:
        def __getattr__(self, called: str) -> Any:
            return lambda *args, **named: (called, args, named)

    class Holder:
        group, _call_group = Group(), UltimaBackend._call_group

    method = getattr(UltimaBackend, name)
    assert method(Holder(), [1], "two", opts=3) == (inner, ([1], "two"), {"opts": 3})
    assert method.__name__ == name and inner in method.__doc__


def test_mixed__leaves_no_collective_to_its_base() -> None:
    """But for those that torch calls on no backend in Python (torch/csrc/distributed/c10d/py/PyBackend.hpp)."""
    others = {"alltoall_base", "gather_into_tensor", "gather_single", "monitored_barrier"}
    ours = {*FORWARDED, "_allgather_base", "_reduce_scatter_base"}
    base = vars(torch._C._distributed_c10d.Backend)
    words = ("reduce", "gather", "scatter", "broadcast", "alltoall", "all_to_all", "send", "recv", "barrier")
    assert {name for name in base if any(word in name for word in words)} - ours <= others
