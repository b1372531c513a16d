# SPDX-License-Identifier: Apache-2.0
"""The agreement on epochs among the daemons of each job: hands words to and fro, and what comes of them to the engine.

`decree.py` has the rules. Words go over the watch streams: a host tells its newest one to all that watch it, whenever
it has something new to say. Nothing is done while nothing changes.

A job begins with all its hosts in epoch 0, of which the engine knows by itself. A host that comes back to a job is told
what holds by the others' words, and opens no op before; but after a second, or the time in which words that were lost
come again where hosts are far, nobody is there to tell it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import asdict

from ultima.daemon.base.errors import DeadlineExceeded, Refused
from ultima.daemon.base.options import Options, check_change, check_job
from ultima.daemon.base.ranges import OP_SEQ_MAX, STEP_OPS, UINT64_MAX
from ultima.daemon.base.waiting import Changes
from ultima.daemon.engine.epochs import EngineEpoch
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Host
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs import epoch_words
from ultima.daemon.jobs.decree import Seat
from ultima.daemon.jobs.epoch import HEIR, Epoch, Member, Word
from ultima.daemon.jobs.heirs import Heirs, waits_apart
from ultima.daemon.jobs.here import Here
from ultima.daemon.jobs.job import Job, Standing, View
from ultima.daemon.jobs.link import Link
from ultima.daemon.jobs.returning import Note
from ultima.daemon.jobs.room import Room
from ultima.daemon.jobs.watchers import Watchers
from ultima.daemon.observe import view_changes
from ultima.v1 import peer_pb2

log = logging.getLogger("ultimad.council")

TOLD_SECONDS = 1.0  # at least, for the others to tell a host that comes back what holds
MARGIN_SECONDS = 0.02  # ops of this time may still begin while a new epoch is agreed on
HOLDS_SECONDS = 10 * MARGIN_SECONDS  # for those ops to be over where the job goes on
SEAT_SECONDS = 1.0  # for others to take a host in, before it asks them whether another one has its seat
BEGAN, CAME = "the job began", "this host is told what holds"
LOOK_SECONDS = 0.1  # between two looks at what the engine wishes, while ops go on


class Council:
    """See the module. It belongs to the event loop."""

    def __init__(self, engine: HostEngine, watchers: Watchers, changes: Changes) -> None:
        self._engine, self._watchers, self._changes = engine, watchers, changes
        self._rooms: dict[Job, Room] = {}
        self._peers: Peers | None = None
        self.note: Note = lambda kind, text, job, level, host="": None
        """Records an event: its kind, text, job and level."""

    def start(self, peers: Peers) -> None:
        """Others can be called."""
        self._peers = peers

    def epoch(self, job: Job) -> Epoch | None:
        """What holds in a job as far as this host knows."""
        return self._rooms[job].epoch if job in self._rooms else None

    def is_in(self, job: Job, host: Host) -> bool:
        """Whether this life of a host is in what holds."""
        epoch = self.epoch(job)
        return epoch is not None and Member(host.index, host.incarnation) in epoch.members

    def review(self, job: Job) -> None:
        """Something may have changed in a job: who is there, or how it stands."""
        if job.over or not job.ready or job.membership is None or job.own is None:
            return
        if job not in self._rooms:
            self._begin(job)
        self._turn(self._rooms[job])

    def heard(self, job: Job, link: Link, told: peer_pb2.EpochWord) -> bool:
        """Another host of a job has something to say. False: nobody listens here before the job has formed."""
        self.review(job)
        if (room := self._rooms.get(job)) is None:
            return False
        assert job.membership is not None
        try:
            hosts, began = len(job.membership.hosts), job.membership.options
            word = epoch_words.from_proto(told, hosts, began, lambda options: self.check(job, options))
        except Refused as error:
            log.warning("epoch word refused job=%s host=%d reason=%s", job.name, link.host.index, error)
            return True
        if room.seat.hear(Member(link.host.index, link.host.incarnation), word):
            self._turn(room)
            self._changes.notify()
        return True

    def check(self, job: Job, options: Options) -> None:
        """Raises Refused for options that the job cannot have while it runs."""
        assert job.membership is not None
        check_change(job.membership.options, options)
        check_job(options, job.membership.world_size)
        self._engine.options_fit(job.number, options)

    async def change(self, job: Job, change: dict[str, int], deadline: float) -> Epoch | None:
        """Has options of a job changed on all hosts, and returns the epoch that did it, once it holds here; None if the
        hosts did not agree in time. Then nothing is wanted any more."""
        await self._changes.until(lambda: job.over or job in self._rooms, deadline)
        room, loop = self._rooms.get(job), asyncio.get_running_loop()
        if room is None:
            return None
        found: list[Epoch] = []

        def made() -> bool:
            if room.epoch is not None and room.seat.member and change.items() <= asdict(room.epoch.settings).items():
                found.append(room.epoch)
            return bool(found) or job.over

        room.changes.append(change)
        try:
            self._turn(room)
            await self._changes.until(made, deadline)
        finally:
            room.changes.remove(change)
            if job in self._rooms:
                self._turn(room)
        epoch, until = found[0] if found else None, min(deadline, loop.time() + HOLDS_SECONDS)
        while epoch is not None and not job.over and self._engine.next_op_seq(job.number) < epoch.start:
            if loop.time() >= until:
                break  # it stands still, or its ops are long
            await asyncio.sleep(MARGIN_SECONDS / 2)
        return epoch

    def op_done(self, job: Job) -> None:
        """Ops go on: this host may own a shard from now on, or wish for another option."""
        room, now = self._rooms.get(job), time.monotonic()  # the loop's clock; to ask for the loop is a system call
        if room is not None and now >= room.looked + LOOK_SECONDS:
            room.looked = now
            word = room.seat.words[room.seat.me]
            wishes = self._engine.epoch_wishes(job.number)
            self._sample(room, now, wishes.next_op)
            if wishes.options != word.wishes or not room.opened:
                self._turn(room)

    def end(self, job: Job) -> None:
        """The job is over here."""
        room = self._rooms.pop(job, None)
        if room is not None and room.timer is not None:
            room.timer.cancel()
        if room is not None and room.heirs is not None:
            room.heirs.close()
        job.word = job.standing = None

    async def admitted(self, job: Job, deadline: float) -> None:
        """Returns when a host that comes back to a job is a member again, or nobody takes it in."""
        if job.follows:
            if not await self._changes.until(lambda: job.over or self.epoch(job) is not None, deadline):
                raise DeadlineExceeded(f"job {job.name!r}: no host that is in it said so")
        elif job.membership is not None and job.membership.under_way:
            until = min(deadline, asyncio.get_running_loop().time() + self._told_within(job))
            if job.elastic:
                await self._seated(job, deadline)
            else:
                await self._changes.until(lambda: job.over or job not in self._rooms or self._is_in(job), until)
            while not job.over and self._held_out(job) and asyncio.get_running_loop().time() < deadline:
                await self._changes.until(lambda: job.over or self._is_in(job) or not self._held_out(job), deadline)
                until = min(deadline, asyncio.get_running_loop().time() + self._told_within(job))
                await self._changes.until(lambda: job.over or job not in self._rooms or self._is_in(job), until)
            if job.elastic and not self._is_in(job):
                raise DeadlineExceeded(f"job {job.name!r}: the hosts in it did not take this one in")

    async def _seated(self, job: Job, deadline: float) -> None:
        """Returns when this host is a member of an elastic job. Raises SeatLost if another host is, by its seat."""

        def settled() -> bool:
            return job.over or job not in self._rooms or self._is_in(job)

        clock = asyncio.get_running_loop().time
        while not await self._changes.until(settled, min(deadline, clock() + SEAT_SECONDS)) and clock() < deadline:
            if job.links is not None:
                await self._changes.unless(settled, job.links.check_own_seat(), deadline)

    def caught_up(self, job: Job) -> None:
        """A rank that followed the others is to be in ops now: from here on this host asks them to be taken in."""
        if job.follows:
            job.follows = False
            log.info("host has caught up job=%s next_op_seq=%d", job.name, self._engine.next_op_seq(job.number))
            self.review(job)

    def goes(self, job: Job, next_op: int | None = None) -> None:
        """This host leaves: the others are to agree on a view without it. It has nothing for `next_op` any more."""
        room, first = self._rooms.get(job), OP_SEQ_MAX if next_op is None else next_op
        if room is not None and (not room.leaving or first < room.leaves_from):
            room.leaving, room.leaves_from = True, min(room.leaves_from, first)
            self._turn(room)

    async def leave(self, job: Job, deadline: float, next_op: int | None = None) -> None:
        """Returns when the others have agreed on a view without this host, or nobody is left who could, or too late."""
        if (room := self._rooms.get(job)) is None:
            return
        self.goes(job, next_op)
        await self._changes.until(
            lambda: job.over or job not in self._rooms or not room.seat.member or self._nobody_stays(room), deadline
        )

    @staticmethod
    def _nobody_stays(room: Room) -> bool:
        """Whether all other members leave, too, as at the end of a training, or are not seen."""
        words, me = room.seat.words, room.seat.me
        others = [m for m in room.epoch.members if m != me] if room.epoch is not None else []
        seen = words[me].sees if me in words else frozenset()
        return not any(m in seen and not (m in words and words[m].leaving) for m in others)

    def view(self, job: Job) -> View | None:
        """Who is in a job, as its trainers are to know it."""
        epoch = self.epoch(job)
        if epoch is None or job.membership is None:
            return None
        me = self._rooms[job].seat.me  # in its seat may be a former life of this host, or another host that is gone
        slots = [m.slot for m in epoch.members if m.slot != me.slot or m == me]
        ranks = sorted(rank for slot in slots for rank in job.membership.hosts[slot].ranks)
        return View(
            epoch.number, epoch.start, tuple(ranks), self._rooms[job].seat.why or (BEGAN if epoch.number == 1 else CAME)
        )

    def first_op(self, job: Job) -> int:
        """The op with which a host that comes back can begin: before that one the others do not know it."""
        room = self._rooms.get(job)
        back = room is not None and job.membership is not None and job.membership.under_way
        return room.epoch.start if back and room is not None and room.epoch is not None and room.seat.member else 0

    def _is_in(self, job: Job) -> bool:
        return job in self._rooms and self._rooms[job].seat.member

    def _held_out(self, job: Job) -> bool:
        """Whether another host says that this one flaps, and is to come in later."""
        room = self._rooms.get(job)
        if room is None or room.seat.member:
            return False
        return any(room.seat.me in word.damped for word in room.seat.seen().values())

    def _begin(self, job: Job) -> None:
        assert job.membership is not None and job.own is not None
        hosts, now = job.membership.hosts, asyncio.get_running_loop().time()
        me, settings = Member(job.own.index, job.incarnation), job.membership.options
        fresh = not job.membership.under_way or len(hosts) == 1
        all_hosts = tuple(Member(host.index, host.incarnation) for host in hosts if not host.vacant)
        number = 1 if job.elastic else 0  # the engine knows of number 0 that it has all hosts
        first = Epoch(number, job.generation, 0, all_hosts, frozenset(all_hosts), settings=settings) if fresh else None
        next_op = self._engine.epoch_wishes(job.number).next_op
        seat = Seat(me, first, job.generation, now, settings)
        room = Room(job, seat, None if job.elastic else first, next_op, fresh, sample=(now, next_op))
        self._rooms[job] = room
        if job.elastic:
            self._wait(room, 0)
        elif not fresh:
            self._engine.epoch_hold(job.number, 0, self._engine.now() + round(self._told_within(job) * 1e9))

    def _wait(self, room: Room, op: int) -> None:
        """Holds ops back from `op` on until another view holds: they end INSUFFICIENT at their deadlines."""
        room.waits_from = op
        self._engine.epoch_hold(room.job.number, op, UINT64_MAX)

    def _turn(self, room: Room) -> None:
        job, now = room.job, asyncio.get_running_loop().time()
        if room.timer is not None:
            room.timer.cancel()
            room.timer = None
        try:
            word = room.seat.turn(now, self._here(room, now))
            if room.seat.epoch is not room.epoch:
                self._took(room)
            self._tell_who_flaps(room)
            self._tell_who_is_in(room)
            if room.seat.hold != room.hold:
                room.hold = room.seat.hold
                word = self._hold_back(room, now) or word
        except Refused as error:
            log.error("engine refused job=%s reason=%s", job.name, error)
            return
        if word.serial != room.told and not job.follows:  # of whom the others hear nothing, they take nobody in
            room.told = word.serial
            job.word = epoch_words.to_proto(word)
            self._watchers.tell_word(job)
        if room.seat.wake < math.inf:
            room.timer = asyncio.get_running_loop().call_at(room.seat.wake, self._turn, room)

    def _tell_who_flaps(self, room: Room) -> None:
        job, damped = room.job, room.seat.damped
        for m in sorted(damped - room.damped):
            text = f"host {m.slot} of job {job.name} flaps: {room.seat.flaps.told(m.slot)}"
            self.note("host_flaps", text, job.name, "warning", host=str(room.places[m.slot]))
            log.warning("host flaps job=%s host=%d text=%s", job.name, m.slot, text)
        room.damped = damped

    def _tell_who_is_in(self, room: Room) -> None:
        """Brings what status says up to date."""
        seat, epoch = room.seat, room.epoch
        if epoch is None:
            room.job.standing = None
            return
        room.job.standing = Standing(
            epoch.number,
            epoch.start,
            seat.why or (BEGAN if epoch.number <= 1 else CAME),
            frozenset(m.slot for m in epoch.members),
            frozenset(m.slot for m, word in seat.words.items() if word.leaving),
            {m.slot: seat.flaps.told(m.slot) for m in seat.damped},
        )

    def _hold_back(self, room: Room, now: float) -> Word | None:
        """Has ops held back before that is told; the word that tells it, if it is another op from which it can be."""
        number, seat = room.job.number, room.seat
        if seat.hold is None:
            return None
        if room.waits_from is not None:
            self._wait(room, min(seat.hold[0], room.waits_from))
            return None
        until, word = self._engine.now() + round((seat.hold[1] - now) * 1e9), None
        self._engine.epoch_hold(number, seat.hold[0], until)
        if (next_op := self._engine.epoch_wishes(number).next_op) > seat.hold[0]:
            word = seat.held_from(next_op)
            self._engine.epoch_hold(number, next_op, until)
        room.hold = seat.hold
        return word

    def _here(self, room: Room, now: float) -> Here:
        job = room.job
        assert job.links is not None and job.membership is not None
        coded, partial = job.membership.options.coded, job.membership.options.partial
        change: dict[str, int] = {}
        for each in reversed(room.changes):
            change = each | change
        wishes = self._engine.epoch_wishes(job.number)
        self._sample(room, now, wishes.next_op)
        room.opened = room.opened or wishes.next_op > room.first_op
        for link in job.links.values():
            room.hosts[Member(link.host.index, link.host.incarnation)] = link.host
            if room.places.setdefault(link.host.index, link.host.place) != link.host.place:
                room.places[link.host.index] = link.host.place
                room.seat.flaps.forget(link.host.index)  # another host has its seat
        trips = [self._peers.round_trip(link.host.place).most for link in job.links.values()] if self._peers else []
        return Here(
            sees=frozenset(Member(x.host.index, x.host.incarnation) for x in job.links.values() if x.takes_part()),
            next_op=min(wishes.next_op, room.leaves_from),
            # The next op of a partial job may wait for just what is to change; and numbers between two steps of a coded
            # job are for attempts that fail, none of which is worth waiting for.
            margin=0 if partial else int(room.ops_per_second * MARGIN_SECONDS),
            round_trip=max(trips, default=0.0),
            opened=room.opened,
            leaving=room.leaving or job.follows,  # it does not go on alone either
            wishes=(*wishes.options[:HEIR], int(_is_heir(room))),
            change=tuple(sorted(change.items())),
            short=room.waits_from is not None,
            stride=STEP_OPS if coded else 1,
            patience=self._patience(job),
        )

    def _patience(self, job: Job) -> float:
        """Seconds in which hardly any word of another host fails to come."""
        places = [link.host.place for link in job.links.values()] if job.links is not None else []
        return max((self._peers.patience(place) for place in places), default=0.0) if self._peers else 0.0

    def _told_within(self, job: Job) -> float:
        return max(TOLD_SECONDS, self._patience(job))

    @staticmethod
    def _sample(room: Room, now: float, next_op: int) -> None:
        at, before = room.sample
        if now - at >= LOOK_SECONDS:
            room.sample, room.ops_per_second = (now, next_op), max(next_op - before, 0) / (now - at)

    def _took(self, room: Room) -> None:
        """Another epoch holds here."""
        job, before, epoch = room.job, room.epoch, room.seat.epoch
        room.epoch = epoch
        if epoch is None or job.membership is None or job.own is None:
            return
        slots = [m.slot for m in epoch.members]
        if job.elastic:
            if before is not None:
                went = [m for m in before.members if m not in epoch.members]
                left = sum(m in room.seat.words and room.seat.words[m].leaving for m in went)
                job.moves.changed(sum(m not in before.members for m in epoch.members), left, len(went) - left)
            self._look_who_is_in(room, epoch)
        if job.own.index in slots:  # in its place may be an earlier life of this host: then it still takes part by that
            # Ops that were held back while a branch waited are released by the next view: none is to be the branch's.
            if job.elastic is None or not waits_apart(job.elastic.split_waits, epoch):
                self._hand_over(job, epoch)
            self._put_in_force(job, epoch)
        if job.elastic and room.waits_from is None:
            self._engine.epoch_hold(job.number, OP_SEQ_MAX, 0)
        if epoch.number and (before is not None or room.seat.member):
            why = room.seat.why or (BEGAN if epoch.number == 1 and job.elastic else CAME)
            text = view_changes.sentence(
                *(job.name, epoch.number, epoch.start, why, len(slots), len(job.membership.hosts), len(epoch.owners))
            )
            level = "info" if before is None or len(slots) >= len(before.members) else "warning"
            self.note(view_changes.KIND, text, job.name, level)
            log.info("view changed job=%s number=%d id=%016x text=%s", job.name, epoch.number, epoch.id, text)
        self._changes.notify()

    def _look_who_is_in(self, room: Room, epoch: Epoch) -> None:
        """Has ops wait if the job has too few hosts, and tells trainers who is in."""
        job, rules = room.job, room.job.elastic
        assert rules is not None
        apart = waits_apart(rules.split_waits, epoch)
        room.hosts = {m: host for m, host in room.hosts.items() if m in epoch.members or m in (room.seat.left or ())}
        self._ask_after_others(room, waits=apart and room.seat.member)
        if not room.seat.member or apart or len(epoch.members) < rules.least:
            self._wait(room, epoch.start if room.waits_from is None and room.seat.member else 0)
        else:
            room.waits_from = None
        view = self.view(job)
        told = {} if view is None else view._asdict()
        for session in job.sessions.values():
            session.trainer.see(told)
        asyncio.get_running_loop().call_soon(self._let_go, room)

    def _ask_after_others(self, room: Room, waits: bool) -> None:
        """Has those asked after that this host's branch left, if ops wait for them."""
        left, links = room.seat.left if waits else None, room.job.links
        if room.heirs is not None and room.heirs.left != left:
            room.heirs.close()
            room.heirs = None
        if left and room.heirs is None and links is not None:
            hosts = {m: room.hosts.get(m) for m in left}
            room.heirs = Heirs(room.job.name, hosts, links.is_over, lambda: self._turn(room))

    def _let_go(self, room: Room) -> None:
        """Of a host that left in good order the path is given up as soon as nothing of its last op is needed here: an
        op that it did not call any more does not wait for it."""
        job, epoch = room.job, room.epoch
        if job.over or epoch is None or job.links is None or job not in self._rooms:
            return
        parting = [
            (link, room.seat.words[m].next_op)
            for link in job.links.values()
            for m in [Member(link.host.index, link.host.incarnation)]
            if link.up() and m not in epoch.members and m in room.seat.words and room.seat.words[m].leaving
        ]
        floor = self._engine.job_place(job.number).floor if parting else 0
        for link, last in parting:
            if floor >= last:
                job.links.left(link.host.index)
        if any(link.up() for link, _ in parting):
            asyncio.get_running_loop().call_later(MARGIN_SECONDS / 2, self._let_go, room)

    def _hand_over(self, job: Job, epoch: Epoch) -> None:
        assert job.membership is not None
        if epoch.number == 0:
            self._engine.epoch_hold(job.number, OP_SEQ_MAX, 0)  # the engine knows this one by itself
            return
        members, owners = epoch_words.mask(epoch.members), epoch_words.mask(epoch.owners)
        world = len(epoch.members) * job.elastic.each if job.elastic else job.membership.world_size
        settings = epoch.settings.seeded(job.generation)
        options = (*epoch.options[:HEIR], 0)
        values = (epoch.number, epoch.id, epoch.start, members, owners, options, world, settings)
        self._engine.epoch(job.number, EngineEpoch(*values))

    def _put_in_force(self, job: Job, epoch: Epoch) -> None:
        assert job.in_force is not None
        before = job.in_force.options
        job.in_force.take(epoch.settings, epoch.start, self._engine.next_op_seq(job.number))
        if before != epoch.settings:
            said = " ".join(f"{name}={value}" for name, value in epoch.settings.words().items())
            log.info("options job=%s op_seq=%d %s", job.name, job.in_force.start, said)
            text = f"job {job.name}, from op {job.in_force.start} on: {epoch.settings.changes(before)}"
            self.note("options_changed", text, job.name, "info")


def _is_heir(room: Room) -> bool:
    """Whether this host's branch waits for nobody, as far as it knows."""
    epoch = room.epoch
    if epoch is None or not epoch.line or not room.seat.member:
        return False
    return epoch.options[HEIR] == 1 or (room.heirs is not None and room.heirs.alone)
