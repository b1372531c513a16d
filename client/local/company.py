# SPDX-License-Identifier: Apache-2.0
"""Who is in the rounds with this rank, how it comes to have their state, and when it may step.

In a job of fixed ranks rounds are ops with agree=True, and the state is passed on in ops (turns.py).

Where hosts come and go there is no `agree`. But an owner sends the same sum to all, so ranks that have all of a result
have the same bits; and its members and their parts in it are told alike. So a rank steps if nothing of the result is
missing, whoever is in it, and listens otherwise. Newcomers and ranks that listen take the state from the daemons of the
others, which stand still meanwhile before an op (`ElasticJob.share`): outer model, momentum, turn, weights, and in
which round each rank was last, so that the others know whether what it gave then is in the sum.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ultima.api.job import ElasticJob, Job
from ultima.base.durations import Duration, deadline_s
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.base.receipt import Receipt, Status, ranks_text
from ultima.local.beginning import adopt_first, agree_on_layout
from ultima.local.carrier import ABSENT, Carrier
from ultima.local.moves import Moves
from ultima.local.round_kernels import Floats
from ultima.local.settings import quorum_of
from ultima.local.turns import Turns
from ultima.local.values import Layout, difference

WAIT_S, ENTER_S = 60.0, 600.0
_ROOM = 4096  # bytes of a layout's text, or a power of two times as many


class Company:
    """In a job of fixed ranks."""

    copied_s = 0.0
    """What it took to copy the outer model at the beginning."""

    def __init__(self, job: Job, layout: Layout) -> None:
        self._job, self._layout = job, layout

    def begin(self, turns: Turns, theta: Floats, momentum: Floats) -> bool:
        """Makes the outer model the same on all. Whether this rank comes to others that are about to call a round.
        Raises InvalidArgument where tensors or settings differ, and what the calls of the job raise."""
        agree_on_layout(self._job, self._layout)
        self.copied_s = adopt_first(self._job, theta)
        return False

    def stands_still(self, turns: Turns) -> bool:
        """Whether state is passed on before the next op, for which all ranks have to come."""
        return False

    def catch_up(
        self, turns: Turns, theta: Floats, momentum: Floats, moves: Moves, carrier: Carrier, now: bool
    ) -> bool:
        """Before an op, while none is under way: passes the state on to ranks that lack it. Whether this one did. Then
        its parameters follow, `now` or when its trainer has ended its step."""
        return False

    def lacks(self, turns: Turns, receipt: Receipt) -> str:
        """Why this rank has no result that it may step by; "" if it has one."""
        insufficient = receipt.status is Status.INSUFFICIENT and self._job.world_size > 1
        return "nothing of any other rank came" if insufficient else ""

    def leave(self) -> None:
        """Ends this rank's part. Idempotent."""
        self._job.close()


class Elastic(Company):
    """Where hosts come and go. ranges: of a fragment. quorum: as `Outer` was told. wait_s: for which ranks stand still
    for others."""

    def __init__(self, job: ElasticJob, layout: Layout, ranges: int, quorum: int | str, wait_s: float) -> None:
        super().__init__(job, layout)
        self._elastic, self._ranges, self._quorum, self._wait_s = job, ranges, quorum, wait_s

    def begin(self, turns: Turns, theta: Floats, momentum: Floats) -> bool:
        turns.who, turns.members = 1 + secrets.randbelow((1 << 24) - 1), self._elastic.view.ranks
        np.add(theta, np.float32(0), out=theta)
        state = self._state(turns, theta, momentum)
        report = self._elastic.sync_state(state, revision=0, timeout=ENTER_S)
        text = self._layout.text()
        if report is not None and (said := difference(text, _read(state["layout"]), min(report.sources, default=0))):
            raise InvalidArgument("arrays", said, "the same tensors and settings on all ranks")
        turns.learn(state)
        if report is None:  # the others went on without this rank, which has nothing of theirs
            turns.turn, turns.listens = 0, True
        self._need(turns)
        return report is not None and report.revision > 0

    def stands_still(self, turns: Turns) -> bool:
        return turns.listens or self._elastic.asked

    def catch_up(
        self, turns: Turns, theta: Floats, momentum: Floats, moves: Moves, carrier: Carrier, now: bool
    ) -> bool:
        turns.rank = self._elastic.rank  # another seat, if the host was gone for long enough
        if not self.stands_still(turns):
            return False
        before, behind, turn = theta.copy(), turns.listens, turns.turn
        state = self._state(turns, theta, momentum)
        try:
            if behind:
                report = self._elastic.sync_state(state, revision=turn, timeout=self._wait_s)
            else:
                report = self._elastic.share(state, revision=turn, wait=self._wait_s)
        except ABSENT:  # the op finds out who is away; who listens goes on listening
            return False
        if report is None or (not behind and not report.parts):
            return False
        taken = turns.learn(state)
        self._need(turns)
        if taken:
            carrier.taken()
        for fragment in range(self._layout.fragments):
            low, high = self._layout.bounds(fragment)
            moves.learn(low, before[low:high], theta[low:high], self._ranges, taken, now)
        return behind and turns.turn != turn

    def lacks(self, turns: Turns, receipt: Receipt) -> str:
        if receipt.status is Status.INSUFFICIENT:
            return "nothing of any other rank came"
        missing = [rank for peer in receipt.peers if peer.missing_bytes[1] for rank in peer.ranks]
        if missing or turns.rank not in receipt.members:
            who = ranks_text(sorted(missing))
            return f"not all of the sums that {who} made came" if missing else "the others went on without this rank"
        turns.members = receipt.members
        self._need(turns)
        return ""

    def leave(self) -> None:
        try:
            self._elastic.leave()
        except UltimaError:  # its daemon is away: the others find out
            self._elastic.close()

    def _need(self, turns: Turns) -> None:
        """How many ranks a round needs now."""
        members = turns.members or ()
        turns.quorum = self._quorum if isinstance(self._quorum, int) else quorum_of(self._quorum, len(members))

    def _state(self, turns: Turns, theta: Floats, momentum: Floats) -> dict[str, Any]:
        return {"layout": _written(self._layout), **turns.shared(), "theta": theta, "momentum": momentum}


def company_of(job: Job, layout: Layout, ranges: int, quorum: int | str, deadline: Duration | None) -> Company:
    """Of a job. deadline: of rounds; a newcomer's state takes about as long to pass on as a round does."""
    if not isinstance(job, ElasticJob):
        return Company(job, layout)
    wait_s = WAIT_S if deadline is None else max(WAIT_S, deadline_s(deadline, "deadline"))
    return Elastic(job, layout, ranges, quorum, min(wait_s, ENTER_S))


def _written(layout: Layout) -> NDArray[np.uint8]:
    text = layout.text().encode()
    room = _ROOM << max(0, (-(-len(text) // _ROOM) - 1).bit_length())
    return np.frombuffer(text.ljust(room), np.uint8).copy()


def _read(written: NDArray[np.uint8]) -> str:
    return bytes(written).rstrip().decode()
