# SPDX-License-Identifier: Apache-2.0
"""The rounds of local SGD of one job, as its ranks on this host tell them: the newest ones, and counts of all.

What a rank says is believed within ranges only, and goes nowhere but to the operators of this host.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from ultima.daemon.base.errors import InvalidArgument, NotFound
from ultima.daemon.base.ranges import INT64_MAX, OP_SEQ_MAX, whole
from ultima.v1 import rounds_pb2
from ultima.v1.limits import WORLD_SIZE_MAX

BYTES_MAX = 256 << 10  # of all rounds of a job that are kept; the newest round of each rank is kept beside them
WHY_BYTES_MAX = 500
STEPPED, VOID, STATE, FAILED = OUTCOMES = ("stepped", "void", "state", "failed")
MISSED = "missed"  # stepped, without anything of the rank
_INT32_MAX = 2**31 - 1


def checked(told: rounds_pb2.RoundRecord, world_size: int) -> None:
    """Raises InvalidArgument, which names the field, for what no rank of such a job can have seen."""
    whole("round.number", told.number, 0, INT64_MAX)
    whole("round.fragment", told.fragment, 0, _INT32_MAX)
    if told.outcome not in OUTCOMES:
        raise InvalidArgument(f"round.outcome = {told.outcome[:32]!r}: allowed: {', '.join(OUTCOMES)}")
    if len(told.why.encode()) > WHY_BYTES_MAX:
        raise InvalidArgument(f"round.why: {len(told.why.encode())} bytes: allowed: {WHY_BYTES_MAX} at most")
    for name, ranks in (("members", [each.rank for each in told.members]), ("late", list(told.late))):
        for rank in ranks:
            whole(f"round.{name}", rank, 0, world_size - 1)
        if any(one >= other for one, other in pairwise(ranks)):
            raise InvalidArgument(f"round.{name}: not ascending")
    whole("round.ranges", told.ranges, 0, _INT32_MAX)
    whole("round.ranges_missed", told.ranges_missed, 0, told.ranges)
    whole("round.op_seq", told.op_seq, -1, OP_SEQ_MAX)
    for name in ("steps", "received_bytes", "took_us"):
        whole(f"round.{name}", getattr(told, name), 0, INT64_MAX)
    weights = {"weight": told.weight, "members_weight": told.members_weight}
    for name, weight in [*weights.items(), *(("members.weight", each.weight) for each in told.members)]:
        if not (math.isfinite(weight) and weight >= 0):
            raise InvalidArgument(f"round.{name} = {weight}: allowed: 0 or more")
    if not 0 <= told.computed_share <= 1:
        raise InvalidArgument(f"round.computed_share = {told.computed_share}: allowed: 0 to 1")


def outcome_of(told: rounds_pb2.RoundRecord) -> str:
    """As it is counted: a round that has nothing of the rank is "missed"."""
    missed = told.outcome == STEPPED and all(each.rank != told.rank for each in told.members)
    return MISSED if missed else told.outcome


def trouble(told: rounds_pb2.RoundRecord, job: str) -> str:
    """What is wrong with the round, in a sentence; "" if nothing is."""
    outcome, which = outcome_of(told), f"round {told.number} of job {job}"
    if outcome == VOID:
        return f"{which} moved nobody's outer model: {told.why or 'no reason was told'}"
    if outcome == FAILED:
        return f"rank {told.rank} has no result of {which}: {told.why or 'no reason was told'}"
    if outcome == MISSED:
        why = "it gave nothing in time" if told.rank in told.late else "nothing of it arrived"
        return f"{which} is without rank {told.rank}: {why}; what it did is in a later round"
    return ""


class Rounds:
    """See the module. It belongs to the event loop."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, bytes]] = deque()
        """Number and serialized record, the oldest first."""
        self._bytes = 0
        self._newest: dict[int, rounds_pb2.RoundRecord] = {}
        """By rank."""
        self.counts = dict.fromkeys((*OUTCOMES, MISSED), 0)
        self.late = 0
        self.received_bytes = 0
        self.took_us = 0

    def __bool__(self) -> bool:
        return bool(self._newest)

    def put(self, told: rounds_pb2.RoundRecord) -> bool:
        """Takes a round, checked and with its rank and time. Whether the rank's round before ended otherwise."""
        before, outcome = self._newest.get(told.rank), outcome_of(told)
        assert told.rank < WORLD_SIZE_MAX
        self._newest[told.rank] = told
        self.counts[outcome] += 1
        self.late += outcome == MISSED and told.rank in told.late
        self.received_bytes = min(self.received_bytes + told.received_bytes, INT64_MAX)
        self.took_us = min(self.took_us + told.took_us, INT64_MAX)
        raw = told.SerializeToString()
        self._kept.append((told.number, raw))
        self._bytes += len(raw)
        while self._bytes > BYTES_MAX:
            self._bytes -= len(self._kept.popleft()[1])
        return before is None or outcome_of(before) != outcome

    def newest(self) -> rounds_pb2.RoundRecord:
        """Of all ranks; the one that was told last."""
        return max(self._newest.values(), key=lambda told: told.told_ns)

    def numbers(self) -> tuple[int, int]:
        """The lowest and the highest number that is kept."""
        numbers = [number for number, _ in self._kept] or [told.number for told in self._newest.values()]
        return min(numbers), max(numbers)

    def of(self, number: int | None) -> list[rounds_pb2.RoundRecord]:
        """What each rank told of a round, by rank; of the newest for None. Where a rank told of it several times, as of
        one that failed, its last word. Raises NotFound, which says what is kept."""
        low, high = self.numbers()
        wanted = high if number is None else number
        found = [rounds_pb2.RoundRecord.FromString(raw) for each, raw in self._kept if each == wanted]
        found = found or [told for told in self._newest.values() if told.number == wanted]
        if not found:
            raise NotFound(f"round = {number}: not kept here; rounds {low} to {high} are")
        return [told for _, told in sorted({told.rank: told for told in found}.items())]

    @property
    def computed_share(self) -> float:
        """The least of the ranks here, by the newest that each told."""
        return min((told.computed_share for told in self._newest.values()), default=1.0)

    def status(self) -> rounds_pb2.RoundsStatus | None:
        """What the status shows; None where no rank has told of any round."""
        if not self:
            return None
        return rounds_pb2.RoundsStatus(
            **{f"{outcome}_count": count for outcome, count in self.counts.items()},
            late_count=self.late,
            received_bytes=self.received_bytes,
            took_us=self.took_us,
            computed_share=self.computed_share,
            newest=self.newest(),
        )
