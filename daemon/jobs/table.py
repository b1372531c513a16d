# SPDX-License-Identifier: Apache-2.0
"""All jobs of this host: who comes in, who goes, and what the other hosts say.

Coming in takes four steps, each bounded by the caller's deadline: the rank is *admitted* to the job's life on this
host, it *registers* with the coordinator and learns the membership, the job *connects* to the other hosts, and then
every local rank gets its *session*, because the engine waits for those that it knows. A failure leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from ultima.daemon.base.addresses import is_here
from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.base.cpus import cpus
from ultima.daemon.base.errors import DeadlineExceeded, FailedPrecondition, NotFound, Refused, Unavailable
from ultima.daemon.base.options import InForce
from ultima.daemon.base.waiting import Changes, numbers, spawn
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.engine.seal import Sealing
from ultima.daemon.hosts.coordinator import Coordinator
from ultima.daemon.hosts.host import Host, Membership, Place, State
from ultima.daemon.hosts.meeting import ALONE, ALONE_ADDRESS
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.hosts.registration import Title
from ultima.daemon.jobs.claims import until_seated
from ultima.daemon.jobs.entrance import Entrance
from ultima.daemon.jobs.fellows import Fellows
from ultima.daemon.jobs.forming import herald
from ultima.daemon.jobs.job import Job, Joined, JoinSpec, Session, engine_config
from ultima.daemon.jobs.links import Links
from ultima.daemon.jobs.registering import registration, request
from ultima.daemon.jobs.returning import first_op_seq, next_op_seq_of
from ultima.daemon.jobs.watchers import Watchers
from ultima.daemon.observe.late import LateHosts
from ultima.daemon.observe.partial_stats import PartialStats
from ultima.daemon.observe.recorder import Recorder
from ultima.daemon.trainers.attach import Trainer
from ultima.daemon.trainers.budget import Budget, check_share
from ultima.v1 import admin_pb2

log = logging.getLogger("ultimad.jobs")

LEFT_MAX = 256  # names whose last life is remembered
LINGER_SECONDS = 2.0  # for which other hosts, where none is far, can still ask for what a host's last op sent them
SETTLED_SECONDS = 0.05  # from one look to the next whether they still can
MOURN_SECONDS = 0.25  # the same of a host whose last trainer died, for which ops that are under way wait meanwhile


class JobTable(Entrance):
    """See the module."""

    def __init__(
        self,
        config: DaemonConfig,
        engine: HostEngine,
        budget: Budget,
        coordinator: Coordinator,
        watchers: Watchers,
        changes: Changes,
        node: str = "",
    ) -> None:
        """`changes` is told of whatever changes who is in a job, or how a job behaves; `node` is this host's own."""
        self._config, self._engine, self._budget, self._node = config, engine, budget, node
        self._coordinator, self._watchers, self._changes = coordinator, watchers, changes
        self._jobs: dict[Title, Job] = {}
        self._by_number: dict[int, Job] = {}
        self._at: dict[Trainer, tuple[Job, int]] = {}
        self._coming: set[Trainer] = set()
        self._left: OrderedDict[Title, int] = OrderedDict()
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._grpc_port = 0
        self._peers: Peers | None = None
        self.recorder = Recorder(engine)
        self.settle: Callable[[], None] = lambda: None
        """Takes what the engine has told and nobody has heard yet: before a job goes, and its number with it."""
        self.fellows = Fellows(self._jobs, engine, coordinator, watchers, changes, config.address, node)

    def start(self, grpc_port: int, peers: Peers) -> None:
        """The daemon's own port is known, and others can be called."""
        self._grpc_port, self._peers = grpc_port, peers
        self.fellows.start(grpc_port, peers)

    def all(self) -> list[Job]:
        """All jobs, by name."""
        return sorted(self._jobs.values(), key=lambda job: job.name)

    def record(self, job: Job) -> admin_pb2.GetReceiptsResponse:
        """What the engine remembers of a job's ops."""
        world_size = job.membership.world_size if job.membership else 0
        return self.recorder.recorded(job.name, job.number, world_size, job.hosts(), job.elastic is not None)

    def next_op_seq(self, job: Job) -> int:
        """The number that follows the newest op seen here or heard of."""
        return self._engine.next_op_seq(job.number)

    def by_number(self, number: int) -> Job | None:
        """The job that the engine knows by this number."""
        return self._by_number.get(number)

    # ---- trainers ----

    async def join(self, trainer: Trainer, spec: JoinSpec, deadline: float) -> Joined:
        """Makes an attached trainer a rank of a job. Raises Refused; also when the trainer dies meanwhile."""
        work = asyncio.ensure_future(until_seated(lambda lost: self._join(trainer, spec, deadline, lost)))
        gone = asyncio.ensure_future(trainer.gone.wait())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Unavailable(f"rank = {spec.rank}: its trainer has hung up")
            return work.result()
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    @contextmanager
    def coming(self, trainer: Trainer) -> Iterator[None]:
        """A trainer has asked to join, and has one of its user's places until it knows. Raises ResourceExhausted.

        So joins that wait for a coordinator that never answers are as few as trainers in jobs.
        """
        holders = (each.uid for each in {*self._at, *self._coming})
        check_share("sessions", self._config.limits, holders, trainer.uid, "trainers are in jobs, or join one")
        self._coming.add(trainer)
        try:
            yield
        finally:
            self._coming.discard(trainer)

    def leave(self, trainer_ticket: str, session: int) -> Trainer:
        """Ends a rank's membership in good order, and returns its trainer. Raises NotFound."""
        trainer, job, rank = self.at(trainer_ticket, session)
        self._drop_session(job, rank, in_good_order=True)
        return trainer

    def at(self, trainer_ticket: str, session: int) -> tuple[Trainer, Job, int]:
        """Whose session it is, and its job and rank. Raises NotFound."""
        for trainer, (job, rank) in self._at.items():
            if trainer.ticket == trainer_ticket and job.sessions[rank].number == session:
                return trainer, job, rank
        raise NotFound(f"session = {session}: no such session with this ticket")

    def trainer_gone(self, trainer: Trainer) -> None:
        """The trainer is dead: nothing touches its memory after this."""
        if trainer in self._at:
            self._drop_session(*self._at[trainer], in_good_order=False)

    async def _join(self, trainer: Trainer, spec: JoinSpec, deadline: float, lost: Set[int]) -> Joined:
        job = await self._admit(trainer, spec, deadline)
        job.taken |= lost
        here = Place(self._config.address, self._grpc_port)
        work = herald(job, spec, trainer, here, lambda spec: self.fellows.forming(spec, job.uid))
        heralding = spawn(work, f"herald-{job.name}")
        try:
            spec = await self._seated(job, spec, deadline)
            self.fellows.tell_where_hosts_meet(job)
            await self.fellows.laid(job)
            await self.fellows.council.admitted(job, deadline)
            session, next_op_seq = self._add_session(job, trainer, spec.rank)
            self._changes.notify()
            await self._changes.until(lambda: job.all_in, deadline)
            if not job.gathered:
                raise Unavailable(f"job {job.name!r}: another rank of this host is gone")
            self._announce(job)
            assert job.membership is not None and job.own is not None and job.in_force is not None
            said = job.name, spec.rank, session, trainer.pid, next_op_seq
            log.info("rank joined job=%s rank=%d session=%d pid=%d next_op_seq=%d", *said)
            self.recorder.events.note(
                "rank_joined", f"rank {spec.rank} of job {job.name} has joined", job.name, rank=spec.rank
            )
            member, options = job.membership, job.in_force.options
            bucket, lanes, parts = member.bucket_bytes_max, member.lanes, member.portions
            first = job.hosts(), job.own.index, next_op_seq, session
            view = self.fellows.council.view(job) if job.elastic else None
            return Joined(*first, bucket, options, lanes, parts, spec.rank, view)
        except BaseException:
            if trainer in self._at:
                self._drop_session(job, spec.rank, in_good_order=False)
            raise
        finally:
            heralding.cancel()
            if len(job.joining) == 1:
                job.waiting_for = ""
            del job.joining[job.place_of(trainer)]
            self._dissolve_if_empty(job)
            self._changes.notify()

    async def drain(self, trainer_ticket: str, session: int, deadline: float, next_op: int | None) -> None:
        """Before a rank leaves a job whose hosts come and go: until the others have agreed on a view without it. It
        does not call `next_op`."""
        if (job := self.at(trainer_ticket, session)[1]).elastic:
            await self.fellows.council.leave(job, deadline, next_op)

    async def _register(self, job: Job, spec: JoinSpec, deadline: float) -> Membership:
        host = Host(
            index=0,
            address=(self._config.address or spec.advertise) if self._grpc_port else ALONE_ADDRESS,
            grpc_port=self._grpc_port,
            ports=self._engine.ports,
            incarnation=job.incarnation,
            ranks=spec.elastic.ranks_of(0) if spec.elastic else (spec.rank,),
            packet_bytes=self._engine.info.packet_bytes,
            node=self._node,
            cpus=cpus(),
            wires=self._engine.info.wires,
            natted=bool(self._config.advertise) and not is_here(self._config.advertise),
        )
        left = self._left.get(job.title, 0)
        if spec.rendezvous is None:
            try:
                return await self._coordinator.register(registration(job, spec, host, left), deadline)
            except DeadlineExceeded as error:
                raise error if self._grpc_port else DeadlineExceeded(f"{error}; {ALONE}") from None
        assert self._peers is not None
        return await self._peers.register(spec.places, request(job, spec, host, left), spec.secret, deadline)

    def _form(self, job: Job, membership: Membership, rank: int) -> None:
        """Takes the membership that a registration brought; only the first one of a life counts."""
        if job.membership is not None:
            if job.membership.generation != membership.generation:
                raise FailedPrecondition(f"job {job.name!r}: formed again while rank {rank} joined: join again")
            return
        own = next((host for host in membership.hosts if rank in host.ranks), None)
        if own is None or own.incarnation != job.incarnation:
            raise FailedPrecondition(f"job {job.name!r}: rank {rank} has its place in another life of this host")
        if (own.grpc_port, own.ports) != (self._grpc_port, self._engine.ports):
            raise FailedPrecondition(f"job {job.name!r}: its coordinator tells other ports of this host than it has")
        try:
            job.check_failed()
            with ExitStack() as undo:
                self._begin(job, membership, own, undo)
                undo.pop_all()
        except Refused as error:
            job.failed = error  # of all its ranks here: the next to ask must not begin what is over elsewhere
            raise
        finally:
            if job.membership is None:
                life = membership.generation, own.index, own.incarnation
                self._coordinator.host_is(own.place, job.name, *life, State.ABSENT)
        self._links_changed(job)
        self.fellows.watch()

    def _begin(self, job: Job, membership: Membership, own: Host, undo: ExitStack) -> None:
        """Gives the job its place in the engine, and starts to connect; `undo` is told how to take that back."""
        asked = max((joiner.spec.rate_bytes_per_s for joiner in job.joining.values()), default=0)
        config = engine_config(membership, own, asked, self._config.limits.rate_bytes_per_s, sealed=bool(self._node))
        config = replace(config, first_op_seq=first_op_seq(job, membership))
        memory_bytes = self._engine.job_bytes(config, membership.lanes)
        self._budget.take_engine(job.uid, job.account, memory_bytes, membership.bucket_bytes_max)
        undo.callback(self._budget.give_back_engine, job.uid, job.account, memory_bytes)
        number = self._engine.job_add(config, membership.lanes)
        undo.callback(self._engine.job_remove, number)
        self._by_number[number] = job
        undo.callback(self._by_number.pop, number)
        undo.callback(job.unform)
        job.take_place(number, memory_bytes, membership, own)
        partial = membership.options.partial
        job.partial = PartialStats([host.ranks for host in membership.hosts]) if partial else None
        job.late = None if partial else LateHosts(len(membership.hosts))
        job.in_force = InForce(membership.options, self._changes.notify)
        assert self._peers is not None
        fresh, cipher = self._config.engine.new_secret_seconds, self._config.engine.cipher
        # The cipher is asked for where it is needed: a host without libcrypto still runs jobs that are not sealed.
        job.links = Links(
            self._engine,
            self._peers.connect,
            job.name,
            job.number,
            membership.generation,
            own,
            {host.index: host for host in membership.hosts if host.index != own.index},
            membership.next_op_seq,
            lambda: self._links_changed(job),
            job.secret,
            Sealing(self._engine.suite(cipher), job.name, job.generation, seconds=fresh) if self._node else None,
            elastic=membership.elastic is not None,
            is_in=lambda host: self.fellows.council.is_in(job, host),
        )
        log.info(
            "job begins job=%s uid=%d generation=%d host=%d hosts=%d ranks=%s under_way=%s",
            *(job.name, job.uid, membership.generation, own.index, len(membership.hosts), numbers(own.ranks)),
            membership.under_way,
        )
        self.recorder.life_begins(job.record, job.life())
        absent = {h.index for h, s in zip(membership.hosts, membership.states, strict=True) if s is State.ABSENT}
        begun = membership.under_way or membership.elastic is not None
        job.links.begin(membership.under_way, absent - {own.index} if begun else set())
        if membership.under_way and any(joiner.spec.next_op_seq is not None for joiner in job.joining.values()):
            for index in absent - {own.index}:
                self.fellows.returning.expected(job, job.links[index], self._config.limits.drain_window_seconds)

    def _add_session(self, job: Job, trainer: Trainer, rank: int) -> tuple[int, int]:
        if trainer.gone.is_set():
            raise Unavailable(f"rank = {rank}: its trainer has hung up")
        assert job.links is not None and job.membership is not None and job.own is not None
        first = self.fellows.council.first_op(job)
        next_op_seq = next_op_seq_of(job, rank, self._engine, first)
        if job.elastic:  # all ranks here begin with the same op, and none before the last of them is in
            here = (next_op_seq_of(job, each, self._engine, first) for each in job.joining)
            next_op_seq = job.entry_op = job.entry_op if job.sessions else max(here)
        self._budget.take_job(job.account, trainer.size)
        try:
            place = job.own.ranks.index(rank)
            memory = [replace(each, place=place) for each in trainer.memory]
            session = self._engine.session_add(job.number, memory, next_op_seq)
        except BaseException:
            self._budget.give_back_job(job.account, trainer.size)
            raise
        job.sessions[rank] = Session(session, trainer)
        job.seen.add(rank)
        self._at[trainer] = (job, rank)
        return session, next_op_seq

    def _drop_session(self, job: Job, rank: int, in_good_order: bool) -> None:
        session = job.sessions.pop(rank)
        del self._at[session.trainer]
        self._engine.session_remove(session.number)
        self._budget.give_back_job(job.account, session.trainer.size)
        if in_good_order and not job.elastic:
            job.left.add(rank)
        said = "left" if in_good_order else "died", job.name, rank, session.number, session.trainer.pid
        log.info("rank %s job=%s rank=%d session=%d pid=%d", *said)
        how = ("rank_left", "left", "info") if in_good_order else ("rank_died", "died", "warning")
        self.recorder.events.note(how[0], f"rank {rank} of job {job.name} {how[1]}", job.name, how[2], rank=rank)
        if not job.empty:
            self._announce(job)
        elif job.ready and not self._closing:
            self._announce(job)
            seconds = max(LINGER_SECONDS, self.fellows.patience(job)) if in_good_order else MOURN_SECONDS
            self._spawn(self._linger(job, seconds, in_good_order), f"linger {job.name}")
        else:
            self._dissolve(job)
        if job.elastic and not job.empty:
            self._go_together(job, rank, in_good_order)
        self._changes.notify()

    def _go_together(self, job: Job, rank: int, in_good_order: bool) -> None:
        """A rank has left a job whose hosts come and go, or died: its host goes. If it left, the others will, too."""
        if in_good_order:
            self.fellows.council.goes(job)
            return
        text = f"rank {rank} of job {job.name!r} died: the ranks of a host come and go together, connect again"
        while job.sessions:
            other, session = next(iter(job.sessions.items()))
            session.trainer.tell("rank gone", text)
            self._drop_session(job, other, in_good_order=False)
            session.trainer.hang_up()

    async def _linger(self, job: Job, seconds: float, in_good_order: bool) -> None:
        """Keeps the job in the engine while others may miss packets of its last op; they would count them as lost.

        Without a policy no later op is complete without the ranks that were here, so once the others have that last op
        they are told that this host is gone: it would only hold up the next one. Who died may yet come back.
        """
        loop, partial = asyncio.get_running_loop(), job.in_force is None or job.in_force.options.partial
        goes = in_good_order and not job.elastic and not partial

        def decided() -> bool:
            return job.over or not job.empty or (job.links is not None and job.links.done())

        end = loop.time() + seconds
        while not await self._changes.until(decided, min(loop.time() + SETTLED_SECONDS, end)) and loop.time() < end:
            if goes and job.number >= 0 and not self._engine.job_place(job.number).unsettled:
                break
        self._dissolve_if_empty(job)

    def _dissolve_if_empty(self, job: Job) -> None:
        if job.empty and not job.over:
            self._dissolve(job)

    def _dissolve(self, job: Job) -> None:
        """Nobody is in the job on this host any more."""
        self.settle()
        job.over = True
        del self._jobs[job.title]
        if job.membership is not None and job.links is not None:
            job.links.close()
            self.fellows.council.end(job)
            del self._by_number[job.number]
            try:
                self.recorder.job_ends(self.record(job), job.uid)
            finally:
                self.recorder.life_ends(job.record)
                self._leave_engine(job)
            if job.left:
                self._left[job.title] = job.membership.generation
                self._left.move_to_end(job.title)
                while len(self._left) > LEFT_MAX:
                    self._left.popitem(last=False)
            self._announce(job)
            self.fellows.watch()
            log.info("job ends job=%s generation=%d", job.name, job.generation)
        self._changes.notify()

    def _leave_engine(self, job: Job) -> None:
        self._engine.job_remove(job.number)
        self.settle()
        self._budget.give_back_engine(job.uid, job.account, job.memory_bytes)

    def _give_up_seat(self, job: Job) -> None:
        """Another host has the seat that this one was given: its ranks register again."""
        assert job.own is not None
        log.warning("seat taken job=%s host=%d: another host has it", job.name, job.own.index)
        self._announce(job)
        self.settle()
        del self._by_number[job.number]
        self.recorder.life_void(job.record)
        self._leave_engine(job)
        job.give_up_seat()

    def close(self) -> None:
        """Takes nobody in any more, and ends all jobs."""
        self._closing = True
        for job in self.all():
            if job.back_within_s and job.ready:
                self._part(job)
                continue
            while job.sessions:
                self._drop_session(job, next(iter(job.sessions)), in_good_order=False)
            if not job.over:
                self._dissolve(job)
        self.fellows.close()

    def go(self, back_within_s: float) -> None:
        """The daemon was told to stop. Takes nobody in any more, and begins no op; who is in stays, and others hear for
        how long they are to wait for the ranks here."""
        self._closing = True
        for job in [job for job in self.all() if job.ready and job.sessions and back_within_s]:
            job.back_within_s = back_within_s
            self._engine.job_hold(job.number)
            self._announce(job)

    def settled(self) -> bool:
        """Every op that was begun before `go` has ended, and nobody needs anything of it any more."""
        return not any(self._engine.job_place(job.number).unsettled for job in self.all() if job.number >= 0)

    def _part(self, job: Job) -> None:
        """The daemon goes, and the ranks of a job are to come back. The engine ends the job with a word to them alone:
        for other hosts an op that was under way goes on."""
        for session in job.sessions.values():
            session.trainer.part(job.back_within_s)
        self._dissolve(job)
        while job.sessions:
            session = job.sessions.popitem()[1]
            del self._at[session.trainer]
            self._budget.give_back_job(job.account, session.trainer.size)

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _links_changed(self, job: Job) -> None:
        for link in [link for link in job.links.values() if not link.host.vacant] if job.links is not None else ():
            self.recorder.host_is(job.record, link.host, link.state, link.why)
        if not job.ready and job.links is not None and job.membership is not None:
            lost = [f"{link.host.name}: {link.why}" for link in job.links.values() if link.state is State.ABSENT]
            if lost and not job.membership.under_way and not job.elastic:
                job.failed = Unavailable(f"job {job.name!r}: cannot begin: {'; '.join(lost)}")
            elif job.links.settled() and not job.unseated:
                job.ready = True
        self.fellows.review(job)
        self._changes.notify()

    def _announce(self, job: Job) -> None:
        """Tells the other hosts, and the coordinator here, how this host is."""
        if job.own is None or job.membership is None or not (job.ready or job.over or job.unseated):
            return
        state = State.ABSENT if job.over or job.unseated else State.UP
        self._coordinator.host_is(job.own.place, job.name, job.generation, job.own.index, job.incarnation, state)
        self._watchers.tell(job)
