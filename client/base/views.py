# SPDX-License-Identifier: Apache-2.0
"""Who is in a job whose hosts come and go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """The ranks of a job from one op on. All ranks that are in it agree on it, and each receipt names the view of its
    op by `Receipt.view`."""

    number: int
    """It grows with each view."""
    ranks: tuple[int, ...]
    """Ascending. A rank is of a seat of the job: it stays as long as its host is in, and is another host's afterwards.
    With K ranks on each host the seat S has the ranks S * K to S * K + K - 1."""
    rank: int
    """Of this process. It is not among `ranks` if the others went on without it."""
    since: int
    """The op from which it holds, by `Receipt.op_seq`."""
    why: str
    """Why it came about, in words."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def position(self) -> int | None:
        """Of this process among `ranks`, from 0: what to cut data by. None if it is not in."""
        return self.ranks.index(self.rank) if self.rank in self.ranks else None


@dataclass(frozen=True, slots=True)
class Change:
    """One view after another."""

    view: View
    """That holds from now on."""
    came: tuple[int, ...]
    """Ranks that were not in the view before. A rank that changed hands between two views is in neither tuple."""
    left: tuple[int, ...]
    """Ranks of the view before that are not in this one."""

    @property
    def why(self) -> str:
        """Of the view, in words."""
        return self.view.why


def view_of(told: object, rank: int) -> View | None:
    """What the daemon told a rank; None if that is no view."""
    if not isinstance(told, dict):
        return None
    number, since, ranks, why = (told.get(name) for name in ("number", "start", "ranks", "why"))
    if not isinstance(number, int) or not isinstance(since, int) or not isinstance(ranks, list):
        return None
    if not all(isinstance(each, int) for each in ranks):
        return None
    return View(number, tuple(sorted(ranks)), rank, since, str(why))
