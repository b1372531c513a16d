# SPDX-License-Identifier: Apache-2.0
"""`import ultima.torch` makes torch know the backend "ultima".

    import ultima.torch
    torch.distributed.init_process_group("ultima")
    model = DistributedDataParallel(model)      # and nothing else changes

Each rank needs what torchrun sets, and ULTIMA_SOCKET where its host's daemon is not at /run/ultima/ultimad.sock.

The backend and the hooks of DDP are loaded at once. Sparse, quantised, partial, coded, local and elastic training are,
when they are first asked for: most programs use none of them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ultima.v1.installed import missing

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as error:
    if said := missing(error, "ultima.torch"):
        raise ModuleNotFoundError(said, name=error.name) from None
    raise

from ultima.base import scalars
from ultima.base.receipt import Receipt
from ultima.torch.backend.capabilities import Capability, capabilities
from ultima.torch.backend.elements import PIECE_BYTES_MAX
from ultima.torch.backend.group import UltimaProcessGroup, group_of, register
from ultima.torch.backend.receipt_log import ReceiptSummary
from ultima.torch.hooks import HookState, allreduce_hook, average_hook, guard, hook_fsdp, trace
from ultima.torch.tested import warn_of

if TYPE_CHECKING:
    from ultima.torch.coded.gradient import CodedGradient, CodedSummary
    from ultima.torch.coded.sampler import CodedSampler
    from ultima.torch.diloco.diloco import DiLoCo, LocalSGD, SparseLoCo
    from ultima.torch.elastic.training import ElasticTraining
    from ultima.torch.partial.eager import EagerSGD
    from ultima.torch.partial.partial_hook import PartialState, partial_hook
    from ultima.torch.partial.rna import RNA
    from ultima.torch.quant import QuantState, QuantSummary, quantize_hook
    from ultima.torch.sparse import SparseState, SparseSummary, sparse_hook

__all__ = [
    "PIECE_BYTES_MAX",
    "RNA",
    "Capability",
    "CodedGradient",
    "CodedSampler",
    "CodedSummary",
    "DiLoCo",
    "EagerSGD",
    "ElasticTraining",
    "HookState",
    "LocalSGD",
    "PartialState",
    "QuantState",
    "QuantSummary",
    "ReceiptSummary",
    "SparseLoCo",
    "SparseState",
    "SparseSummary",
    "UltimaProcessGroup",
    "allreduce_hook",
    "average_hook",
    "capabilities",
    "guard",
    "hook_fsdp",
    "last_receipts",
    "log_receipts",
    "partial_hook",
    "quantize_hook",
    "receipt_summary",
    "sparse_hook",
    "trace",
]

_HOMES = {
    "coded.gradient": "CodedGradient CodedSummary",
    "coded.sampler": "CodedSampler",
    "diloco.diloco": "DiLoCo LocalSGD SparseLoCo",
    "elastic.training": "ElasticTraining",
    "partial.eager": "EagerSGD",
    "partial.partial_hook": "PartialState partial_hook",
    "partial.rna": "RNA",
    "quant": "QuantState QuantSummary quantize_hook",
    "sparse": "SparseState SparseSummary sparse_hook",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_PACKAGES = {home.split(".")[0] for home in _HOMES} | {"ft"}

warn_of(torch.__version__)
register(lambda *given: import_module("ultima.torch.ft.reconfigure").ReconfigurableProcessGroup(*given))
if os.environ.get("ULTIMA_WIRE"):
    import_module("ultima.torch.quant.unasked").hook_all(os.environ["ULTIMA_WIRE"])


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def last_receipts(count: int | None = None, group: dist.ProcessGroup | None = None) -> list[Receipt]:
    """The receipts of this rank's last all-reduces in a group (None: the default one), oldest first: |count| of them,
    None for all that are kept, up to 1024.

    Raises InvalidArgument when the group is of another backend.
    """
    return group_of(group).log.last(count)


def log_receipts(writer: Any, step: int | None = None, group: dist.ProcessGroup | None = None) -> dict[str, float]:
    """Writes what this rank's ops since the last call add up to, to TensorBoard, Weights & Biases or MLflow:

        ultima.torch.log_receipts(writer, step)      # once a step, or whenever you log the loss

    |writer| is a `SummaryWriter`, the module or a run of `wandb`, or whatever has `add_scalar(tag, value, step)`,
    `log(values, step=)` or `log_metrics(values, step=)`. Returns the values by tag: `ultima/ops`,
    `ultima/complete_share`, `ultima/missing_share` (0 to 1), `ultima/op_median_s`, `ultima/op_max_s` (seconds) and
    `ultima/ranks_min`; nothing without ops since. Of more than 1024 ops the last 1024 count. Raises InvalidArgument for
    another writer, and as `last_receipts`.
    """
    return scalars.log_receipts(writer, group_of(group).log.news(writer), step)


def receipt_summary(group: dist.ProcessGroup | None = None) -> ReceiptSummary:
    """What the receipts of all of this rank's ops in a group add up to. Raises InvalidArgument as `last_receipts`."""
    return group_of(group).log.summary()
