# SPDX-License-Identifier: Apache-2.0
"""What is recorded of one life of a job on this host: every op in a ring, and a summary of each minute.

An op that was not complete leaves its receipt, and so does the slowest of each minute. Taking a receipt waits for a
turn of the engine, so only so many are taken in a second; the rest is told from the event alone.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ultima.daemon.engine.engine import NOBODY as NO_HOST
from ultima.daemon.engine.engine import Event, Status
from ultima.daemon.observe.durations import Histogram, Percentiles
from ultima.daemon.observe.ring import NOBODY, Op, OpRing
from ultima.daemon.observe.stats import ENDS
from ultima.daemon.observe.told_rounds import Rounds
from ultima.v1 import admin_pb2, records_pb2

MINUTE_NS = 60_000_000_000
RECEIPT_BYTES_MAX = 1 << 20  # of all receipts of one life
RECEIPTS_PER_SECOND, RECEIPTS_AT_ONCE = 50, 100
MINUTES_MAX = 64  # that nobody has taken yet
# Numbers of enum ut_trouble and enum ut_missing (core/base/receipt.h).
# generated: troubles and reasons (schema/)
TROUBLES = ("none", "sender", "path", "receiver", "gone", "udp")
REASONS = ("nothing", "absent", "silent", "lost", "closed", "view")
# generated: end
UNKNOWN = "unknown"


def word(words: tuple[str, ...], number: int) -> str:
    """The word for a number of the engine's; a number that has none is "unknown"."""
    return words[number] if number < len(words) else UNKNOWN


@dataclass(frozen=True, slots=True)
class Life:
    """Which life of which job it is, and who its hosts are."""

    number: int
    """Random, never 0: the job's incarnation on this host."""
    job: str
    uid: int
    generation: int
    world_size: int
    host_index: int
    lanes: int
    addresses: tuple[str, ...]
    """By index of the host."""
    nodes: tuple[str, ...]
    """The same by the names in their certificates."""
    hosts: bytes
    """A serialized JobLife with the hosts alone."""
    began_ns: int
    """Since 1970."""


@dataclass(slots=True)
class Minute:
    """The ops that ended within one minute; `start_ns` since 1970."""

    start_ns: int
    count: Counter[int] = field(default_factory=Counter)
    """Ops by status."""
    missing_bytes: int = 0
    bucket_bytes: int = 0
    percentiles: Percentiles = field(default_factory=Percentiles)
    slowest: Op | None = None
    receipt: bytes = b""
    """Of the slowest op, if it could be had."""
    culprits: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often which host was to blame for what kind of trouble."""


class JobRecord:
    """See the module."""

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, monotonic: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Both clocks tell nanoseconds; `wall` since 1970."""
        self._wall, self._monotonic = wall, monotonic
        self.life: Life | None = None
        self.ring = OpRing()
        self.rounds = Rounds()
        self.histogram = Histogram()
        self.missing: Counter[str] = Counter()
        """Missing bytes by reason."""
        self.culprits: Counter[tuple[str, str]] = Counter()
        """Ops by the address of the host to blame and its kind of trouble."""
        self.bucket_bytes = 0
        self.contributors = 0
        """Hosts that are in every byte of the newest op."""
        self.deadline_ns = 0
        """That the newest op had, of which there is a receipt."""
        self.states: dict[int, int] = {}
        """How each other host looked last, by its index."""
        self.troubled_ops = 0
        """Ops that were not complete, since the job was well."""
        self.troubled_from_ns = self.troubled_at_ns = 0
        """When the first and the last of them ended, monotonic."""
        self._receipts: OrderedDict[int, bytes] = OrderedDict()
        self._receipt_bytes = 0
        self._minute: Minute | None = None
        self._ended: deque[Minute] = deque(maxlen=MINUTES_MAX)
        self._changed = False
        self._allowed, self._allowed_at = float(RECEIPTS_AT_ONCE), monotonic()

    def begin(self, life: Life) -> None:
        """The job has a membership. What was recorded of an earlier attempt stays."""
        self.life = life

    def op_done(self, event: Event, receipt_of: Callable[[], records_pb2.OpReceipt | None]) -> Op | None:
        """Takes an OP_DONE event; `receipt_of` asks the engine for its receipt. None if it ends no op."""
        if event.a not in ENDS:
            return None
        now = self._monotonic()
        since = max(0, now - event.at_ns) if event.at_ns else 0
        op = Op(
            op_seq=event.op_seq,
            ended_ns=self._wall() - since,
            ended_monotonic_ns=now - since,
            elapsed_ns=event.b,
            bytes_missing=event.c,
            bucket_bytes=event.d,
            culprit=NOBODY if event.host == NO_HOST else event.host,
            status=event.a,
            trouble=event.e >> 24 & 0xFF,
            collective=event.e & 0xFF,
            dtype=event.e >> 8 & 0xFF,
            op=event.e >> 16 & 0xFF,
        )
        self.ring.put(op)
        self.histogram.add(op.elapsed_ns)
        self.bucket_bytes += op.bucket_bytes
        minute = self._minute_of(op.ended_ns)
        self._changed = True
        minute.count[op.status] += 1
        minute.missing_bytes += op.bytes_missing
        minute.bucket_bytes += op.bucket_bytes
        minute.percentiles.add(op.elapsed_ns)
        slowest = minute.slowest is None or op.elapsed_ns > minute.slowest.elapsed_ns
        receipt = None
        if (slowest or op.status != Status.COMPLETE) and self._may_ask():
            receipt = receipt_of()
        if slowest:
            minute.slowest, minute.receipt = op, b"" if receipt is None else receipt.SerializeToString()
        if receipt is not None:
            self._keep(receipt)
        self._blame(op, receipt, minute)
        return op

    def receipts(self) -> list[records_pb2.OpReceipt]:
        """Those that are kept, oldest first."""
        return [records_pb2.OpReceipt.FromString(each) for each in self._receipts.values()]

    def raw_receipts(self) -> list[bytes]:
        """The same as they are stored."""
        return list(self._receipts.values())

    def take_minutes(self) -> list[Minute]:
        """Those that have ended since the last call, and the present one if it has changed. The caller may not keep
        the last one beyond this turn of the loop."""
        ret = list(self._ended)
        self._ended.clear()
        if self._minute is not None and self._changed:
            ret.append(self._minute)
        self._changed = False
        return ret

    def _minute_of(self, now_ns: int) -> Minute:
        start = now_ns - now_ns % MINUTE_NS
        if self._minute is None or start > self._minute.start_ns:  # a clock that is set back opens no minute twice
            if self._minute is not None and self._changed:
                self._ended.append(self._minute)
            self._minute = Minute(start)
        return self._minute

    def _may_ask(self) -> bool:
        now = self._monotonic()
        refill = (now - self._allowed_at) * RECEIPTS_PER_SECOND / 1e9
        self._allowed, self._allowed_at = min(RECEIPTS_AT_ONCE, self._allowed + refill), now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def _keep(self, receipt: records_pb2.OpReceipt) -> None:
        raw = receipt.SerializeToString()
        self._receipt_bytes += len(raw) - len(self._receipts.pop(receipt.op_seq, b""))
        self._receipts[receipt.op_seq] = raw
        while self._receipt_bytes > RECEIPT_BYTES_MAX:
            self._receipt_bytes -= len(self._receipts.popitem(last=False)[1])
        self.deadline_ns = receipt.deadline_ns

    def _blame(self, op: Op, receipt: records_pb2.OpReceipt | None, minute: Minute) -> None:
        """Counts who was to blame, why bytes are missing, and how many hosts are in the op."""
        hosts = len(self.life.addresses) if self.life is not None else 0
        if op.status == Status.COMPLETE:
            self.contributors = hosts
        elif receipt is not None:
            self.contributors = receipt.full_mask.bit_count()
        elif op.status != Status.PARTIAL:
            self.contributors = 1
        if op.culprit != NOBODY:
            minute.culprits[op.culprit, op.trouble] += 1
            self.culprits[self._address(op.culprit), word(TROUBLES, op.trouble)] += 1
        told = 0
        for row in receipt.peer if receipt is not None else ():
            self.missing[word(REASONS, row.why)] += sum(row.missing)
            told += sum(row.missing)
        if op.bytes_missing > told:
            self.missing[UNKNOWN] += op.bytes_missing - told

    def _address(self, host: int) -> str:
        known = self.life.addresses if self.life is not None else ()
        return known[host] if host < len(known) else UNKNOWN


def op_message(op: Op) -> records_pb2.OpRecord:
    """As it travels."""
    return records_pb2.OpRecord(**op._asdict())


def minute_message(minute: Minute, life: Life) -> admin_pb2.JobMinute:
    """As it travels, and as it is kept on disk."""
    count = minute.count
    ((culprit, trouble), times) = minute.culprits.most_common(1)[0] if minute.culprits else ((NOBODY, 0), 0)
    address = life.addresses[culprit] if culprit < len(life.addresses) else ""
    longest = minute.slowest.elapsed_ns if minute.slowest else 0
    return admin_pb2.JobMinute(
        start_ns=minute.start_ns,
        job=life.job,
        generation=life.generation,
        ops_complete_count=count[Status.COMPLETE],
        ops_partial_count=count[Status.PARTIAL],
        ops_insufficient_count=count[Status.INSUFFICIENT],
        ops_failed_count=count[Status.FAILED],
        missing_bytes=minute.missing_bytes,
        bucket_bytes=minute.bucket_bytes,
        op_p50_us=min(minute.percentiles.at(50), longest) // 1000,
        op_p99_us=min(minute.percentiles.at(99), longest) // 1000,
        op_max_us=longest // 1000,
        slowest_op_seq=minute.slowest.op_seq if minute.slowest else 0,
        culprit=f"{address} {word(TROUBLES, trouble)}" if times else "",
        culprit_count=times,
    )
