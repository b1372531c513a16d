# SPDX-License-Identifier: Apache-2.0
"""The accelerator of a rank of `make gpu`: a real one, or the stand-in of `tests/torch/fake_device.py`."""

from __future__ import annotations

import time
from typing import Any

import torch

from tests.torch.fake_device import Card, FakeEvent, FakeGloo
from ultima.torch.backend import accelerator
from ultima.torch.backend.accelerator import CudaDevice
from ultima.torch.backend.group import group_of


class Real:
    """The first CUDA device."""

    fake = False
    device = torch.device("cuda", 0)
    bytes = 32 << 20
    """Of a large tensor."""

    def __init__(self) -> None:
        torch.cuda.set_device(0)
        self.cuda: Any = torch.cuda
        self.card = accelerator.device_of(torch.empty(1, device=self.device))
        assert isinstance(self.card, CudaDevice)
        for _ in range(10):  # the clock rises with the work: the last one counts
            start = self.moment()
            torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
            end = self.moment()
            torch.cuda.synchronize()
        self._cycles_per_ms = 10_000_000 / start.elapsed_time(end)

    def join(self) -> None:
        """After init_process_group."""

    def tensor(self, plain: torch.Tensor) -> torch.Tensor:
        """On the device, filled on its current stream."""
        return plain.to(self.device)

    def fill(self, tensor: torch.Tensor, value: float, ms: float) -> None:
        """Gives the current stream a kernel of about so long, then one that fills |tensor|."""
        self.busy(ms)
        tensor.fill_(value)

    def busy(self, ms: float) -> None:
        torch.cuda._sleep(int(ms * self._cycles_per_ms))  # type: ignore[no-untyped-call]

    def moment(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        torch.cuda.synchronize()


class Fake:
    """Two ranks have one each. What torch itself does with a device (models, DDP, FSDP2) runs on the CPU."""

    fake = True
    device = torch.device("cpu")
    bytes = 64 << 10

    def __init__(self) -> None:
        self.card = Card()
        self.cuda: Any = self.card.fake
        accelerator._card_of = lambda tensor: self.card  # type: ignore[assignment]

    def join(self) -> None:
        """Gloo's collectives become those of a Gloo that knows the device, over the real one."""
        group: Any = group_of(None)
        inner = group._gloo

        class Exchange:
            def sum(self, number: int, mine: torch.Tensor) -> torch.Tensor:
                inner.allreduce([mine]).wait()
                return mine

        fake = FakeGloo(self.cuda, Exchange(), group.rank())  # type: ignore[arg-type]

        def allreduce(tensors: Any, opts: Any = None) -> Any:
            one = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
            return inner.allreduce(tensors, opts) if one.is_cpu else fake.allreduce(tensors, opts)

        class Both:
            def __init__(self) -> None:
                self.allreduce = allreduce

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        group._inner = Both()

    def tensor(self, plain: torch.Tensor) -> Any:
        return self.cuda.tensor(plain)

    def fill(self, tensor: Any, value: float, ms: float) -> None:
        self.busy(ms)
        tensor.fill_(value)

    def busy(self, ms: float) -> None:
        self.cuda.current_stream().give(lambda: time.sleep(ms / 1e3))

    def moment(self) -> FakeEvent:
        event: FakeEvent = self.cuda.current_stream().record_event()
        return event

    def wait(self) -> None:
        for stream in list(self.cuda.streams):
            stream.synchronize()
