# SPDX-License-Identifier: Apache-2.0
"""The part of the coordinator that is about jobs whose hosts come and go: how they begin, and who waits for a seat.

Such a job begins when as many ranks are there as it needs, and nobody has come for a moment; or at once, with all that
it can have. From then on each registration is answered with a seat, if one is free; else it waits, as a spare.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial

from ultima.daemon.base.errors import DeadlineExceeded, FailedPrecondition, NotFound
from ultima.daemon.base.quota import Quota
from ultima.daemon.base.waiting import Changes
from ultima.daemon.hosts.former import Former
from ultima.daemon.hosts.host import Elastic, Membership
from ultima.daemon.hosts.registration import Forming, Record, Registration, Title, disagreement
from ultima.daemon.hosts.seats import REFUSED_SECONDS, SETTLE_SECONDS, check_newcomer, free_seat, take_seat

log = logging.getLogger("ultimad.rendezvous")


class Seating:
    """See the module; the rest is in `Coordinator`."""

    _changes: Changes
    _former: Former
    _forming: dict[Title, Forming]
    _quota_forming: Quota

    def _admit(self, new: Registration, forming: Forming) -> None:
        raise NotImplementedError

    def _formed(self, new: Registration) -> bool:
        raise NotImplementedError

    def _decided(self, new: Registration, forming: Forming) -> bool:
        raise NotImplementedError

    def _complete(self, title: Title, forming: Forming) -> None:
        raise NotImplementedError

    def _forms_no_more(self, title: Title) -> None:
        raise NotImplementedError

    def _is_there(self, job: str, record: Record) -> bool:
        raise NotImplementedError

    def _changed(self) -> None:
        raise NotImplementedError

    def _forming_of(self, new: Registration) -> Forming:
        """The job that forms under this title, with room for one more; a new one if there is none."""
        forming = self._forming.get(new.title)
        if forming is not None:
            self._admit(new, forming)
            return forming
        self._quota_forming.take(new.account)
        forming = self._forming[new.title] = Forming(new.account)
        return forming

    async def _wait_for_seats(self, new: Registration, deadline: float) -> None:
        """Returns when the job has a record. Who differs from those that wait is refused alone."""
        until = self._former.told_until(new.job, asyncio.get_running_loop().time())
        if until is not None and await self._changes.until(partial(self._formed, new), min(deadline, until)):
            return
        if new.only_known:
            raise NotFound(f"job {new.job!r}: is not known here")
        forming, clock = self._forming_of(new), asyncio.get_running_loop().time
        if conflict := disagreement(new, forming.waiting):
            raise FailedPrecondition(conflict)
        elastic = new.elastic
        assert elastic is not None
        least = elastic.least
        for rank, other in list(forming.waiting.items()):
            if other.host.place == new.host.place:
                if other.host.incarnation == new.host.incarnation:
                    return await self._wait_beside(new, forming, other, deadline)
                del forming.waiting[rank]  # what its former life registered is void
        place = next(rank for rank in range(new.seats + 1) if rank not in forming.waiting)
        forming.waiting[place] = new = replace(new, rank=place)
        self._changes.notify()
        try:
            while not self._decided(new, forming):
                came = len(forming.waiting)
                enough = came >= least
                if came >= new.seats:
                    self._complete(new.title, forming)
                    return
                news = await self._changes.until(
                    partial(self._has_news, new, forming, came),
                    min(deadline, clock() + SETTLE_SECONDS) if enough else deadline,
                )
                if not news and not enough:
                    text = f"{came} of the {least} {_hosts(elastic)} that it needs have joined"
                    raise DeadlineExceeded(f"job {new.job!r}: {text}")
                if not news:
                    self._complete(new.title, forming)
                    return
            if forming.conflict:
                raise FailedPrecondition(forming.conflict)
        finally:
            if forming.waiting.get(place) is new:
                del forming.waiting[place]
                self._changes.notify()
            if not forming.waiting and self._forming.get(new.title) is forming:
                self._forms_no_more(new.title)

    async def _wait_beside(self, new: Registration, forming: Forming, first: Registration, deadline: float) -> None:
        """Of a further rank of a host: the first one waits for both."""

        def over() -> bool:
            return self._decided(first, forming)

        if not await self._changes.until(over, deadline):
            raise DeadlineExceeded(f"job {new.job!r}: the ranks that it needs have not joined")
        if forming.conflict:
            raise FailedPrecondition(forming.conflict)

    def _has_news(self, new: Registration, forming: Forming, came: int) -> bool:
        return self._decided(new, forming) or len(forming.waiting) != came

    def _seat(self, new: Registration, record: Record) -> Membership | None:
        before = list(record.hosts)
        if new.elastic is None or record.elastic is None:
            check_newcomer(new, record)
        told = take_seat(new, record, asyncio.get_running_loop().time())
        if before != record.hosts:
            for seat in [host for host in record.hosts if host.incarnation == new.host.incarnation]:
                log.info("host comes job=%s host=%d address=%s", new.job, seat.index, seat.address)
            self._changed()
        return told

    async def _wait_for_free_seat(self, new: Registration, record: Record, deadline: float) -> Registration:
        """A spare: it waits until somebody leaves, and costs the others nothing. Returns what it asks for then: also a
        seat that hosts of the job refused it a while ago. This daemon believed that seat to be free, so nobody tells
        it when that becomes true."""
        loop = asyncio.get_running_loop()
        refused_until = loop.time() + REFUSED_SECONDS

        def free() -> bool:
            if not self._is_there(new.job, record):
                return True
            return free_seat(record, new.host, loop.time(), new.taken) is not None

        while not await self._changes.until(free, min(deadline, loop.time() + SETTLE_SECONDS)):
            if loop.time() >= deadline:
                most, what = new.seats, _hosts(new.elastic)
                raise DeadlineExceeded(f"job {new.job!r}: has {most} of {most} {what}; this one waits as a spare")
            if loop.time() >= refused_until:
                new = replace(new, taken=frozenset())
        return new


def _hosts(rules: Elastic | None) -> str:
    """For people: what is counted where hosts come and go."""
    return "hosts" if rules is not None and rules.each > 1 else "ranks"
