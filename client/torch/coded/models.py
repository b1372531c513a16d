# SPDX-License-Identifier: Apache-2.0
"""Which models a coded job can train: ranks that compute the same data must compute the same gradient."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel

from ultima.base.errors import InvalidArgument, Unsupported

NAME = "CodedGradient"
KINDS = (torch.float32, torch.float64)


def check_model(model: nn.Module, seeded: bool) -> None:
    """Raises Unsupported for models whose replicas would differ, or that have no gradient of their own on each rank;
    InvalidArgument for what can be made to work. |seeded|: the batches seed torch's generators.
    """
    # Here, because they take longer to import than all else of `ultima.torch`.
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    if not isinstance(model, nn.Module):
        raise InvalidArgument("model", type(model).__name__, "a torch.nn.Module")
    for name, module in model.named_modules():
        where = f"{name or 'the model'} is {type(module).__name__}"
        if isinstance(module, FullyShardedDataParallel | FSDPModule):
            raise Unsupported(NAME, f"{where}: it needs each rank's whole gradient, and FSDP has only a shard of a sum;"
                              " use a plain module or DistributedDataParallel")  # fmt: skip
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise Unsupported(NAME, f"{where}: it keeps statistics of the data that it saw, which differ between ranks;"
                              " use GroupNorm or LayerNorm, or track_running_stats=False")  # fmt: skip
        if isinstance(module, nn.SyncBatchNorm):
            raise Unsupported(NAME, f"{where}: its ranks wait for each other in every forward pass; use GroupNorm")
        if not seeded and _draws(module):
            allowed = "True with a model that draws random numbers: for ... in sampler.batches(step=coded.number)"
            raise InvalidArgument("seeded", f"False, and {where}", allowed)
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise Unsupported(NAME, f"{name} is a DTensor: each rank has only a shard of it; use a plain module")
        if parameter.requires_grad and parameter.dtype not in KINDS:
            raise InvalidArgument(f"{name}.dtype", parameter.dtype, "torch.float32 or torch.float64")
    if isinstance(model, DistributedDataParallel):
        _check_ddp(model)


def keep_ddp_quiet(model: nn.Module) -> None:
    """A backward pass of DDP outside of no_sync raises, before anything is sent."""
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(None, _refuse)


def _draws(module: nn.Module) -> bool:
    """Whether a forward pass of the module itself draws random numbers."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    dropout = getattr(module, "dropout", 0.0)  # of attention and recurrent layers
    return isinstance(module, nn.RReLU) or (isinstance(dropout, float | int) and dropout > 0)


def _check_ddp(model: DistributedDataParallel) -> None:
    if model.broadcast_buffers and next(iter(model.module.buffers()), None) is not None:
        raise InvalidArgument("broadcast_buffers", True, "False: DDP broadcasts them before each forward pass")


# Without annotations: DDP compares those of a hook with the types themselves.
def _refuse(state, bucket):  # type: ignore[no-untyped-def]
    raise InvalidArgument("backward", "outside of no_sync", "with model.no_sync(): ... around each backward pass")
