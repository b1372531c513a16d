# SPDX-License-Identifier: Apache-2.0
"""Buckets of an accelerator on their way to the daemon: through pinned blocks of the arena, without holding up anybody.

    caller         queues the copy out on a side stream, behind what the current stream does; goes on
    background     waits until that copy has happened, starts the op on the block; next bucket
    when it ended  queues the copy back on another stream, and completes the Work's future in that stream's order

Ops are started in the order of the calls, by one thread at a time: ranks number their ops by that order. So there is
one queue for all devices of a group, and whatever else is called in the group (`Stages.drain`) first waits until all
buckets before it have started. That they end nobody waits for.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from ultima.base.errors import ResourceExhausted
from ultima.torch.backend.accelerator import Device, Event
from ultima.torch.backend.work import patience

if TYPE_CHECKING:
    from ultima import Job, Receipt

PAGE = mmap.PAGESIZE


class StagedWork:
    """An all-reduce of a tensor on an accelerator. What `UltimaWork` is for one on the CPU."""

    def __init__(self, tensor: torch.Tensor, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        self._tensor = tensor
        self._future = future
        self._error: Exception | None = None
        self.called = time.monotonic()
        self.over = threading.Event()
        """The copy back is with the device, or there will be none."""
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
    """The way from one accelerator to a group's daemon and back. |queue| starts the ops in the order of the calls."""

    def __init__(self, device: Device, queue: Queue) -> None:
        self._device = device
        self._queue = queue
        self._lock = threading.Lock()
        # Blocks that wait for their next bucket, by size, with the event after which they may be written.
        self._idle: dict[int, list[tuple[torch.Tensor, Event]]] = {}
        self._under_way: set[StagedWork] = set()
        self._closed = False

    def allreduce(self, tensor: torch.Tensor, job: Job, start: Callable[[torch.Tensor], Any]) -> StagedWork:
        """Starts reducing a tensor in place: |start| does so with memory of the |job|'s arena, and gives its Work.
        Raises ResourceExhausted when the arena has no room. What happens under way the work raises.
        """
        block, after = self._block(job, tensor.nbytes)
        host = block[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        try:
            copied = self._copy_out(host, tensor, after)
        except Exception:
            self._device.unpin(block)
            raise
        work = StagedWork(tensor, self._device.future([self._device.device]))

        def submit() -> None:
            try:
                copied.synchronize()
                inner = start(host)
            except Exception as error:
                self._device.unpin(block)
                self._fail(work, error)
                return
            inner.get_future().add_done_callback(lambda _: self._back(work, inner, tensor, host, block))

        with self._lock:
            self._under_way.add(work)
        self._queue.put(submit)
        return work

    def close(self) -> None:
        """No block is kept from now on."""
        self._closed = True
        self._give_back()

    def _give_back(self) -> None:
        """Gives the idle blocks back."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for blocks in idle.values():
            for block, event in blocks:
                with suppress(RuntimeError):  # of a device that has failed
                    event.synchronize()
                self._device.unpin(block)

    def _copy_out(self, host: torch.Tensor, tensor: torch.Tensor, after: Event | None) -> Event:
        mark = self._device.mark()
        with self._device.outbound(mark):
            if after is not None:
                self._device.follow(after)
            host.copy_(tensor, non_blocking=True)
            self._device.used_here(tensor)
            return self._device.mark()

    def _back(
        self, work: StagedWork, inner: Any, tensor: torch.Tensor, host: torch.Tensor, block: torch.Tensor
    ) -> None:
        work.receipts = list(getattr(inner, "receipts", ()))
        error = inner.exception()
        if error is not None:
            # The daemon may still write into the block: it is not used again.
            self._device.unpin(block)
            self._fail(work, error)
            return
        try:
            with self._device.inbound():
                tensor.copy_(host, non_blocking=True)
                self._device.used_here(tensor)
                back = self._device.mark()
        except Exception as failure:
            self._device.unpin(block)
            self._fail(work, failure)
            return
        self._over(work)
        with self._lock:
            self._idle.setdefault(block.nbytes, []).append((block, back))
        if self._closed:
            self._give_back()
        with self._device.inbound():
            work.succeed()

    def _over(self, work: StagedWork) -> None:
        with self._lock:
            self._under_way.discard(work)
        work.over.set()

    def _fail(self, work: StagedWork, error: Exception) -> None:
        """Tells the error once no bucket that was called so far writes to the device any more, or after `patience`: on
        another thread, since this may be a task of the queue, which later buckets wait for.
        """
        self._over(work)

        def tell() -> None:
            limit = patience(work.called)
            with self._lock:
                others = list(self._under_way)
            for other in others:
                other.over.wait(max(0.0, limit - time.monotonic()))
            with suppress(RuntimeError), self._device.inbound():  # of a device that has failed
                self._device.mark().synchronize()
            work.fail(error)

        self._queue.beside(tell)

    def _block(self, job: Job, nbytes: int) -> tuple[torch.Tensor, Event | None]:
        """Whole pages of the arena, pinned."""
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
            self._give_back()
            room = torch.from_numpy(job.empty(size + PAGE, "uint8"))
        start = -room.data_ptr() % PAGE
        block = room[start : start + size]
        self._device.pin(block)
        return block, None


class Queue:
    """Tasks that one thread at a time does, in their order. |run| gives a thread a task, which must not raise."""

    def __init__(self, run: Callable[[Callable[[], None]], None]) -> None:
        self._run = run
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._worker: int | None = None
        self.busy = False

    def put(self, task: Callable[[], None]) -> None:
        with self._changed:
            self._waiting.append(task)
            if self.busy:
                return
            self.busy = True
        self._run(self._work)

    def beside(self, task: Callable[[], None]) -> None:
        """Does |task| at once, in some other thread."""
        self._run(task)

    def drain(self) -> None:
        """Waits until all tasks have been done. Not in a task: that is one of them."""
        if self._worker != threading.get_ident():
            with self._changed:
                self._changed.wait_for(lambda: not self.busy)

    def _work(self) -> None:
        self._worker = threading.get_ident()
        while True:
            with self._changed:
                if not self._waiting:
                    self._worker, self.busy = None, False
                    self._changed.notify_all()
                    return
                task = self._waiting.popleft()
            task()
            del task  # it holds tensors


class Stages:
    """Those of one group, one for each of its accelerators. |run|: see `Queue`."""

    def __init__(self, run: Callable[[Callable[[], None]], None]) -> None:
        self._queue = Queue(run)
        self._lock = threading.Lock()
        self._found: dict[torch.device, Stage] = {}

    def of(self, device: Device) -> Stage:
        with self._lock:
            found = self._found.get(device.device)
            if found is None:
                found = self._found[device.device] = Stage(device, self._queue)
            return found

    def drain(self) -> None:
        """Waits until the ops of all buckets that were given to a stage have started. Other ops are called then."""
        if self._queue.busy:
            self._queue.drain()

    def close(self) -> None:
        """Before the arena is unmapped: the driver would take what is mapped there next for what it pinned."""
        with self._lock:
            stages = list(self._found.values())
        for stage in stages:
            stage.close()
