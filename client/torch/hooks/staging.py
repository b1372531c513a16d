# SPDX-License-Identifier: Apache-2.0
"""Buckets of an accelerator on their way to the daemon: through pinned blocks of the arena, without holding up anybody.

    caller         queues the copy out on a side stream, behind what the current stream does; goes on
    background     waits until that copy has happened, starts the op on the block; next bucket
    when it ended  queues the copy back on another stream, and completes the Work's future in that stream's order

Ops are started in the order of the calls, by one thread at a time: ranks number their ops by that order. So while
staged buckets are under way nobody else may start ops in the same group; DDP and `HookState` keep to that, for they
wait for the buckets first.

What depends on the accelerator is in `CudaDevice` alone.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ultima.base.durations import Duration
from ultima.base.errors import ClosedHandle, ResourceExhausted

if TYPE_CHECKING:
    from ultima import Receipt
    from ultima.torch.backend.group import UltimaProcessGroup

PAGE = mmap.PAGESIZE


class Event(Protocol):
    """A moment in the order of a stream."""

    def synchronize(self) -> None:
        """Waits until it has come."""


class Device(Protocol):
    """An accelerator with two streams of its own, one for each direction."""

    def pin(self, block: torch.Tensor) -> None:
        """Makes host memory, whole pages of it, such that copies of it need not be waited for."""

    def unpin(self, block: torch.Tensor) -> None: ...

    def to_host(self, host: torch.Tensor, tensor: torch.Tensor, after: Event | None) -> Event:
        """Queues a copy behind what the current stream has been given, and behind |after|."""

    def to_device(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queues a copy."""

    def behind_copies(self, act: Callable[[], None]) -> None:
        """Calls |act| at once, with the stream of the copies to the device as the current one."""

    def future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """One whose waiters take up the order of the stream in which it is completed."""


class StagedWork:
    """An all-reduce of a tensor on an accelerator. What `UltimaWork` is for one on the CPU."""

    def __init__(self, tensor: torch.Tensor, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        self._tensor = tensor
        self._future = future
        self._error: Exception | None = None
        self.receipts: list[Receipt] = []

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future

    def wait(self) -> bool:
        """True when the current stream will see the average in the tensor. Raises what the op raised."""
        self._future.wait()
        return True

    def is_success(self) -> bool:
        return self._future.done() and self._error is None

    def succeed(self) -> None:
        self._future.set_result([self._tensor])

    def fail(self, error: Exception) -> None:
        self._error = error
        self._future.set_exception(error)  # type: ignore[arg-type]  # torch annotates it so


class Stage:
    """The way from one accelerator to a process group's daemon and back."""

    def __init__(self, group: UltimaProcessGroup, device: Device) -> None:
        self._group = group
        self._device = device
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._submitting = False
        # Blocks that wait for their next bucket, by size, with the event after which they may be written.
        self._idle: dict[int, list[tuple[torch.Tensor, Event]]] = {}

    def allreduce(self, tensor: torch.Tensor, mode: str | None, deadline: Duration | None) -> StagedWork:
        """Starts averaging a tensor in place. Raises ResourceExhausted when the arena has no room for it, ClosedHandle
        when the group was destroyed. What happens under way the work raises.
        """
        block, after = self._block(tensor.nbytes)
        host = block[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        copied = self._device.to_host(host, tensor, after)
        work = StagedWork(tensor, self._device.future())

        def submit() -> None:
            try:
                copied.synchronize()
                inner = self._group.allreduce_with(host, mode=mode, deadline=deadline)
            except Exception as error:
                self._device.unpin(block)
                work.fail(error)
                return
            inner.get_future().add_done_callback(lambda done: self._back(work, inner, tensor, host, block))

        with self._lock:
            self._waiting.append(submit)
            if self._submitting:
                return work
            self._submitting = True
        self._group.in_background(self._submit_all)
        return work

    def close(self) -> None:
        """Gives the idle blocks back."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for blocks in idle.values():
            for block, event in blocks:
                event.synchronize()
                self._device.unpin(block)

    def _submit_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._submitting = False
                    return
                submit = self._waiting.popleft()
            submit()

    def _back(
        self, work: StagedWork, inner: Any, tensor: torch.Tensor, host: torch.Tensor, block: torch.Tensor
    ) -> None:
        work.receipts = list(getattr(inner, "receipts", ()))
        error = inner.exception()
        if error is not None:
            # The daemon may still write into the block: it is not used again.
            self._device.unpin(block)
            work.fail(error)
            return
        try:
            back = self._device.to_device(tensor, host)
        except Exception as failure:
            work.fail(failure)
            return
        with self._lock:
            self._idle.setdefault(block.nbytes, []).append((block, back))
        self._device.behind_copies(work.succeed)

    def _block(self, nbytes: int) -> tuple[torch.Tensor, Event | None]:
        """Whole pages of the arena, pinned."""
        job = self._group.job
        if job is None:
            raise ClosedHandle("the process group was destroyed, or has one rank")
        size = max(1, -(-nbytes // PAGE)) * PAGE
        with self._lock:
            idle = self._idle.get(size, [])
            while idle:
                block, event = idle.pop()
                if job.holds(block.data_ptr(), block.nbytes):
                    return block, event
                self._device.unpin(block)  # of a session that was lost
        try:
            room = torch.from_numpy(job.empty(size + PAGE, "uint8"))
        except ResourceExhausted:
            self.close()
            room = torch.from_numpy(job.empty(size + PAGE, "uint8"))
        start = -room.data_ptr() % PAGE
        block = room[start : start + size]
        self._device.pin(block)
        return block, None


class CudaDevice:
    """A CUDA (or ROCm) device. See `Device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def pin(self, block: torch.Tensor) -> None:
        # Where the driver refuses, copies are slower and else the same.
        self._runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0)

    def unpin(self, block: torch.Tensor) -> None:
        self._runtime.cudaHostUnregister(block.data_ptr())

    def to_host(self, host: torch.Tensor, tensor: torch.Tensor, after: Event | None) -> Event:
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        if after is not None:
            self._out.wait_event(after)
        with torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._out)
        event: Event = self._out.record_event()
        return event

    def to_device(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        with torch.cuda.stream(self._in):
            tensor.copy_(host, non_blocking=True)
            tensor.record_stream(self._in)
        event: Event = self._in.record_event()
        return event

    def behind_copies(self, act: Callable[[], None]) -> None:
        with torch.cuda.stream(self._in):
            act()

    def future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return torch.futures.Future(devices=[self._device])
