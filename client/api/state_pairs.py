# SPDX-License-Identifier: Apache-2.0
"""Parts of a state as ops: in a job of two ranks, of who gives and who takes, beside the job itself.

A message between ranks passes two daemons and costs all four processes many times the CPU time of an op of its bytes.
So who takes asks in a message for such a job, and in it for parts: rank 1 broadcasts their numbers, and rank 0 the
parts, a few in each op. Who follows asks for results too, of which rank 0 says the size first. Where no such job comes
about, as with an older program, without memory left, or where UDP does not get through, all comes in messages.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ultima.api.collectives import Collectives
from ultima.api.connection import Connection
from ultima.api.every_job import EveryJob
from ultima.api.handle import Handle
from ultima.base.buffers import AnyArray
from ultima.base.errors import ClosedHandle, UltimaError
from ultima.session.attachment import StateLine
from ultima.session.op import Op
from ultima.settings.config import Settings
from ultima.state.fetching import AT_ONCE
from ultima.state.listing import PART_BYTES
from ultima.state.results import HEAD_BYTES_MAX, RUN_BYTES, Kind
from ultima.v1.limits import BUCKET_BYTES_MAX, JOB_NAME_MAX

YES = b"1"
OP_PARTS = 2  # in one op: while it is checked, the next one is on its way
FORM_S = 5.0  # for both to come
PATIENCE_S = 1.0  # that who takes waits for that; then parts come in messages until it is so
OP_S = 10.0  # without any op ended: the other end is gone, or UDP does not get through
IDLE_S = 3600.0  # that who gives waits for the next question, at most as long as it gives at all
PAIRS_MAX = 8  # of one who gives, at once
CLOSE_S = 0.1  # for the daemon to hear that a job is left: who does not say it hangs up
YIELD_LOOK_S = 0.001
YIELD_TIMES, YIELD_MAX_S = 10, 1.0  # parts wait at most as many times as long as the last ones took, and never longer
NUMBER_BITS = 40
OP_BYTES = OP_PARTS * PART_BYTES
ARENA_BYTES = AT_ONCE * PART_BYTES + OP_BYTES
OPEN_OPS = AT_ONCE // OP_PARTS
RESULTS_BYTES_MAX = BUCKET_BYTES_MAX + RUN_BYTES + HEAD_BYTES_MAX
END, PARTS, RESULTS = range(3)  # what a question asks for
WORDS = 1 + AT_ONCE  # of a question: that, and numbers of parts, or of an op


class PairJob(EveryJob, Collectives):
    """What such a job needs of a Job."""

    def _launch(self, request: Op) -> Handle:
        return Handle(self._connection.begin(request), request)


def _join(connection: Connection, number: int, rank: int, place: str) -> PairJob:
    """Raises UltimaError."""
    own = connection.settings
    suffix = f"/state/{number:010x}"
    settings = Settings(
        job=own.job[: JOB_NAME_MAX - len(suffix)] + suffix,
        rank=rank,
        world_size=2,
        socket=own.socket,
        rendezvous=place,
        rank_addresses=(),
        timeout_s=FORM_S,
        deadline_s=OP_S,
        arena_bytes=ARENA_BYTES,
        bucket_bytes_max=OP_BYTES,
        rate_bytes_per_s=own.rate_bytes_per_s,
        reconnect=False,
        secret=own.secret,
    )
    return PairJob(Connection(settings, connection.connector))


class PairsGiven:
    """The jobs in which one rank gives its state. They end with those who take, and at the latest with `end`."""

    def __init__(
        self,
        connection: Connection,
        line: StateLine,
        part: Callable[[int], bytes],
        results: Callable[[int], bytes] = lambda op_seq: b"",
        yields: Callable[[], bool] | None = None,
    ) -> None:
        """part: the bytes of a part; none for one that there is not. results: of ops from that one on. yields: whether
        parts are to wait just now, as ops of the rank are under way."""
        self._connection, self._line, self._part, self._results = connection, line, part, results
        self._gives_way, self._yields = yields is not None, yields or (lambda: False)
        self._guard = threading.Lock()
        """Held while parts are read: after `end` the arrays may change."""
        self._over = False
        self._jobs: set[PairJob] = set()
        self._count = 0

    def begin(self, number: int, place: str) -> bytes:
        """A rank asks for one; the answer."""
        with self._guard:
            if self._over or self._count >= PAIRS_MAX:
                return b""
            self._count += 1
        threading.Thread(target=self._work, args=(number, place), name="ultima-state-pair", daemon=True).start()
        return YES

    def end(self) -> None:
        """Gives nothing any more."""
        self._over = True
        with self._guard:
            jobs = tuple(self._jobs)
        for job in jobs:
            job.close(CLOSE_S)

    def _work(self, number: int, place: str) -> None:
        try:
            with contextlib.suppress(UltimaError), _join(self._connection, number, 0, place) as job:
                with self._guard:
                    self._jobs.add(job)
                try:
                    while not self._over and self._serve(job):
                        pass
                finally:
                    with self._guard:
                        self._jobs.discard(job)
        finally:
            with self._guard:
                self._count -= 1

    def _serve(self, job: PairJob) -> bool:
        """Answers one question. Raises UltimaError."""
        asked = np.empty(WORDS, np.int64)
        job.broadcast(asked, 1, deadline=IDLE_S)
        what, numbers = int(asked[0]), [int(each) for each in asked[1:] if each >= 0]
        if what == PARTS:
            runs = [numbers[at : at + OP_PARTS] for at in range(0, len(numbers), OP_PARTS)]
            self._send(job, ((len(run) * PART_BYTES, map(self._part, run)) for run in runs), self._gives_way)
        elif what == RESULTS and numbers:
            data = memoryview(self._results(numbers[0]))
            job.broadcast(np.array([len(data)]), 0, deadline=OP_S)
            cuts = [data[at : at + OP_BYTES] for at in range(0, len(data), OP_BYTES)]
            self._send(job, ((len(cut), [cut]) for cut in cuts), gives_way=False)
        return what != END

    def _send(self, job: PairJob, boxes: Iterable[tuple[int, Iterable[Any]]], gives_way: bool) -> None:
        """Ops of so many bytes, with pieces of which each begins at a multiple of PART_BYTES. gives_way: ops of the
        rank itself go first."""
        going, took = deque[Handle](), 0.0
        for size, pieces in boxes:
            began = time.monotonic()
            while len(going) >= (1 if gives_way else OPEN_OPS):
                going.popleft().wait()
                took = time.monotonic() - began
            limit = time.monotonic() + min(YIELD_MAX_S, YIELD_TIMES * took)
            while gives_way and self._yields() and time.monotonic() < limit:
                time.sleep(YIELD_LOOK_S)
            box = job.empty(size, "uint8")
            with self._guard:
                if self._over:
                    raise ClosedHandle("the state is given no more")
                for at, piece in enumerate(pieces):
                    box[at * PART_BYTES : at * PART_BYTES + len(piece)] = np.frombuffer(piece, np.uint8)
            going.append(job.broadcast_async(box, 0, deadline=OP_S))
            self._line.moved(sent=size)
        for handle in going:
            handle.wait()


class _Pair:
    """One of these jobs, of who takes."""

    def __init__(self, job: PairJob, size: int) -> None:
        self._job, self._size = job, size
        self.sound = True
        """The last question was answered whole."""

    def read(self, parts: Sequence[int]) -> Iterator[tuple[int, AnyArray]]:
        """At most AT_ONCE parts; what is yielded is to be copied before the next one. Raises UltimaError."""
        self._ask(PARTS, parts)
        runs = [parts[at : at + OP_PARTS] for at in range(0, len(parts), OP_PARTS)]
        for run, box in zip(runs, self._boxes([len(run) * PART_BYTES for run in runs]), strict=True):
            for at, number in enumerate(run):
                length = max(0, min(PART_BYTES, self._size - number * PART_BYTES))
                yield number, box[at * PART_BYTES : at * PART_BYTES + length]
        self.sound = True

    def results(self, op_seq: int) -> bytes:
        """Raises UltimaError, and ValueError for a size that cannot be."""
        self._ask(RESULTS, [op_seq])
        told = np.empty(1, np.int64)
        self._job.broadcast(told, 0, deadline=OP_S)
        if not 0 <= (size := int(told[0])) <= RESULTS_BYTES_MAX:
            raise ValueError(f"{size} bytes of results; allowed: 0 to {RESULTS_BYTES_MAX}")
        sizes = [min(OP_BYTES, size - at) for at in range(0, size, OP_BYTES)]
        found = b"".join(box.tobytes() for box in self._boxes(sizes))
        self.sound = True
        return found

    def end(self) -> None:
        """The other end goes too."""
        with contextlib.suppress(UltimaError), self._job:
            if self.sound:
                self._ask(END, [], deadline=PATIENCE_S)

    def _ask(self, what: int, numbers: Sequence[int], deadline: float = OP_S) -> None:
        self.sound = False
        asked = np.full(WORDS, -1, np.int64)
        asked[0], asked[1 : 1 + len(numbers)] = what, numbers
        self._job.broadcast(asked, 1, deadline=deadline)

    def _boxes(self, sizes: Sequence[int]) -> Iterator[AnyArray]:
        """What comes in ops of these sizes; each is good until the next is taken."""
        coming = deque[tuple[AnyArray, Handle]]()
        left = deque(sizes)
        while left or coming:
            while left and len(coming) < OPEN_OPS:
                box = self._job.empty(left.popleft(), "uint8")
                coming.append((box, self._job.broadcast_async(box, 0, deadline=OP_S)))
            box, handle = coming.popleft()
            handle.wait()
            yield box


class PairReader:
    """Reads parts of the state of other ranks (`ultima.state.fetching.Read`), each rank in one thread."""

    def __init__(self, connection: Connection, line: StateLine, size: int, kind: Kind = Kind.ROOT) -> None:
        """size: of the state, in bytes. kind: which state."""
        self._connection, self._line, self._size, self._kind = connection, line, size, kind
        self.places: dict[int, str] = {}
        """Of the daemons of ranks."""
        self._pairs: dict[int, _Pair] = {}
        self._tried: dict[int, threading.Thread] = {}
        self._guard = threading.Lock()
        self._ends = 0

    def __call__(self, rank: int, root: bytes, parts: Sequence[int]) -> Iterator[tuple[int, bytes | AnyArray]]:
        """Raises ConnectionError."""
        left = list(parts)
        if len(left) == AT_ONCE and self._begin(rank, root):
            self._tried[rank].join(PATIENCE_S)
        if parts and (pair := self._pairs.get(rank)) is not None:
            with self._using(rank, pair):
                for number, data in pair.read(tuple(left)):
                    left.remove(number)
                    self._line.moved(received=len(data))
                    yield number, data
        if left or not parts:
            yield from self._line.read(rank, root, left, self._kind)

    def results(self, rank: int, op_seq: int) -> bytes:
        """Results of ops from that one on, of a rank that is followed. Raises ConnectionError."""
        self._begin(rank, b"")
        found: bytes | None = None
        if (pair := self._pairs.get(rank)) is not None:
            with self._using(rank, pair):
                found = pair.results(op_seq)
                self._line.moved(received=len(found))
        if found is None:
            found = b"".join(data for _, data in self._line.read(rank, b"", (), Kind.RESULTS, op_seq))
        return found

    def end(self) -> None:
        """Ends these jobs. What is read after that is read by new ones."""
        with self._guard:
            self._ends += 1
            pairs = list(self._pairs.values())
            self._pairs.clear()
            self._tried.clear()
        for pair in pairs:
            pair.end()

    @contextlib.contextmanager
    def _using(self, rank: int, pair: _Pair) -> Iterator[None]:
        """Ends a job that does not answer."""
        try:
            with contextlib.suppress(UltimaError, ValueError):
                yield
        finally:
            if not pair.sound:
                self._pairs.pop(rank, None)
                pair.end()

    def _begin(self, rank: int, root: bytes) -> bool:
        """Whether it was asked for now."""
        place = self.places.get(rank)
        if rank in self._tried or place is None:
            return False
        thread = threading.Thread(target=self._form, args=(rank, root, place), name="ultima-state", daemon=True)
        self._tried[rank] = thread
        thread.start()
        return True

    def _form(self, rank: int, root: bytes, place: str) -> None:
        number, ends = secrets.randbits(NUMBER_BITS), self._ends
        of_root = root if self._kind is Kind.ROOT else b""
        try:
            answers = [data for _, data in self._line.read(rank, of_root, (), Kind.PAIR, number)]
            if answers != [YES]:
                return
            made = _Pair(_join(self._connection, number, 1, place), self._size)
        except (ConnectionError, UltimaError):
            return
        with self._guard:
            if self._ends == ends:
                self._pairs[rank] = made
                return
        made.end()
