# SPDX-License-Identifier: Apache-2.0
"""Torch calls a collective that a Python process group leaves to its base class with the GIL held, and Gloo's worker
wants the GIL under the lock that this call needs: a deadlock once in a thousand calls. So none may be left.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

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


@pytest.mark.parametrize(("name", "inner"), DELEGATED.items())
def test_delegate__calls_a_method_that_gloo_has(name: str, inner: str) -> None:
    assert callable(getattr(torch.distributed.ProcessGroupGloo, inner))
    assert hasattr(torch.distributed.ProcessGroup, name)
