# SPDX-License-Identifier: Apache-2.0
"""The ranks of one site, which train one model together: the first of them takes part in rounds, and shares what comes.

Within a site any backend of torch.distributed averages gradients (DDP over Gloo or NCCL), so that its ranks hold the
same parameters. The first one's follow the outer model; what changed in them is then broadcast within the site.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from ultima.base.errors import InvalidArgument, UltimaError
from ultima.local.round_kernels import Floats
from ultima.torch.diloco.tensors import Tensors

_NOTHING, _FAILED = -1, -2


class Site:
    """The part of one rank, and Values (local/values.py) that note what is written.

    group: all ranks of it call the same methods in the same order. Raises InvalidArgument where this process is not in
    the group.
    """

    def __init__(self, group: dist.ProcessGroup, tensors: Tensors) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InvalidArgument("inner_group", "a group without this process", "the group of this site's ranks")
        self._group, self._first = group, dist.get_global_rank(group, 0)
        self._tensors, self.entries, self._device = tensors, tensors.entries, tensors.device
        self._low = self._high = 0

    @property
    def leads(self) -> bool:
        """Whether this rank takes part in rounds."""
        return self.rank == 0

    def read(self, low: int, out: Floats) -> None:
        """See `Values`."""
        self._tensors.read(low, out)

    def write(self, low: int, values: Floats) -> None:
        """See `Values`."""
        self._tensors.write(low, values)
        empty = self._low == self._high
        self._low = low if empty else min(self._low, low)
        self._high = low + values.size if empty else max(self._high, low + values.size)

    def spans(self, low: int, size: int) -> None:
        """See `Values`: `write` is told what changed."""
        return None

    def total(self, tokens: float) -> float:
        """Of all ranks of the site."""
        told = torch.tensor([tokens], dtype=torch.float64, device=self._device)
        dist.all_reduce(told, group=self._group)
        return float(told[0])

    def together(self, act: Callable[[], None]) -> None:
        """Does `act` on the rank that leads; afterwards all have what it changed. Raises what `act` raises, and on the
        others UltimaError."""
        if self.leads:
            try:
                act()
            except BaseException:
                self._tell(_FAILED, 0)
                raise
            changed = self._high > self._low
            self._tell(self._low if changed else _NOTHING, self._high)
        else:
            low, high = self._tell(0, 0)
            if low == _FAILED:
                raise UltimaError("the first rank of this site failed in a round: its own error says why")
            self._low, self._high = (0, 0) if low == _NOTHING else (low, high)
        self._share()

    def _tell(self, low: int, high: int) -> tuple[int, int]:
        told = torch.tensor([low, high], dtype=torch.int64, device=self._device)
        dist.broadcast(told, self._first, group=self._group)
        return int(told[0]), int(told[1])

    def _share(self) -> None:
        """What lies between the first and the last element that were written."""
        if self._low == self._high:
            return
        values = np.empty(self._high - self._low, np.float32)
        if self.leads:
            self._tensors.read(self._low, values)
        told = torch.from_numpy(values).to(self._device)
        dist.broadcast(told, self._first, group=self._group)
        if not self.leads:
            self._tensors.write(self._low, told.cpu().numpy())
        self._low = self._high = 0
