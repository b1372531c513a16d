# SPDX-License-Identifier: Apache-2.0
"""A collective of Gloo's, with a barrier of Ultima's before it whose note says what was called.

Gloo compares nothing. Ranks that call different things wait for its timeout, and so does whoever then leaves the group;
or they take one another's bytes for their own; or, where those are more than expected, Gloo ends the process. So it
gets no collective before the barrier has passed. A note costs no packet, and ranks that bring different ones all hear
of it (`Desync`).

Here the note holds what must be the same on all ranks of a collective, field by field. That of a barrier itself is 0.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from ultima.base.errors import ClosedHandle, Desync
from ultima.torch.backend.accelerator import NOWHERE, Course, Device
from ultima.torch.backend.delegate import DELEGATED, PEER_TO_PEER
from ultima.torch.backend.modes import in_mode_of_caller

if TYPE_CHECKING:
    from ultima import Handle

# Each stands for its place; what is not in the list is OTHER.
CALLS = ("barrier", "allreduce", *sorted({*DELEGATED.values()} - PEER_TO_PEER - {"barrier"}))
DTYPES = (
    "none", "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128", "complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
OPS = tuple(dist.ReduceOp.RedOpType.__members__)
OTHER = "another"

# The bits of each field of a note, from the highest. Larger numbers lose theirs, the same ones on all ranks.
BITS = {"collective": 5, "root": 13, "op": 4, "dtype": 6, "count": 36}
WORDS = {"collective": CALLS, "op": OPS, "dtype": DTYPES}

# Its sizes are each rank's own.
UNCOUNTED = frozenset({"alltoall_base"})


def note_of(call: str, args: Iterable[Any]) -> int:
    """The note of Gloo's collective |call| with |args|: root, reduction, and the elements' type and number.

    The number is that of the smallest tensor: where some ranks give more tensors than others, all of them give that.
    """
    given = list(args)
    tensors = list(_tensors(given))
    said = {"collective": _place(CALLS, call), "root": 0, "op": 0, "dtype": 0, "count": 0}
    if tensors:
        said["dtype"] = _place(DTYPES, str(tensors[0].dtype).removeprefix("torch."))
    if tensors and call not in UNCOUNTED:
        said["count"] = min(tensor.numel() for tensor in tensors)
    for each in given:  # torch's options, or the same as arguments of their own
        op = getattr(each, "reduceOp", each)
        op = getattr(op, "op", op)
        if isinstance(op, dist.ReduceOp.RedOpType):
            said["op"] = OPS.index(op.name)
        root = getattr(each, "rootRank", each)
        if isinstance(root, int):
            said["root"] = root
    note = 0
    for field, bits in BITS.items():
        note = note << bits | said[field] & (1 << bits) - 1
    return note


def in_words(error: Desync) -> Desync:
    """|error| of a barrier; where notes differ, with the first field of theirs that does."""
    if error.field != "note":
        return error
    mine, theirs = _fields(error.mine), _fields(error.theirs)
    field = next(field for field in BITS if mine[field] != theirs[field])
    return Desync(error.rank, field, mine[field], theirs[field], error.op_seq)


class Accompanied:
    """A collective of Gloo's on its way: first the ranks meet, then `begin` hands it to Gloo.

    Both may happen on another thread than the caller's. Gloo reads the tensors behind what the current streams of
    |devices|, those that hold them, have been given when this is made.
    """

    def __init__(
        self, call: str, met: Handle, begin: Callable[[], Work], line: Line, devices: Sequence[Device] = ()
    ) -> None:
        self.call = call
        self.met = met
        self.devices = devices
        self._begin = in_mode_of_caller(begin)
        self._course = Course(devices) if devices else NOWHERE
        self.work: Work | None = None
        self.error: Exception | None = None
        self._line = line
        line.join(self)

    def begin(self) -> Work:
        return self._course.beside(self._begin)

    def wait(self) -> None:
        self._line.serve(self)
        if self.error is not None:
            raise self.error
        work = self.work
        assert work is not None
        self._course.beside(work.wait)
        self._course.catch_up()


class Line:
    """Those of one group that Gloo has not got yet. It gets them in the order of the calls, by which it tells them
    apart, whoever waits for which; and none after one for which the ranks did not meet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Accompanied] = deque()
        self._broken = ""

    @property
    def idle(self) -> bool:
        """Whether Gloo has got all that was called, and would get the next."""
        return not self._waiting and not self._broken

    def join(self, last: Accompanied) -> None:
        self._waiting.append(last)

    def serve(self, wanted: Accompanied) -> None:
        """Returns when |wanted| is with Gloo, or has its error."""
        with self._lock:
            while wanted.work is None and wanted.error is None:
                first = self._waiting.popleft()
                try:
                    self._hand_over(first)
                except Exception as error:
                    first.error = error
                except BaseException:  # Ctrl-C
                    first.error = ClosedHandle(f"{first.call}: its wait was interrupted")
                    raise

    def _hand_over(self, first: Accompanied) -> None:
        before, self._broken = self._broken, self._broken or first.call
        try:
            first.met.wait()
        except Desync as error:
            if error.field != "collective":
                raise in_words(error) from None
            mine = f"{first.call} (Gloo's, with a barrier)"
            raise Desync(error.rank, "collective", mine, error.theirs, error.op_seq) from None
        if before:
            raise ClosedHandle(f"{first.call}: not every rank came to {before}, which was called before it")
        self._broken = ""
        first.work = first.begin()


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors(each)


def _place(words: tuple[str, ...], word: str) -> int:
    return words.index(word) if word in words else len(words)


def _fields(note: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, bits in reversed(BITS.items()):
        number, note = note & (1 << bits) - 1, note >> bits
        words = WORDS.get(field)
        found[field] = number if words is None else words[number] if number < len(words) else OTHER
    if found["collective"] != "barrier":
        found["collective"] += " (Gloo's)"
    return found
