# SPDX-License-Identifier: Apache-2.0
"""What a program that averages in rounds of its own tells the daemon of them, so that operators see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ultima.api.every_job import EveryJob


def tell_round(job: object, members: Sequence[tuple[int, float, bool]], facts: Mapping[str, Any]) -> None:
    """Tells of a round whose op was one of the job's, and waits for no answer; what cannot be told is not.

    members: rank, weight, and whether some of its data is missing, of each rank that is in it, ascending. facts: the
    other fields of RoundRecord (rounds.proto). A job that is no daemon's, such as that of a group of one rank, tells
    nobody.
    """
    if isinstance(job, EveryJob):
        line = job._connection.session.round_line
        if line is not None:
            line.tell(members, facts)
