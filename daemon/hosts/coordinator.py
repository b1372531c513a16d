# SPDX-License-Identifier: Apache-2.0
"""The coordinator: where the ranks of a job find each other.

It runs on the daemon of rank 0. A job first *forms*: registrations wait here until all ranks of the world are there
or one of them contradicts the others. Then it has a *record*, and each registration is answered from that: a rank
whose process or daemon was restarted comes back into its old place at once. A record ends when all its hosts are
gone; the name can then be used again. A record that was formed but in which nobody ever ran an op (it is not
*confirmed*) does not bind: a new life of one of its hosts starts the forming over.

Whose a name is comes before all else. A job is known by its *title*, its name and its secret: what was registered,
contradicted or restored without a secret is of another job than what those do who have shown it, and in nobody's way.
One user's ranks that differ in this have made a mistake, and those without the secret are told so.

Two things are less simple than they look. A rank that left in good order and comes again wants the next life of the
job, not this one, even if slower ranks have not left yet: it waits. And when the world sizes differ, ranks that
arrive after the conflict was found are told of it too, so that no rank is left waiting for its deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from ultima.daemon.base.addresses import same_machine
from ultima.daemon.base.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Refused,
    ResourceExhausted,
)
from ultima.daemon.base.quota import Quota
from ultima.daemon.base.waiting import Changes, numbers
from ultima.daemon.hosts.former import Former
from ultima.daemon.hosts.host import Membership, Place, State, fresh_number
from ultima.daemon.hosts.lanes import lanes, portions
from ultima.daemon.hosts.registration import (
    STRANGER,
    Forming,
    Record,
    Registration,
    Title,
    Voucher,
    check_options,
    check_owner,
    check_wires,
    common_wires,
    disagreement,
    form,
)
from ultima.daemon.hosts.seating import Seating
from ultima.daemon.hosts.seats import seated, take_news
from ultima.v1.limits import WORLD_SIZE_MAX

log = logging.getLogger("ultimad.rendezvous")

CONFLICTS_MAX = 256
CONFLICT_SECONDS = 30.0  # for which ranks that come late to a conflict are told of it
GAVE_UP_SECONDS = 5.0
UNCONFIRMED_SECONDS = 600.0  # after which a job is forgotten in which no host ever came up
SILENT_SECONDS = 60.0  # that the hosts of a restored job have to begin to watch this daemon
RECORDS_MAX = 1024
RESTORED_MAX = 512  # of the records; the rest is for jobs that form here
TELLERS_MAX = 8  # whose words of one job stand side by side: its hosts say the same, a few nodes may make it up
FORMING_MAX = 256  # jobs that form here at once; they hold no memory to speak of, but strangers may not pile them up
WAITING_MAX = 4096  # ranks that wait for such jobs


@dataclass(slots=True)
class _Conflict:
    message: str
    uid: int
    """Of those who made it, if they have no secret."""
    told: set[int]
    expires: float


class Coordinator(Seating):
    """All jobs that form or run with this daemon as their meeting point."""

    def __init__(
        self,
        on_change: Callable[[], None],
        watching: Callable[[], set[Place]] = lambda: set(),
        former: Former | None = None,
    ) -> None:
        """`on_change` is called when the set of hosts to be watched may have changed; `watching` are the places of the
        daemons that watch this one; `former` knows the jobs of a former life."""
        self._on_change, self._watching = on_change, watching
        self._former = former or Former(None, 0.0)
        self._changes = Changes()
        self._forming: dict[Title, Forming] = {}
        self._records: dict[str, list[Record]] = {}
        self._conflicts: dict[Title, _Conflict] = {}
        self._quota_waiting = Quota("ranks that wait here for their jobs", WAITING_MAX)
        self._quota_forming = Quota("jobs that form here at once", FORMING_MAX)
        self._quota_restored = Quota("jobs restored here", RESTORED_MAX)

    def places(self) -> set[Place]:
        """Where the daemons of all recorded hosts listen."""
        return {host.place for _, record in self._all() for host in record.hosts if not host.vacant}

    def record(self, job: str) -> Record | None:
        """The record of a job, if it has one; of several of one name, one whose secret has been shown."""
        return max(self._records.get(job, ()), key=lambda record: bool(record.secret), default=None)

    def forming(self, job: str) -> tuple[int, list[int]]:
        """World size and waiting ranks of a job that forms here; of several of one name, of one that has a secret.
        Raises NotFound."""
        found = [(title[1], forming) for title, forming in self._forming.items() if title[0] == job and forming.waiting]
        if not found:
            raise NotFound(f"job {job!r}: does not form here")
        _, forming = max(found, key=lambda each: bool(each[0]))
        first = next(iter(forming.waiting.values()))
        return first.elastic.least if first.elastic else first.world_size, sorted(forming.waiting)

    async def register(self, new: Registration, deadline: float) -> Membership:
        """Waits until the job of a rank is complete, and tells its membership. Raises Refused."""
        if not 1 <= new.world_size <= WORLD_SIZE_MAX:
            raise InvalidArgument(f"world_size = {new.world_size}: allowed: 1 to {WORLD_SIZE_MAX}")
        if not 0 <= new.rank < new.world_size:
            raise InvalidArgument(f"rank = {new.rank}: allowed: 0 to {new.world_size - 1}")
        with self._quota_waiting.taken(new.account):
            return await self._register(new, deadline)

    async def _register(self, new: Registration, deadline: float) -> Membership:
        while True:
            self._forget_unconfirmed()
            record = self._claim(new)
            if record is None:
                await (self._wait_for_seats if new.elastic else self._wait_for_all)(new, deadline)
            elif new.elastic or record.elastic:
                seated = self._seat(new, record)
                if seated is not None:
                    return seated
                new = await self._wait_for_free_seat(new, record, deadline)
            elif record.generation == new.left_generation:
                self._has_left(new, record)
                await self._wait_for_end(new.job, record, deadline)
            else:
                answer = self._place(new, record)
                if answer is not None:
                    return answer

    def _claim(self, new: Registration) -> Record | None:
        """The record that a rank has the right to, before anything of it is compared; None if there is none. Raises
        PermissionDenied for a rank without the right to its name."""
        records = self._records.get(new.job, [])
        self._check_mistake(new)
        mine = [record for record in records if record.is_of(new.secret)]
        if not mine:
            return None
        first = mine[0]
        check_owner(new, first.uid)
        # Whoever restored it has shown this secret: what others told of the same job says no more.
        first.secret, first.vouched = new.secret, None
        for other in mine[1:]:
            self._drop(new.job, other, "several hosts told of it")
        return first

    def _check_mistake(self, new: Registration) -> None:
        """Ranks of one user that do not agree whether their job has a secret: those without it are told. Who has shown
        one is never held up by others, since their user is on their own word."""
        if new.secret and (without := self._forming.get((new.job, b""))) is not None:
            mistaken = [rank for rank, other in without.waiting.items() if other.uid == new.uid]
            for rank in mistaken:
                del without.waiting[rank]
            if mistaken:
                self._changes.notify()
        if new.secret:
            return
        of_name = [forming for title, forming in self._forming.items() if title[0] == new.job and title[1]]
        uids = {other.uid for forming in of_name for other in forming.waiting.values()}
        if new.uid in uids | {record.uid for record in self._records.get(new.job, ()) if record.secret}:
            raise PermissionDenied(f"job {new.job!r}: has a secret, unlike rank {new.rank}")

    def restore(self, job: str, told: Membership, source: str, voucher: Voucher = STRANGER) -> None:
        """Takes over a job that ran before this daemon did, unless it is known. Raises Refused.

        `source` is the address of who tells it, which must be one of its hosts'. It is forgotten again if none of
        them watches this daemon by SILENT_SECONDS. With a proof it is the job of those who hold the secret, which a
        rank has to show first: until then each teller's word stands beside the others'.
        """
        account = voucher.node or source
        for known in self._records.get(job, ()):
            if known.is_of(b"") if voucher.vouched is None else known.secret and voucher.vouched(known.secret):
                take_news(known, told)
                return
            if voucher.vouched is not None and known.vouched is not None and known.restored_by == account:
                return
        words = sum(known.vouched is not None for known in self._records.get(job, ()))
        if voucher.vouched is not None and words >= TELLERS_MAX:
            return
        if not any(host.node == voucher.node and same_machine(source, host.address) for host in told.hosts):
            who = f"{source} (node {voucher.node!r})" if voucher.node else source
            raise PermissionDenied(f"hosts: none is at {who}, which tells of job {job!r}: allowed: one of its hosts")
        self._check_room()
        self._quota_restored.take(account)
        log.info("job restored job=%s generation=%d hosts=%d", job, told.generation, len(told.hosts))
        record = Record(
            generation=told.generation,
            world_size=told.world_size,
            bucket_bytes_max=told.bucket_bytes_max,
            hosts=list(told.hosts),
            # Of its own host nobody knows better than this daemon: it is in no life that was before.
            states=[
                State.UP if state is State.UP and (i or told.elastic) and not host.vacant else State.ABSENT
                for i, (host, state) in enumerate(zip(told.hosts, told.states, strict=True))
            ],
            confirmed=True,
            next_op_seq=told.next_op_seq,
            options=told.options,
            lanes=told.lanes,
            portions=told.portions,
            restored_by=account,
            uid=voucher.uid,
            vouched=voucher.vouched,
            elastic=told.elastic,
        )
        self._records.setdefault(job, []).append(record)
        asyncio.get_running_loop().call_later(SILENT_SECONDS, self._look_at_restored, job, record)
        self._changed()

    def host_is(self, place: Place, job: str, generation: int, index: int, incarnation: int, state: State) -> None:
        """News of one host of a job from the daemon at `place`. What is not its own, or of another life, is void."""
        for record in list(self._records.get(job, ())):
            if record.generation != generation or not 0 <= index < len(record.hosts):
                continue
            if record.hosts[index].incarnation != incarnation or record.hosts[index].place != place:
                continue
            record.states[index] = state
            record.confirmed = record.confirmed or state is State.UP
            self._end_if_over(job, record)

    def place_lost(self, place: Place, coming: bool = False) -> None:
        """The daemon at `place` has died: all its hosts are absent. `coming`: those that were to come in to an elastic
        job, too."""
        for job, record in self._all():
            there = (State.UP, State.CONNECTING) if coming and record.elastic else (State.UP,)
            for host in record.hosts:
                if host.place == place and record.states[host.index] in there:
                    record.states[host.index] = State.ABSENT
            self._end_if_over(job, record)

    def _all(self) -> list[tuple[str, Record]]:
        return [(job, record) for job, records in self._records.items() for record in records]

    def _check_room(self) -> None:
        if len(self._all()) >= RECORDS_MAX:
            raise ResourceExhausted(f"jobs that this daemon coordinates: {RECORDS_MAX} are under way already")

    def _forget_unconfirmed(self) -> None:
        oldest = asyncio.get_running_loop().time() - UNCONFIRMED_SECONDS
        for job, record in self._all():
            if not record.confirmed and record.formed_at < oldest:
                self._drop(job, record, "no host ever came up")

    def _look_at_restored(self, job: str, record: Record) -> None:
        """Its hosts that are up watch the daemon of host 0, this one, by now."""
        here = {*self._watching(), *([] if record.elastic else [record.hosts[0].place])}
        for host in record.hosts:
            if host.place not in here:
                record.states[host.index] = State.ABSENT
        self._end_if_over(job, record)

    def _has_left(self, new: Registration, record: Record) -> None:
        """The host of a rank that wants the next life has left this one in good order: so it says itself."""
        for host in record.hosts:
            if host.place == new.host.place and same_machine(new.source or host.address, host.address):
                record.states[host.index] = State.ABSENT
        self._end_if_over(new.job, record)

    def _changed(self) -> None:
        self._former.keep({job for job, record in self._all() if record.elastic})
        self._changes.notify()
        self._on_change()

    def _end_if_over(self, job: str, record: Record) -> None:
        if record.over:
            self._drop(job, record, "all hosts are gone")

    def _drop(self, job: str, record: Record, why: str) -> None:
        if self._is_there(job, record):
            log.info("job over job=%s generation=%d reason=%s", job, record.generation, why)
            self._records[job] = [each for each in self._records[job] if each is not record]
            if not self._records[job]:
                del self._records[job]
            if record.restored_by is not None:
                self._quota_restored.give_back(record.restored_by)
            self._changed()

    def _is_there(self, job: str, record: Record) -> bool:
        return any(each is record for each in self._records.get(job, ()))

    def _formed(self, new: Registration) -> bool:
        return any(record.is_of(new.secret) for record in self._records.get(new.job, ()))

    async def _wait_for_end(self, job: str, record: Record, deadline: float) -> None:
        if not await self._changes.until(lambda: not self._is_there(job, record), deadline):
            ranks = [
                r for h, s in zip(record.hosts, record.states, strict=True) if s is not State.ABSENT for r in h.ranks
            ]
            raise DeadlineExceeded(f"job {job!r}: its last run is not over: ranks {numbers(ranks)} have not left it")

    async def _wait_for_all(self, new: Registration, deadline: float) -> None:
        """Returns when the job has a record. A rank is registered while its call waits here, and no longer."""
        self._tell_of_conflict(new)
        forming = self._forming_of(new)
        if conflict := disagreement(new, forming.waiting):
            self._fail(new, forming, conflict)
        held = forming.waiting.get(new.rank)
        if held is not None and held.host.place != new.host.place:
            raise AlreadyExists(f"rank = {new.rank}: has joined job {new.job!r} on {held.host.address} already")
        # A restarted daemon starts over: what its former life registered is void.
        for rank, other in list(forming.waiting.items()):
            if other.host.place == new.host.place and other.host.incarnation != new.host.incarnation:
                del forming.waiting[rank]
        forming.waiting[new.rank] = new
        try:
            if len(forming.waiting) == new.world_size:
                self._complete(new.title, forming)
                return
            if not await self._changes.until(lambda: self._decided(new, forming), deadline):
                missing = self._missing(new, forming)
                raise DeadlineExceeded(
                    f"job {new.job!r}: ranks {numbers(missing)} of world_size {new.world_size} have not joined"
                )
            if forming.conflict:
                raise FailedPrecondition(forming.conflict)
            if not self._formed(new):
                raise FailedPrecondition(
                    f"rank = {new.rank}: this call for job {new.job!r} is void: the rank has registered again, or "
                    "others of the same user have shown a secret of the job, and it has not"
                )
        finally:
            if forming.waiting.get(new.rank) is new:
                del forming.waiting[new.rank]
            if not forming.waiting and self._forming.get(new.title) is forming:
                self._forms_no_more(new.title)

    def _admit(self, new: Registration, forming: Forming) -> None:
        """Whose the job is, the first user's without a secret, and whose the place. Raises PermissionDenied."""
        for other in forming.waiting.values():
            if other.host.place[:2] == new.host.place[:2] and other.host.node != new.host.node:
                raise PermissionDenied(f"{new.host.place}: is node {other.host.node!r}, not node {new.host.node!r}")
            check_owner(new, other.uid)

    @staticmethod
    def _missing(new: Registration, forming: Forming) -> set[int]:
        """Ranks to be named to one that gives up. Those that gave up a moment ago, at the same deadline, did come."""
        now = asyncio.get_running_loop().time()
        forming.gave_up[new.rank] = now
        came = {rank for rank, at in forming.gave_up.items() if now - at <= GAVE_UP_SECONDS}
        return set(range(new.world_size)) - forming.waiting.keys() - came

    def _forms_no_more(self, title: Title) -> None:
        forming = self._forming.pop(title, None)
        if forming is not None:
            self._quota_forming.give_back(forming.account)

    def _decided(self, new: Registration, forming: Forming) -> bool:
        return bool(forming.conflict) or self._formed(new) or forming.waiting.get(new.rank) is not new

    def _complete(self, title: Title, forming: Forming) -> None:
        job, registrations = title[0], list(forming.waiting.values())
        try:
            self._check_room()
            elastic, most = registrations[0].elastic, registrations[0].seats
            hosts = seated(registrations, most) if elastic else form(registrations)
        except Refused as error:
            forming.conflict = str(error)
            self._forms_no_more(title)
            self._changed()
            raise
        bucket = max(registration.bucket_bytes_max for registration in registrations)
        options = registrations[0].options
        there = [host for host in hosts if not host.vacant]
        job_lanes = lanes(options, there)
        record = Record(
            generation=fresh_number(),
            world_size=registrations[0].world_size,
            bucket_bytes_max=bucket,
            hosts=hosts,
            states=[State.ABSENT if host.vacant else State.CONNECTING for host in hosts],
            formed_at=asyncio.get_running_loop().time(),
            # Ranks whose daemons all forgot the job have come this far; who is behind them was left out of some ops.
            next_op_seq=max(registration.next_op_seq for registration in registrations),
            options=options,
            lanes=job_lanes,
            portions=1 if elastic else portions(options, there, job_lanes),  # else a view could begin between two
            uid=registrations[0].uid,
            secret=title[1],
            elastic=elastic,
            founders=tuple(hosts) if elastic else (),
        )
        self._records.setdefault(job, []).append(record)
        self._forms_no_more(title)
        log.info(
            "job formed job=%s generation=%d world_size=%d hosts=%d",
            *(job, record.generation, record.world_size, len(hosts)),
        )
        self._changed()

    def _fail(self, new: Registration, forming: Forming, conflict: str) -> None:
        """Tells everyone who waits, and prepares to tell those who still come."""
        log.warning("job does not form job=%s reason=%s", new.job, conflict)
        forming.conflict = conflict
        told = {new.rank, *forming.waiting}
        self._forms_no_more(new.title)
        expires = asyncio.get_running_loop().time() + CONFLICT_SECONDS
        self._conflicts[new.title] = _Conflict(conflict, new.uid, told, expires)
        while len(self._conflicts) > CONFLICTS_MAX:
            del self._conflicts[next(iter(self._conflicts))]
        self._changed()
        raise FailedPrecondition(conflict)

    def _tell_of_conflict(self, new: Registration) -> None:
        now = asyncio.get_running_loop().time()
        for title in [title for title, conflict in self._conflicts.items() if conflict.expires <= now]:
            del self._conflicts[title]
        conflict = self._conflicts.get(new.title)
        if conflict is None or (new.host.node and not new.secret and new.uid != conflict.uid):
            return
        if new.rank in conflict.told:  # it knows and tries again: a new attempt of the whole job
            del self._conflicts[new.title]
            return
        conflict.told.add(new.rank)
        raise FailedPrecondition(conflict.message)

    def _place(self, new: Registration, record: Record) -> Membership | None:
        """The place of a rank in a record; None if the record is void and the job forms anew."""
        if new.world_size != record.world_size:
            raise FailedPrecondition(
                f"job {new.job!r}: world_size differs: rank {new.rank} says {new.world_size}, "
                f"the job that is under way has {record.world_size}"
            )
        index = record.index_of(new.rank)
        host = record.hosts[index]
        if host.node != new.host.node:
            raise PermissionDenied(
                f"rank = {new.rank}: is in job {new.job!r} on node {host.node!r}, not on node {new.host.node!r}: "
                "restart the job to move it"
            )
        if host.incarnation != new.host.incarnation:
            if not record.confirmed:
                self._drop(new.job, record, "a host was restarted before the first op")
                return None
            if record.states[index] is not State.ABSENT and host.place != new.host.place:
                raise AlreadyExists(f"rank = {new.rank}: is in job {new.job!r} on {host.name}, which is alive")
            check_options(new.job, new.rank, new.options, record.options)
            if len(new.host.ports) < record.lanes:
                raise FailedPrecondition(
                    f"job {new.job!r}: engine.lanes = {len(new.host.ports)} on {new.host.address}: "
                    f"the job that is under way began with {record.lanes}"
                )
            check_wires(new, record.hosts)
            wires = common_wires(record.hosts)
            record.hosts[index] = replace(new.host, index=index, ranks=host.ranks, wires=wires)
            record.states[index] = State.ABSENT  # until it says that it is up
            if record.over:
                self._drop(new.job, record, "its last host was restarted")
                return None
            log.info("host returns job=%s host=%d ranks=%s", new.job, index, numbers(host.ranks))
            self._on_change()
        return Membership(
            record.generation,
            record.world_size,
            record.bucket_bytes_max,
            tuple(record.hosts),
            tuple(record.states),
            record.next_op_seq,
            record.confirmed,
            record.options,
            record.lanes,
            record.portions,
        )
