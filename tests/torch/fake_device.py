# SPDX-License-Identifier: Apache-2.0
"""An accelerator that is none: `FakeCuda` stands for `torch.cuda`, and tensors on it lie in host memory.

What is done to such a tensor is done later, by the thread of the stream that was current then, in the order of that
stream alone. So whoever forgets to wait for an event finds old values, or sends them. A `Kernel` holds its stream up
until the test lets it go. Reading values (`tolist`, `item`) waits for the current stream, as on a real one.

`FakeGloo` does to such tensors what torch's Gloo does to those on CUDA: it reads them behind the stream that is current
when it is called, writes on a stream of its own, and its wait has the stream of the waiter wait for that one. Where
Gloo would take the address of such a tensor for one of the host's, `FakeGloo` raises AssertionError.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.fake_group import FakeGroup
from ultima.testing import FakeDaemon
from ultima.torch.backend import accelerator
from ultima.torch.backend.accelerator import CudaDevice

LONG_S = 20.0
SLOW_S = 0.03
"""How long a copy of Gloo's back to the device takes."""

AT_ONCE = frozenset(
    "detach view t as_strided reshape split size stride dim numel is_contiguous data_ptr element_size new_empty unbind"
    " storage_offset resolve_conj resolve_neg __getitem__ is_complex is_neg untyped_storage is_floating_point".split()
)
"""What a tensor says of itself, and views of it."""
READS = frozenset("tolist item __float__ cpu".split())


class FakeEvent:
    """`at`: when it came, in seconds of `time.perf_counter`."""

    def __init__(self) -> None:
        self._come = threading.Event()
        self.at = 0.0

    def come(self) -> None:
        self.at = time.perf_counter()
        self._come.set()

    def elapsed_time(self, later: FakeEvent) -> float:
        """In milliseconds, as torch has it."""
        return (later.at - self.at) * 1e3

    def synchronize(self) -> None:
        assert self._come.wait(LONG_S), "the moment of an event does not come"

    def query(self) -> bool:
        return self._come.is_set()


class FakeStream:
    """Does what it is given, one after the other, in a thread."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._given: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        cuda.streams.append(self)

    def give(self, act: Callable[[], object]) -> None:
        self._given.put(act)

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or FakeEvent()
        self.give(event.come)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self.give(event.synchronize)

    def wait_stream(self, other: FakeStream) -> None:
        if other is not self:
            self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def close(self) -> None:
        self._given.put(None)
        self._thread.join(LONG_S)

    def _work(self) -> None:
        while (act := self._given.get()) is not None:
            with torch.no_grad():
                act()


class FakeRuntime:
    """The calls of CUDA's runtime that are made directly. |refuses|: whether it pins nothing."""

    ALREADY, UNKNOWN, REFUSED = 712, 713, 801

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.refuses = False
        self.last = threading.local()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        overlaps = any(at < address + size and address < at + each for at, each in self.pinned.items())
        if self.refuses or overlaps:
            return self._failed(self.ALREADY if overlaps else self.REFUSED)
        self.pinned[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0 if self.pinned.pop(address, None) is not None else self._failed(self.UNKNOWN)

    def _failed(self, code: int) -> int:
        self.last.code = code
        return code

    def check_launch(self) -> None:
        """What torch does when it has started a kernel."""
        code, self.last.code = getattr(self.last, "code", 0), 0
        if code:
            raise RuntimeError(f"CUDA error {code}")


class FakeCuda:
    """What `CudaDevice` uses of `torch.cuda`. `close` ends its threads."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.runtime = FakeRuntime()
        self._here = threading.local()
        self._default = FakeStream(self)

    def Stream(self, device: Any = None) -> FakeStream:
        return FakeStream(self)

    def current_stream(self, device: Any = None) -> FakeStream:
        found: FakeStream = getattr(self._here, "stream", self._default)
        return found

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._here.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def device(self, device: Any) -> Any:
        return nullcontext()

    def cudart(self) -> FakeRuntime:
        return self.runtime

    def _sleep(self, cycles: int) -> None:
        self.runtime.check_launch()

    def kernel(self, act: Callable[[], object] = lambda: None) -> threading.Event:
        """Gives the current stream something that begins only when the event that comes back is set."""
        go = threading.Event()

        def held() -> None:
            assert go.wait(LONG_S), "the test has forgotten a kernel"
            act()

        self.current_stream().give(held)
        return go

    def tensor(self, plain: torch.Tensor) -> OnDevice:
        """|plain|'s memory as a tensor of this device."""
        made = plain.as_subclass(OnDevice)
        made.cuda_of = self
        return made

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


class OnDevice(torch.Tensor):
    """A tensor of a `FakeCuda`."""

    cuda_of: FakeCuda
    is_cpu = False  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        """Host memory is not given to anybody else while its tensor lives."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if getattr(func, "__module__", "") == dist.all_reduce.__module__:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        cuda = next(each.cuda_of for each in args if isinstance(each, OnDevice))
        stream = cuda.current_stream()
        plain = [each.as_subclass(torch.Tensor) if isinstance(each, OnDevice) else each for each in args]
        if name in READS:
            stream.synchronize()
            found = getattr(plain[0], name)(*plain[1:], **kwargs)
            return found.clone() if name == "cpu" else found
        if name == "__get__" or name in AT_ONCE or (name == "contiguous" and plain[0].is_contiguous()):
            return cls._on(cuda, func(*plain, **kwargs))
        if name in ("clone", "contiguous"):
            made = torch.empty(plain[0].shape, dtype=plain[0].dtype)
            stream.give(lambda: made.copy_(plain[0]))
            return cls._on(cuda, made)
        if not name.endswith("_") or name.startswith("__"):
            raise NotImplementedError(f"{name} on a fake device")
        blocking = name == "copy_" and not kwargs.pop("non_blocking", False)
        stream.give(lambda: getattr(plain[0], name)(*plain[1:], **kwargs))
        if blocking and not isinstance(args[0], OnDevice):
            stream.synchronize()
        return args[0]

    @classmethod
    def _on(cls, cuda: FakeCuda, found: Any) -> Any:
        if isinstance(found, torch.Tensor):
            return cuda.tensor(found)
        return type(found)(cls._on(cuda, each) for each in found) if isinstance(found, (list, tuple)) else found


class FakeFuture(torch.futures.Future):  # type: ignore[type-arg]
    """As torch's with devices: who waits takes up the order of the stream in which it was completed with tensors, and
    callbacks run in a stream of their own that has done so.
    """

    def __new__(cls, cuda: FakeCuda) -> FakeFuture:
        return super().__new__(cls)

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self._cuda = cuda
        self._event: FakeEvent | None = None

    def set_result(self, result: Any) -> None:
        if result is not None:
            self._event = self._cuda.current_stream().record_event()
        super().set_result(result)

    def wait(self) -> Any:
        found = super().wait()
        if self._event is not None:
            self._cuda.current_stream().wait_event(self._event)
        return found

    def then(self, callback: Callable[[Any], Any]) -> Any:
        child = FakeFuture(self._cuda)

        def act(_: Any) -> None:
            with self._cuda.stream(self._cuda.Stream()):
                if self._event is not None:
                    self._cuda.current_stream().wait_event(self._event)
                try:
                    found = callback(self)
                except Exception as error:
                    child.set_exception(error)
                else:
                    child.set_result(found)

        self.add_done_callback(act)
        return child


class Exchange:
    """Sums what |world| ranks bring to each collective, counted from 0. `sent`: what is on its way to them."""

    def __init__(self, world: int) -> None:
        self._world = world
        self.sent: list[SimpleQueue[tuple[int, torch.Tensor]]] = [SimpleQueue() for _ in range(world)]
        self._changed = threading.Condition()
        self._brought: dict[int, list[torch.Tensor]] = {}

    def sum(self, number: int, mine: torch.Tensor) -> torch.Tensor:
        with self._changed:
            brought = self._brought.setdefault(number, [])
            brought.append(mine)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(brought) == self._world, LONG_S)
        return sum(brought[1:], brought[0].clone())


class FakeGloo:
    """What Gloo does with tensors on a `FakeCuda`, one rank's. The wait of rank 1 has the stream wait that was current
    at the call, not that of the waiter: torch has done both.
    """

    def __init__(self, cuda: FakeCuda, exchange: Exchange, rank: int) -> None:
        self._cuda, self._exchange, self._rank = cuda, exchange, rank
        self._numbers = itertools.count()

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        (tensor,) = _on_host(tensors)
        self._exchange.sent[to].put((self._rank, tensor.clone()))
        return SimpleNamespace(wait=lambda: True)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self.recv_anysource(tensors, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        (tensor,) = _on_host(tensors)
        work = SimpleNamespace(source=None)

        def wait() -> bool:
            work.source, values = self._exchange.sent[self._rank].get(timeout=LONG_S)
            tensor.copy_(values)
            return True

        work.wait, work._source_rank = wait, lambda: work.source
        return work

    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        mine = torch.cat([tensor.reshape(-1) for tensor in _on_host(inputs)])
        rows = mine.new_zeros(len(outputs), mine.numel())
        rows[self._rank] = mine
        rows = self._exchange.sum(next(self._numbers), rows)
        sizes = [tensor.numel() for tensor in inputs]
        for row, targets in zip(rows, outputs, strict=True):
            for target, values in zip(_on_host(targets), row.split(sizes), strict=True):
                target.copy_(values.view(target.shape))
        return SimpleNamespace(wait=lambda: True)

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        if opts.reduceOp == dist.ReduceOp.AVG:
            raise RuntimeError("Cannot use ReduceOp.AVG with Gloo")
        (tensor,), stream, caller = tensors, self._cuda.Stream(), self._cuda.current_stream()
        stream.wait_event(caller.record_event())
        device, host = tensor.as_subclass(torch.Tensor), torch.empty(tensor.shape, dtype=tensor.dtype)
        stream.give(lambda: host.copy_(device))
        back: list[FakeEvent] = []
        number = next(self._numbers)

        def run() -> None:
            stream.synchronize()
            total = self._exchange.sum(number, host)
            stream.give(lambda: time.sleep(SLOW_S))
            stream.give(lambda: device.copy_(total))
            back.append(stream.record_event())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def wait() -> bool:
            thread.join(LONG_S)
            (caller if self._rank == 1 else self._cuda.current_stream()).wait_event(back[0])
            return True

        return SimpleNamespace(wait=wait)


def _on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    assert not any(isinstance(tensor, OnDevice) for tensor in tensors), "Gloo takes this for an address of the host's"
    return tensors


class Card(CudaDevice):
    """The product's own device over a `FakeCuda`."""

    def __init__(self) -> None:
        self.fake = FakeCuda()
        super().__init__(torch.device("cpu"), self.fake)

    def future(self, devices: Sequence[torch.device]) -> Any:
        return FakeFuture(self.fake)


class Rank:
    """One of two ranks, with a device of its own."""

    def __init__(self, daemon: FakeDaemon, rank: int, exchange: Exchange) -> None:
        self.rank = rank
        self.card = Card()
        self.cuda = self.card.fake
        self.group = FakeGroup(daemon.connect(rank, arena="1M"))
        self.group._inner = FakeGloo(self.cuda, exchange, rank)  # type: ignore[assignment]

    def tensor(self, *values: float) -> OnDevice:
        return self.cuda.tensor(torch.tensor(values))


@contextmanager
def two_ranks() -> Iterator[list[Rank]]:
    """Over one fake daemon. Each thread's tensors are those of its rank's device."""
    with FakeDaemon(world_size=2) as daemon:
        exchange, card_of = Exchange(2), accelerator._card_of
        found = [Rank(daemon, rank, exchange) for rank in range(2)]
        cards = {rank.cuda: rank.card for rank in found}
        accelerator._card_of = lambda tensor: cards[tensor.cuda_of]  # type: ignore[attr-defined]
        try:
            yield found
        finally:
            accelerator._card_of = card_of
            for rank in found:
                rank.cuda.close()
