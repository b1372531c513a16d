# SPDX-License-Identifier: Apache-2.0
"""At which of several daemons a rank registers."""

import asyncio

import pytest

from ultima.daemon.base.errors import DeadlineExceeded, NotFound, PermissionDenied, Refused, Unavailable
from ultima.daemon.hosts import finding
from ultima.daemon.hosts.finding import register_at
from ultima.daemon.hosts.host import Membership, Place

PLACES = [Place(f"10.0.0.{n}", 29520) for n in (1, 2, 3)]
GOT = Membership(7, 2, 1, (), (), 0, True)
DOWN, NEW, KNOWN = Unavailable("down"), NotFound("new"), GOT


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


class Daemons:
    """What each place answers: an error, or a membership; NEW begins a job where that is asked."""

    def __init__(self, *answers: Refused | Membership) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, bool]] = []

    async def attempt(self, place: Place, only_known: bool, seconds: float) -> Membership:
        number = PLACES.index(place)
        self.asked.append((number, only_known))
        answer = self.answers[number]
        if isinstance(answer, NotFound) and not only_known:
            return GOT
        if isinstance(answer, Refused):
            if isinstance(answer, DeadlineExceeded):
                await asyncio.sleep(seconds)
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([KNOWN], [(0, False)]),
        ([KNOWN, NEW], [(0, True)]),
        ([NEW, NEW, KNOWN], [(0, True), (1, True), (2, True)]),
        ([DOWN, KNOWN], [(0, True), (1, True)]),
        ([NEW, NEW], [(0, True), (1, True), (0, False)]),
        ([DOWN, NEW], [(0, True), (1, True), (0, False), (1, False)]),
    ],
)
async def test_register_at__who_knows_the_job_comes_first(answers: list[Refused | Membership], asked: object) -> None:
    daemons = Daemons(*answers)
    assert await register_at(PLACES[: len(answers)], daemons.attempt, soon()) is GOT
    assert daemons.asked == asked


async def test_register_at__goes_back_to_the_first_that_came_up_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those wait who come later."""
    monkeypatch.setattr(finding, "AGAIN_SECONDS", 0.05)
    daemons = Daemons(DOWN, DeadlineExceeded("1 of the 2 ranks that it needs have joined"))
    waiting = asyncio.ensure_future(register_at(PLACES[:2], daemons.attempt, soon(20.0)))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    daemons.answers[0] = NEW
    assert await asyncio.wait_for(waiting, 10) is GOT
    assert daemons.asked[-1] == (0, False)


async def test_register_at__says_in_the_end_why_not() -> None:
    with pytest.raises(DeadlineExceeded, match=r"rendezvous 10.0.0.1:29520, 10.0.0.2:29520: cannot be reached: down"):
        await register_at(PLACES[:2], Daemons(DOWN, DOWN).attempt, soon(0.3))
    with pytest.raises(DeadlineExceeded, match="2 ranks that it needs"):
        await register_at(PLACES[:1], Daemons(DeadlineExceeded("1 of the 2 ranks that it needs")).attempt, soon(0.2))
    daemons = Daemons(PermissionDenied("not yours"), KNOWN)
    with pytest.raises(PermissionDenied):
        await register_at(PLACES[:2], daemons.attempt, soon())
    assert daemons.asked == [(0, True)]
