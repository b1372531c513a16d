# SPDX-License-Identifier: Apache-2.0
"""What depends on an accelerator: the order of its streams, and host memory that it copies without holding up anybody.

An accelerator does what it is given later, stream by stream; a thread gives to the stream that is its current one. What
one stream does comes before or after what another does only where one of them was told to wait for an event of the
other. So whatever happens here on another thread than the caller's names three moments: it begins behind what the
caller's stream was given before the call, it has streams of its own, and whoever waits for it takes up their order.

CUDA alone (and ROCm, which torch calls so): `CudaDevice`, which asks nothing of torch but what is in `torch.cuda`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Protocol, TypeVar

import torch

Result = TypeVar("Result")


class Event(Protocol):
    """A moment in the order of a stream."""

    def synchronize(self) -> None:
        """Waits until it has come."""


class Device(Protocol):
    """An accelerator with streams of its own: one for each direction, and one for what others do."""

    device: torch.device

    def mark(self) -> Event:
        """The moment after all that the current stream has been given so far."""

    def outbound(self, after: Event | None = None) -> AbstractContextManager[None]:
        """Makes the stream of what leaves the device the current one, behind |after|."""

    def beside(self, after: Event) -> AbstractContextManager[None]:
        """Makes the stream of what others do the current one, behind |after|."""

    def inbound(self, after: Event | None = None) -> AbstractContextManager[None]:
        """Makes the stream of what comes to the device the current one, behind |after|."""

    def follow(self, event: Event) -> None:
        """Has the current stream wait for |event|."""

    def take_up(self) -> None:
        """Has the current stream wait for all that came to the device so far."""

    def used_here(self, tensor: torch.Tensor) -> None:
        """The memory of |tensor| is given to nobody else before what the current stream was given so far is done."""

    def pin(self, block: torch.Tensor) -> None:
        """Makes host memory, whole pages of it, such that copies of it need not be waited for. Where that is refused
        they are slower, and else the same.
        """

    def unpin(self, block: torch.Tensor) -> None:
        """Undoes `pin`, whatever became of it."""

    def future(self, devices: Sequence[torch.device]) -> torch.futures.Future[Any]:
        """One whose waiters take up the order of the streams, on |devices|, in which it is completed."""


class CudaDevice:
    """A CUDA device. See `Device`. |cuda| is `torch.cuda`."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device = device
        self._cuda = cuda
        self._out = cuda.Stream(device)
        self._beside = cuda.Stream(device)
        self._in = cuda.Stream(device)
        self._runtime = cuda.cudart()
        self._pinned: set[int] = set()

    def mark(self) -> Event:
        event: Event = self._cuda.current_stream(self.device).record_event()
        return event

    @contextmanager
    def outbound(self, after: Event | None = None) -> Iterator[None]:
        if after is not None:
            self._out.wait_event(after)
        with self._cuda.stream(self._out):
            yield

    @contextmanager
    def beside(self, after: Event) -> Iterator[None]:
        self._beside.wait_event(after)
        with self._cuda.stream(self._beside):
            yield

    @contextmanager
    def inbound(self, after: Event | None = None) -> Iterator[None]:
        if after is not None:
            self._in.wait_event(after)
        with self._cuda.stream(self._in):
            yield

    def follow(self, event: Event) -> None:
        self._cuda.current_stream(self.device).wait_event(event)

    def take_up(self) -> None:
        self._cuda.current_stream(self.device).wait_stream(self._in)

    def used_here(self, tensor: torch.Tensor) -> None:
        stream = self._cuda.current_stream(self.device)
        for part in [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]:
            part.record_stream(stream)

    def pin(self, block: torch.Tensor) -> None:
        with self._cuda.device(self.device):
            if int(self._runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0)) == 0:
                self._pinned.add(block.data_ptr())
            else:
                self._forget_error()

    def unpin(self, block: torch.Tensor) -> None:
        if block.data_ptr() not in self._pinned:
            return
        self._pinned.discard(block.data_ptr())
        with self._cuda.device(self.device):
            if int(self._runtime.cudaHostUnregister(block.data_ptr())) != 0:
                self._forget_error()

    def future(self, devices: Sequence[torch.device]) -> torch.futures.Future[Any]:
        return torch.futures.Future(devices=list(devices))

    def _forget_error(self) -> None:
        """The runtime keeps a thread's last error, and torch takes it for that of the next kernel it starts. So one is
        started here. An error that ends the device comes back at every call: nothing is lost.
        """
        with suppress(RuntimeError):
            self._cuda._sleep(1)


_known: dict[torch.device, Device] = {}
_lock = threading.Lock()


def device_of(tensor: torch.Tensor) -> Device | None:
    """The accelerator that holds |tensor|; None for the CPU, and for those that are not known here."""
    return None if tensor.is_cpu or not tensor.is_cuda else _card_of(tensor)


def _card_of(tensor: torch.Tensor) -> Device:
    with _lock:
        found = _known.get(tensor.device)
        if found is None:
            found = _known[tensor.device] = CudaDevice(tensor.device)
    return found


def devices_of(given: Any) -> list[Device]:
    """The accelerators of all tensors in |given|, a tensor or lists of them, each once."""
    found: list[Device] = []
    if type(given) is list and len(given) == 1 and isinstance(given[0], torch.Tensor) and given[0].is_cpu:
        return found  # the usual case, in less time
    _gather(given, found)
    return found


def _gather(given: Any, found: list[Device]) -> None:
    if isinstance(given, torch.Tensor):
        if not given.is_cpu:
            device = device_of(given)
            if device is not None and device not in found:
                found.append(device)
    elif isinstance(given, (list, tuple)):
        for each in given:
            _gather(each, found)


class Course:
    """What is called on one thread and done on another, on |devices|: made at the call."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = list(devices)
        self._marks = [device.mark() for device in self.devices]

    def beside(self, act: Callable[[], Result]) -> Result:
        """What |act| gives, of a library that knows of streams by the current ones alone. They are behind the call, and
        the same each time: it may remember them.
        """
        with ExitStack() as stack:
            for device, mark in zip(self.devices, self._marks, strict=True):
                stack.enter_context(device.beside(mark))
            try:
                return act()
            finally:
                self._marks = [device.mark() for device in self.devices]

    def end(self) -> AbstractContextManager[object]:
        """In it the current streams are those whose order `take_up` takes up, behind the call."""
        stack = ExitStack()
        for device, mark in zip(self.devices, self._marks, strict=True):
            stack.enter_context(device.inbound(mark))
        return stack

    def catch_up(self) -> None:
        """The current streams wait for what was done `beside`."""
        for device, mark in zip(self.devices, self._marks, strict=True):
            device.follow(mark)

    def take_up(self, tensors: Iterable[Any]) -> None:
        """The current streams wait for all that was done in `end`. |tensors|: the result."""
        for device in self.devices:
            device.take_up()
        for tensor in tensors:
            # A sparse result brings memory of its own, and that is of another stream.
            if isinstance(tensor, torch.Tensor) and tensor.is_sparse and (holder := device_of(tensor)):
                holder.used_here(tensor)

    def future(self) -> torch.futures.Future[Any]:
        """One that is completed in `end`, and whose waiters take up that order."""
        if not self.devices:
            return torch.futures.Future()
        return self.devices[0].future([device.device for device in self.devices])


NOWHERE = Course(())
"""That of a call whose tensors are all on the CPU."""
