# SPDX-License-Identifier: Apache-2.0
"""Which models CodedGradient refuses: before anything is sent, and with a sentence that says what to do."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ultima.base.errors import InvalidArgument, Unsupported
from ultima.torch.coded.models import check_model, keep_ddp_quiet


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group of one rank, for wrappers that will not be made without."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_model__statistics_of_the_data() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with pytest.raises(Unsupported, match=r"CodedGradient: 1 is BatchNorm1d: it keeps statistics .* use GroupNorm"):
        check_model(model, seeded=False)
    with pytest.raises(Unsupported, match="its ranks wait for each other"):
        check_model(nn.SyncBatchNorm(3, track_running_stats=False), seeded=False)
    check_model(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.GroupNorm(1, 3)), seeded=False)


@pytest.mark.parametrize(
    "module",
    [nn.Dropout(0.1), nn.MultiheadAttention(4, 2, dropout=0.1), nn.LSTM(4, 4, 2, dropout=0.1), nn.RReLU()],
    ids=lambda module: type(module).__name__,
)
def test_model__random_numbers_need_seeds(module: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), module)
    with pytest.raises(InvalidArgument, match=r"seeded is 'False, and 1 is .*batches\(step=coded.number\)"):
        check_model(model, seeded=False)
    check_model(model, seeded=True)
    check_model(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.LSTM(4, 4, 2)), seeded=False)


def test_model__types() -> None:
    with pytest.raises(InvalidArgument, match="model is 'int'"):
        check_model(3, seeded=False)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidArgument, match=r"weight.dtype is torch.float16; allowed: torch.float32 or torch.float64"
    ):
        check_model(nn.Linear(3, 3).half(), seeded=False)
    check_model(nn.Linear(3, 3).double(), seeded=False)


@pytest.mark.filterwarnings("ignore:FSDP is switching")
def test_model__shards(alone: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    with pytest.raises(Unsupported, match="needs each rank's whole gradient"):
        check_model(fully_shard(nn.Linear(3, 3), mesh=mesh), seeded=False)
    with pytest.raises(Unsupported, match="needs each rank's whole gradient"):
        check_model(FullyShardedDataParallel(nn.Linear(3, 3), device_id=torch.device("cpu")), seeded=False)


def test_ddp__backward_only_under_no_sync(alone: None) -> None:
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    check_model(model, seeded=False)
    keep_ddp_quiet(model)
    with model.no_sync():
        model(torch.ones(2, 3)).sum().backward()
    assert model.module.weight.grad is not None and model.module.weight.grad.tolist() == [[2.0] * 3]
    with pytest.raises(InvalidArgument, match=r"outside of no_sync.*with model\.no_sync"):
        model(torch.ones(2, 3)).sum().backward()


@pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated")
def test_ddp__buffers_that_it_broadcasts(alone: None) -> None:
    inner = nn.Linear(3, 3)
    inner.register_buffer("scale", torch.ones(3))
    with pytest.raises(InvalidArgument, match="broadcast_buffers is True; allowed: False"):
        check_model(DistributedDataParallel(inner), seeded=False)
    check_model(DistributedDataParallel(inner, broadcast_buffers=False), seeded=False)
