# SPDX-License-Identifier: Apache-2.0
"""A collective under way, as torch sees it: a Work that holds a Future.

Somebody has to wait for the ops and fill the Future, since DDP waits for it in C++: a thread of `Finishers`, as soon as
somebody asks for the Future, or wants to know how far it is. Until then whoever calls `wait` finishes it himself, which
saves two switches of thread; what a small op takes is mostly those.

Callbacks of a Future run in the thread that fills it, and some hooks (PowerSGD's) start an op there and wait for it.
One thread for all would then wait for itself: so there are as many as ops are being finished at once, and they stay
for reuse.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C._distributed_c10d import Work

from ultima.api.handle import Handle
from ultima.base.errors import ClosedHandle, DaemonError, Desync, NotDone, RanksGone, TimedOut
from ultima.base.receipt import Status
from ultima.torch.backend.accelerator import NOWHERE, Course, Device, devices_of
from ultima.torch.backend.modes import in_mode_of_caller
from ultima.torch.backend.order import Order
from ultima.torch.backend.receipt_log import ReceiptLog

if TYPE_CHECKING:
    from ultima import Receipt


CLOSE_S = 1.0
BY_WORK = (DaemonError, Desync, RanksGone, TimedOut)
"""What becomes of a collective although it was called rightly: the Work raises it, and not the call. After a call that
raises DDP takes no further step, and the daemon may be back by then."""


def patience(called: float) -> float:
    """Until when (time.monotonic) the error of what was |called| then is kept from its Future for the sake of what else
    is under way. DDP gives a backward pass up with the first bucket that failed, and the next pass writes where later
    buckets still may. Those were called with this one, so they end about as soon.
    """
    now = time.monotonic()
    return now + (now - called) + CLOSE_S


class Finishers:
    """Threads that each run one task at a time; a new one starts when none is idle. They never hold up the process's
    end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._idle = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def run(self, task: Callable[[], None]) -> None:
        """Runs |task|, which must not raise, in some thread, at once; in the caller's own after `close`, and where the
        system has no further thread.
        """
        if not self.offer(task):
            task()

    def offer(self, task: Callable[[], object]) -> bool:
        """As `run`, but does nothing and returns False where there is no thread for it."""
        with self._lock:
            taken = not self._closed and self._have_one()
            if taken:
                self._tasks.put(task)
        return taken

    def _have_one(self) -> bool:
        """Under the lock: takes an idle thread, or a new one; False where none can be started."""
        if self._idle:
            self._idle -= 1
            return True
        thread = threading.Thread(target=self._work, name=f"ultima-torch-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # a limit of the container, or of the user
            return False
        self._threads.append(thread)
        return True

    def close(self) -> None:
        """Lets the threads end when they have done what they were given, and waits for them, but not for long.

        A thread that came back from C++ only while the interpreter ends would take the process down with it.
        """
        with self._lock:
            threads, self._threads, self._idle, self._closed = self._threads, [], 0, True
        for _ in threads:
            self._tasks.put(None)
        limit = time.monotonic() + CLOSE_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it holds tensors, and the next one may be long in coming
            with self._lock:
                self._idle += 1


class Part(Protocol):
    """Something to wait for: a Handle of Ultima's, or what `TorchPart` makes of another Work."""

    def wait(self) -> Receipt | None: ...


class TorchPart:
    """Another Work: torch's own, of which there is no receipt, or one of ours, which keeps its own."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.devices: Sequence[Device] = work.course.devices if isinstance(work, UltimaWork) else ()

    def wait(self) -> None:
        if isinstance(self._work, UltimaWork):
            self._work.wait_alone()
        else:
            self._work.wait()


class Failed:
    """A part that could not be started: |error| says why."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error


class UltimaWork(Work):
    """A collective in one or several parts. |copy_back| runs when all have succeeded; |tensors| is its result."""

    def __init__(
        self,
        tensors: list[Any],
        parts: Sequence[Part],
        copy_back: Callable[[], None] | None,
        log: ReceiptLog,
        finishers: Finishers,
        order: Order | None = None,
    ) -> None:
        """|order|: of its group's works; None for one that stands alone."""
        super().__init__()
        self._tensors = tensors
        self._parts = parts
        devices = devices_of(tensors)
        for part in parts:
            if type(part) is not Handle:
                devices += [device for device in getattr(part, "devices", ()) if device not in devices]
        self.course = Course(devices) if devices else NOWHERE
        """Where its results come to be, whoever finishes it."""
        self._copy_back = copy_back and in_mode_of_caller(copy_back)
        self._log = log
        self._finishers = finishers
        self._future: torch.futures.Future[list[Any]] | None = None
        self._source: torch.futures.Future[None] | None = None
        """Its completion runs `_outcome`, whose end is that of the Future."""
        self._error: Exception | None = None
        self._started = self._over = False
        self._called = time.monotonic()
        # Held by whoever finishes it, or hands it to a thread. Nobody runs foreign code with it.
        self._turn = threading.Lock()
        # Between the end and the first who asks for the Future: exactly one of them fills it.
        self._end = threading.Lock()
        self._order = Order(finishers.offer) if order is None else order
        self.number = self._order.next_number()
        self.receipts: list[Receipt] = []
        """The accounts of its ops, once it has ended: one, or more where the tensor was larger than a bucket may be."""
        self._done = False

    def __del__(self) -> None:
        if not getattr(self, "_done", True):  # it has none where the constructor failed
            self._order.drop(self)

    def start(self) -> None:
        """Has a thread finish it. Does nothing when somebody is at it already."""
        if self._over or self._started or not self._turn.acquire(blocking=False):
            return
        self._started = True
        try:
            taken = self._finishers.offer(self._go_on)
        except BaseException:  # Ctrl-C
            self._started = False
            self._turn.release()
            raise
        if not taken:
            self._go_on()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns True when the result is in the tensor, and those of all that was called earlier in theirs. Raises
        what the op raised, or NotDone after |timeout| (0: never).
        """
        seconds = timeout.total_seconds()
        if not self.end(time.monotonic() + seconds if seconds > 0 else None):
            raise NotDone(f"the collective has not ended within {seconds:g} s; it goes on")
        if self.course is not NOWHERE:
            self.course.take_up(self._tensors)
        if self._error is not None:
            raise self._error
        return True

    def wait_alone(self) -> None:
        """As `wait`, for a part of another work: what was called earlier is waited for by the whole."""
        self._turn.acquire()
        self._finish()
        if self.course is not NOWHERE:
            self.course.take_up(self._tensors)
        if self._error is not None:
            raise self._error

    def end(self, limit: float | None = None) -> bool:
        """See `Ordered.end`."""
        if limit is None:
            self._turn.acquire()
        else:
            self.start()
            if not self._turn.acquire(timeout=max(0.0, limit - time.monotonic())):
                return False
        return self._go_on(limit)

    def finish(self, limit: float) -> bool:
        """See `Ordered.finish`."""
        self.start()
        if not self._turn.acquire(timeout=max(0.0, limit - time.monotonic())):
            return False
        self._finish()
        return True

    def get_future(self) -> torch.futures.Future[list[Any]]:
        with self._end:
            future = self._future
            late = future is None and self._over
            if future is None:
                self._source = self.course.future()
                future = self._future = self._source.then(self._outcome)
        if late:
            _complete(self._source)
        else:
            self.start()
        return future

    def is_completed(self) -> bool:
        self.start()
        return self._over

    def is_success(self) -> bool:
        return self._over and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[Any]:
        """The tensors; waits for them."""
        self.wait()
        return self._tensors

    def synchronize(self) -> None:
        self.wait()

    def _go_on(self, limit: float | None = None) -> bool:
        """With the turn, which it gives up: finishes it and what came before it, then fills the Future."""
        try:
            self._finish()
            if not self._order.end_before(self, limit):
                return False
            if self._error is not None and self._source is not None:
                most = patience(self._called)
                self._order.finish_all(most if limit is None else min(most, limit))
        except BaseException:
            self._settle()
            raise
        self._settle()
        return True

    def _finish(self) -> None:
        """With the turn, which it gives up: waits for every part, even after one has failed: until then the daemon may
        still write into the tensor. Does nothing when that was done.
        """
        try:
            if self._done:
                return
            if self.course is NOWHERE:
                self._carry_out()
            else:
                with self.course.end():
                    self._carry_out()
        except Exception as error:
            self._error = error
        except BaseException as error:  # Ctrl-C in the caller's wait: others may wait for the Future
            self._error = ClosedHandle(f"the wait was interrupted ({type(error).__name__})")
            raise
        finally:
            if not self._done:
                self._done = True
                self._order.leave(self)
            self._turn.release()

    def _carry_out(self) -> None:
        for part in self._parts:
            self._finish_part(part)
        self._parts = ()
        if self._error is None and self._copy_back is not None:
            self._copy_back()

    def _settle(self) -> None:
        """It is over for everybody."""
        with self._end:
            source = None if self._over else self._source
            self._over = True
        _complete(source)

    def _outcome(self, _: torch.futures.Future[None]) -> list[Any]:
        """The value of the Future. What a callback raises is an error to C++ too. `Future.set_exception` makes one for
        Python alone: to DDP the exception is the result, in which it reads a tensor, and the process ends.
        """
        self.course.take_up(())
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._tensors

    def _finish_part(self, part: Part) -> None:
        try:
            receipt = part.wait()
        except Exception as error:
            self._error = self._error or error
            self._log.add_failure(error)
        else:
            if receipt is not None:
                self.receipts.append(receipt)
                self._log.add(receipt)
                if receipt.status is Status.INSUFFICIENT:
                    self._error = self._error or self._told(self._log.on_insufficient, receipt)
                elif receipt.status is Status.PARTIAL:
                    self._error = self._error or self._told(self._log.on_partial, receipt)

    @staticmethod
    def _told(tell: Callable[[Receipt], Exception | None], receipt: Receipt) -> Exception | None:
        """What |tell| says of an op that is not whole, if it is an error."""
        try:
            return tell(receipt)
        except Warning as told:  # where the program's filters make errors of warnings
            return told


class Received(UltimaWork):
    """What another rank sends, received by torch's |work| in other memory first. It stands alone: who waits for what
    was called later does not wait for it, since the other rank may send it later still.
    """

    def __init__(
        self,
        tensors: list[Any],
        work: Work,
        copy_back: Callable[[], None],
        log: ReceiptLog,
        finishers: Finishers,
    ) -> None:
        super().__init__(tensors, [TorchPart(work)], copy_back, log, finishers)
        self._work = work

    def _source_rank(self) -> int:
        return self._work._source_rank()


def _complete(source: torch.futures.Future[None] | None) -> None:
    if source is not None:
        source.set_result(None)
