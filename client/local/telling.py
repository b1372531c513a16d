# SPDX-License-Identifier: Apache-2.0
"""What the daemon is told of a round (rounds.proto), so that operators see what its ops were."""

from __future__ import annotations

from ultima.api.round_news import tell_round
from ultima.local.account import OuterSummary, Round, received_of


def tell(job: object, told: Round, summary: OuterSummary, took_s: float) -> None:
    """Tells of a round of a job; took_s: from the call of its op to its result."""
    receipt = told.receipt
    members = [(rank, weight, rank in told.partly) for rank, weight in sorted(told.weights.items())]
    facts = {
        "number": told.number,
        "fragment": told.fragment,
        "outcome": told.outcome,
        "why": told.why,
        "late": sorted(told.late),
        "ranges_missed": told.ranges_missed,
        "ranges": told.ranges,
        "weight": told.weight,
        "members_weight": told.members_weight,
        "digest": told.digest,
        "learned": told.learned,
        "op_seq": -1 if receipt is None else receipt.op_seq,
        "steps": summary.steps,
        "computed_share": min(1.0, summary.computed),
        "received_bytes": 0 if receipt is None else received_of(receipt),
        "took_us": max(0, int(took_s * 1e6)),
    }
    tell_round(job, members if told.outcome == "stepped" else [], facts)
