# SPDX-License-Identifier: Apache-2.0
"""Rounds of local SGD as the daemon on this host was told of them: asked for, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultima.admin.calls import STATUS_TIMEOUT_S, Code, Meanings, asking
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.base.receipt import ranks_text, size_text
from ultima.session.caller import proof
from ultima.v1 import rounds_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence


def get_rounds(
    socket: str, job: str = "", number: int | None = None, timeout_s: float = STATUS_TIMEOUT_S
) -> rounds_pb2.GetRoundsResponse:
    """A round of a job, None for the newest, as each rank on this host told it.

    job: the training's, or the one beside it whose ops are the rounds; "" for the only one. Raises as
    `ultima.admin.calls.get_receipts`; the message names what is kept.
    """
    who = proof(socket, timeout_s)
    meanings: Meanings = {
        Code.NOT_FOUND: lambda text: _not_kept(job, number, text),
        Code.INVALID_ARGUMENT: lambda text: InvalidArgument("--job", job, f"a job with rounds ({text})"),
        Code.PERMISSION_DENIED: UltimaError,
    }
    with asking(socket, timeout_s, meanings) as service:
        request = rounds_pb2.GetRoundsRequest(job=job, number=number)
        answer: rounds_pb2.GetRoundsResponse = service.GetRounds(request, timeout=timeout_s, metadata=who)
    return answer


def _not_kept(job: str, number: int | None, text: str) -> UltimaError:
    """What was asked for is not there: the caller's slip if he named it."""
    if text.startswith("round"):
        return InvalidArgument("--round", number, f"a round that this host remembers ({text})")
    return (
        InvalidArgument("--job", job, f"a job whose rounds this host remembers ({text})") if job else UltimaError(text)
    )


def round_lines(answer: rounds_pb2.GetRoundsResponse) -> list[str]:
    """What became of a round, in sentences: who was in it with what weight, who was not, and what is left to do."""
    if not answer.rounds:
        return []
    first = answer.rounds[0]
    lines = [f"Round {first.number}, fragment {first.fragment}: {first.outcome}" + _op_text(first)]
    for told in _unlike(answer.rounds):
        lines += _what(told)
    weights = {(told.outcome, told.digest) for told in answer.rounds if told.outcome == "stepped"}
    if len({digest for _, digest in weights}) > 1:
        lines.append("The ranks here DIFFER in the outer model after it: the next round mends that.")
    elif weights:
        lines.append(f"Outer model and momentum of the fragment: {first.digest:08x}.")
    for told in answer.rounds:
        lines += _of_rank(told)
    return lines


def _unlike(rounds: Sequence[rounds_pb2.RoundRecord]) -> list[rounds_pb2.RoundRecord]:
    """One of those that say the same of the round."""
    found: dict[tuple[str, str, float], rounds_pb2.RoundRecord] = {}
    for told in rounds:
        found.setdefault((told.outcome, told.why, told.weight), told)
    return list(found.values())


def _op_text(told: rounds_pb2.RoundRecord) -> str:
    return f", op {told.op_seq}, {told.took_us / 1e6:.3f} s" if told.op_seq >= 0 else ""


def _what(told: rounds_pb2.RoundRecord) -> list[str]:
    if told.outcome == "void":
        return [f"Nobody's outer model moved: {told.why}. What ranks did is in a later round."]
    if told.outcome == "failed":
        return [f"Rank {told.rank} has no result of it: {told.why}. It takes the outer model from another rank."]
    if told.outcome == "state":
        text = "has all of it now" if told.learned else "has passed on a piece of it, or taken one"
        return [f"The outer model was passed on to ranks that were behind; rank {told.rank} {text}."]
    said = ", ".join(f"rank {each.rank} {each.weight:g}" for each in told.members)
    lines = [f"Weights: {said}; in all {told.weight:g}. Divided by that of all members, {told.members_weight:g}."]
    partly = [each.rank for each in told.members if each.partly]
    if partly:
        lines.append(f"Of {ranks_text(partly)} some packets did not come: what they held is in a later round.")
    if told.late:
        who = ranks_text(told.late).capitalize()
        lines.append(f"{who} gave nothing in time: what was done there is in a later round.")
    return lines


def _of_rank(told: rounds_pb2.RoundRecord) -> list[str]:
    """What one rank had of it, and what it has left."""
    text = f"Rank {told.rank}: {told.steps} steps so far, computed {100 * told.computed_share:.1f} % of the time"
    text += f", received {size_text(told.received_bytes)}" if told.received_bytes else ""
    if told.outcome != "stepped" or not told.ranges_missed:
        return [f"{text}."]
    if told.ranges_missed == told.ranges:
        return [f"{text}; nothing of it is in the round, all is left for the next one."]
    return [f"{text}; {told.ranges_missed} of {told.ranges} ranges are left for the next round."]


def status_line(told: rounds_pb2.RoundsStatus, now_ns: int) -> str:
    """The rounds of a job in one sentence."""
    counts = [
        (told.stepped_count + told.missed_count, "stepped"),
        (told.missed_count, "of them without a rank here"),
        (told.void_count, "void"),
        (told.failed_count, "failed"),
    ]
    said = ", ".join(f"{count} {what}" for count, what in counts if count) or "none has moved anything"
    newest = told.newest
    ago = max(0, now_ns - newest.told_ns) / 1e9
    return (
        f"rounds: {said}; the newest, {newest.number}: {newest.outcome}, {newest.took_us / 1e6:.3g} s, {ago:.0f} s ago"
        f"; computed {100 * told.computed_share:.1f} % of the time"
    )
