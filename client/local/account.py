# SPDX-License-Identifier: Apache-2.0
"""The account of local SGD on one rank: of each round, and of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ultima.base.receipt import Receipt, ranks_text, size_text
from ultima.local.round_kernels import Bools
from ultima.local.turns import LEARN, ROUND, VOID, Verdict
from ultima.local.vector import Head


@dataclass(frozen=True, slots=True)
class Round:
    """A result, as this rank saw it."""

    number: int
    """Results that this rank had had before."""
    fragment: int
    """The part of the model, from 0."""
    outcome: str
    """"stepped", "void" (nobody stepped), "state" (a piece of the state was passed on) or "failed" (no result)."""
    why: str = ""
    """Of "void" and "failed"."""
    inside: tuple[int, ...] = ()
    """Ranks of which all data is in it."""
    partly: tuple[int, ...] = ()
    """Ranks of which some is: what they did in the other ranges stays with them, for the next round."""
    late: tuple[int, ...] = ()
    """Ranks that took part without giving anything: their trainers were late, or had nothing finite to give."""
    ranges_missed: int = 0
    """Of this rank's ranges, those that are not in it."""
    ranges: int = 0
    """Ranges of the fragment."""
    weight: float = 0.0
    """Of the ranks that gave."""
    members_weight: float = 0.0
    """Of all members: the sum was divided by it."""
    digest: int = 0
    """32 bits of the fragment's state after the round; alike on all ranks."""
    learned: bool = False
    """Of "state": this rank was behind, and has all of it now."""
    weights: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Of the ranks that are in it, in whole or in part, by rank."""
    receipt: Receipt | None = field(default=None, repr=False)
    """Of the op; None if it has none."""

    def __str__(self) -> str:
        text = f"round {self.number}, fragment {self.fragment}: {self.outcome}"
        if self.why:
            return f"{text}: {self.why}"
        if self.outcome != "stepped":
            return text
        text += f", {ranks_text(self.inside)}, weight {self.weight:g} of {self.members_weight:g}"
        if self.partly:
            text += f", {ranks_text(self.partly)} in some of it"
        if self.late:
            text += f"; {ranks_text(self.late)} gave nothing in time"
        if self.ranges_missed:
            text += f"; {self.ranges_missed} of {self.ranges} ranges of this rank stay for the next round"
        return text

    def explain(self) -> list[str]:
        """What became of the round, in sentences: who was in with what weight, who was not, and what is left to do."""
        lines = [f"Round {self.number}, fragment {self.fragment}: {self.outcome}"]
        if self.why:
            lines.append(f"Nobody's outer model moved: {self.why}. What ranks did is in a later round.")
        if self.outcome == "stepped":
            said = ", ".join(f"rank {rank} {weight:g}" for rank, weight in sorted(self.weights.items()))
            lines.append(
                f"Weights: {said}; in all {self.weight:g}. Divided by that of all members, {self.members_weight:g}."
            )
        if self.partly:
            lines.append(f"Of {ranks_text(self.partly)} some packets did not come: what they held is in a later round.")
        if self.late:
            lines.append(
                f"{ranks_text(self.late).capitalize()} gave nothing in time: what was done there is in a later round."
            )
        if self.ranges_missed:
            lines.append(f"Of this rank {self.ranges_missed} of {self.ranges} ranges are left for the next round.")
        if self.digest:
            lines.append(f"Outer model and momentum of the fragment: {self.digest:08x}, alike on all ranks.")
        if self.receipt is not None:
            lines.append(f"The op: {self.receipt}")
        return lines


@dataclass(slots=True)
class OuterSummary:
    """What the rounds of this rank added up to. Times in seconds."""

    steps: int = 0
    """Inner steps."""
    tokens: float = 0.0
    """What `step` was told of them, added up."""
    rounds: int = 0
    """Results by which the outer model moved."""
    missed: int = 0
    """Of these, those in which nothing of this rank is."""
    late: int = 0
    """Of these, those that it was too late for: it took part without giving anything."""
    partly: int = 0
    """Of these, those in which some ranges of this rank are not."""
    empty: int = 0
    """Results that were void."""
    failed: int = 0
    """Ops that ended without a result here."""
    failure: str = ""
    """Why the newest of them did."""
    learned: int = 0
    """How often this rank was behind and has taken the state."""
    differed: int = 0
    """Rounds in which some rank's outer model was found to differ."""
    postponed: int = 0
    """Sends that waited for the end of the round before."""
    discarded_tokens: float = 0.0
    """Of steps whose outcome was not finite: the fragment was set back to the outer model."""
    received_bytes: int = 0
    """Payload of results and of what others gave, as far as it came over the network."""
    waited_s: float = 0.0
    """The time that `step` stood still for results."""
    spent_s: float = 0.0
    """The time that `step` took for sending and taking them, apart from that."""
    elapsed_s: float = 0.0
    """Since the first step."""

    def add(self, told: Round, rank: int) -> None:
        """Counts a result, as `rank` saw it."""
        if told.outcome == "stepped":
            self.rounds += 1
            self.missed += told.ranges_missed == told.ranges
            self.late += rank in told.late
            self.partly += 0 < told.ranges_missed < told.ranges
        if told.receipt is not None:
            self.received_bytes += received_of(told.receipt)
        self.empty += told.outcome == "void"
        self.learned += told.learned

    @property
    def computed(self) -> float:
        """The share of the time in which this rank computed, 0 to 1."""
        return max(0.0, 1 - (self.waited_s + self.spent_s) / self.elapsed_s) if self.elapsed_s else 1.0

    def __str__(self) -> str:
        text = f"{self.rounds} rounds in {self.steps} steps; computed {100 * self.computed:.1f} % of the time"
        if self.elapsed_s:
            text += f", waited {100 * self.waited_s / self.elapsed_s:.1f} %"
        text += f", {size_text(self.received_bytes)} received" if self.received_bytes else ""
        told = [(self.missed, "missed"), (self.late, "too late"), (self.partly, "taken in part")]
        told += [(self.empty, "void"), (self.failed, "failed")]
        text += "".join(f", {count} {what}" for count, what in told if count)
        return text + (f" (the newest: {self.failure})" if self.failure else "")


def received_of(receipt: Receipt) -> int:
    """Bytes of payload that came; of a sparse op those of its packets, and not of the zeros that they stand for."""
    return receipt.wire_received or receipt.bytes_used


def round_of(
    verdict: Verdict,
    number: int,
    fragment: int,
    stepped: bool,
    heads: Mapping[int, Head],
    holds: Bools,
    touched: Bools,
    mine: Bools,
    digest: int,
    receipt: Receipt,
) -> Round:
    """What is told of a result. holds: by range and rank, what is in it; touched: by rank, whether anything is; mine:
    by range, whether this rank's part was taken."""
    whole = holds.all(axis=0)
    return Round(
        number,
        fragment,
        "stepped" if stepped else "void" if verdict.kind in (VOID, ROUND) else "state",
        verdict.why,
        inside=tuple(np.flatnonzero(whole).tolist()),
        partly=tuple(np.flatnonzero(touched & ~whole).tolist()),
        late=tuple(rank for rank, head in sorted(heads.items()) if not (head.gave or head.listens or head.mend)),
        ranges_missed=int((~mine).sum()) if stepped else 0,
        ranges=len(mine),
        weight=verdict.weight,
        members_weight=verdict.divisor,
        digest=digest,
        learned=verdict.kind == LEARN and verdict.whole,
        weights={rank: heads[rank].weight for rank in np.flatnonzero(touched).tolist() if rank in heads},
        receipt=receipt,
    )
