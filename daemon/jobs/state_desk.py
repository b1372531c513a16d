# SPDX-License-Identifier: Apache-2.0
"""State for newcomers of jobs whose hosts come and go: what ranks say of it, and parts that hosts read of each other.

A rank that stands before an op and gives or takes state makes turns (trainer.proto): it says a word, which goes to all
other hosts on the watch streams, and gets what the others say. The rules by which one state is chosen are the client's.
Here no state is kept: a part that another host asks for is asked of the rank, and passed on.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ultima.daemon.base.errors import FailedPrecondition, InvalidArgument, NotFound
from ultima.daemon.base.ranges import INT64_MAX, OP_SEQ_MAX, whole
from ultima.daemon.base.waiting import Changes
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Host
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs.council import Council
from ultima.daemon.jobs.follow_desk import FollowDesk
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.link import Link
from ultima.daemon.jobs.watchers import Watchers
from ultima.daemon.jobs.wishes import LIST_PIECES_MAX, PART_BYTES, PARTS_MAX, SILENT_SECONDS, Wish, granted
from ultima.v1 import peer_pb2, trainer_pb2, types_pb2
from ultima.v1.limits import HOSTS_MAX

ROOT_BYTES = 32
TURN_MS_MAX = 1000
LOOK_SECONDS = 0.02  # how often a turn looks whether somebody is in the op
FOLLOW_SILENT_SECONDS = 60.0  # as SILENT_SECONDS, of one that follows: it makes turns between its steps alone


@dataclass(eq=False)
class _Talk:
    """Of one rank on this host."""

    word: types_pb2.StateWord = field(default_factory=types_pb2.StateWord)
    turned: float = 0.0
    wishes: deque[Wish] = field(default_factory=deque)
    asked: dict[int, Wish] = field(default_factory=dict)
    told_to: frozenset[tuple[int, int]] = frozenset()
    """Ranks and the lives of their hosts that were there when the word was told."""
    told_wanted: tuple[bool, bool] = (False, False)


@dataclass(eq=False)
class _Talks:
    """Of one job on this host."""

    here: dict[int, _Talk] = field(default_factory=dict)
    """By rank."""
    heard: dict[int, tuple[int, types_pb2.StateWord]] = field(default_factory=dict)
    """By rank of another host: of which life of that one, and what it says."""


class StateDesk:
    """See the module."""

    def __init__(self, engine: HostEngine, watchers: Watchers, changes: Changes, council: Council) -> None:
        self._engine, self._watchers, self._changes, self._council = engine, watchers, changes, council
        self._talks: WeakKeyDictionary[Job, _Talks] = WeakKeyDictionary()
        self._numbers = itertools.count(1)
        self._peers: Peers | None = None
        self.follows = FollowDesk(changes, self.followers)

    def start(self, peers: Peers) -> None:
        """Others can be called."""
        self._peers = peers

    # ---- what ranks here ask ----

    async def turn(
        self, job: Job, rank: int, request: trainer_pb2.TurnStateRequest, deadline: float
    ) -> trainer_pb2.TurnStateResponse:
        """See trainer.proto. Raises Refused."""
        if job.elastic is None:
            raise FailedPrecondition(f"job {job.name!r}: has fixed hosts: state is given where hosts come and go")
        for way, count in (("sent", request.sent), ("received", request.received)):
            job.moves.state_bytes[way] += max(0, count)
        if request.gives:
            told = await self.follows.turn(job, request, deadline)
            self._tell_wanted(job)
            told.place = _place(job.own)
            return told
        if request.ready:
            self._council.caught_up(job)
        self._say(job, rank, checked(request.word))
        talk, loop = self._talk(job, rank), asyncio.get_running_loop()
        talk.turned = loop.time()
        wish = talk.asked.pop(request.wish, None)
        if wish is not None and not wish.answer.done():
            wish.answer.set_result(request.data)
        told = self._table(job)
        while not talk.wishes and told.table == request.table and talk.word.here and loop.time() < deadline:
            until = min(deadline, loop.time() + LOOK_SECONDS)
            await self._changes.until(lambda: bool(talk.wishes), until)
            told = self._table(job)
        while talk.wishes:
            wish = talk.wishes.popleft()
            if not wish.answer.done():
                talk.asked[wish.number] = wish
                told.wish, told.part, told.kind, told.op_seq = wish.number, wish.part, wish.kind, wish.op_seq
                break
        self._tell_wanted(job)
        return told

    async def fetch(self, job: Job, asked: trainer_pb2.FetchStateRequest) -> AsyncGenerator[tuple[int, bytes], None]:
        """Parts of the state of another rank. Raises Refused."""
        index, local = divmod(asked.rank, job.elastic.each if job.elastic else 1)
        there = job.links is not None and index in job.links and self._peers is not None
        if not there and (job.own is None or asked.rank not in job.own.ranks):
            raise NotFound(f"rank = {asked.rank}: allowed: another one of job {job.name!r}")
        request = peer_pb2.ReadStateRequest(
            job=job.name,
            generation=job.generation,
            root=asked.root,
            parts=asked.parts,
            kind=asked.kind,
            op_seq=asked.op_seq,
            local=local,
        )
        if not there:
            async with aclosing(self.read(job, request)) as found:
                async for part, data in found:
                    yield part, data
            return
        assert job.links is not None and self._peers is not None
        async with aclosing(self._peers.read_state(job.links[index].host.place, request)) as answers:
            async for part, data in answers:
                job.moves.state_bytes["received"] += len(data)
                yield part, data

    # ---- what other hosts ask and say ----

    def heard(self, job: Job, link: Link, word: types_pb2.StateWord) -> None:
        """What a rank on another host says."""
        told, ranks = checked(word), link.host.ranks
        rank = ranks[whole("word.local", word.local, 0, len(ranks) - 1)]
        self._of(job).heard[rank] = link.host.incarnation, told
        link.follows = told.follows > 0
        self._tell_wanted(job)
        self._changes.notify()

    async def read(self, job: Job, request: peer_pb2.ReadStateRequest) -> AsyncGenerator[tuple[int, bytes], None]:
        """Parts of the state that a rank here gives, and results. Raises Refused."""
        of_root = request.kind == types_pb2.STATE_KIND_ROOT
        of_root |= request.kind == types_pb2.STATE_KIND_PAIR and bool(request.root)
        async with aclosing((self._read if of_root else self.follows.read)(job, request)) as found:
            async for part, data in found:
                yield part, data

    async def _read(self, job: Job, request: peer_pb2.ReadStateRequest) -> AsyncGenerator[tuple[int, bytes], None]:
        root, parts, kind = request.root, list(request.parts), request.kind
        op_seq = whole("op_seq", request.op_seq, 0, OP_SEQ_MAX)
        if len(parts) > PARTS_MAX:
            raise InvalidArgument(f"parts: {len(parts)}: allowed: {PARTS_MAX} at most")
        assert job.own is not None
        rank = job.own.ranks[whole("local", request.local, 0, len(job.own.ranks) - 1)]
        ends = -(-self._talk(job, rank).word.size // PART_BYTES)
        if wrong := [part for part in parts if not 0 <= part < ends]:
            raise InvalidArgument(f"parts = {wrong[0]}: allowed: 0 to {ends - 1}")
        pieces = 1 if kind == types_pb2.STATE_KIND_PAIR else LIST_PIECES_MAX
        wanted = parts or range(-1, -pieces - 1, -1)
        found = granted(lambda part: self._wish(job, rank, root, part, kind, op_seq), wanted, ends_short=not parts)
        async with aclosing(found):
            async for part, data in found:
                job.moves.state_bytes["sent"] += len(data)
                yield part, data

    def followers(self, job: Job) -> int:
        """How many ranks on other hosts follow the one here: only hosts of one rank each have such."""
        if job.own is None or job.links is None:
            return 0
        heard, mine = self._of(job).heard, job.own.index + 1
        said = ((job.links[index], life, word) for index, (life, word) in heard.items() if index in job.links)
        return sum(
            link.up() and not link.leaving and link.host.incarnation == life and word.follows == mine
            for link, life, word in said
        )

    # ---- within ----

    def _of(self, job: Job) -> _Talks:
        return self._talks.setdefault(job, _Talks())

    def _talk(self, job: Job, rank: int) -> _Talk:
        return self._of(job).here.setdefault(rank, _Talk())

    def _wish(
        self, job: Job, rank: int, root: bytes, part: int, kind: types_pb2.StateKind.ValueType, op_seq: int
    ) -> Wish:
        talk = self._talk(job, rank)
        if not root or talk.word.root != root:
            raise NotFound(f"job {job.name!r}: rank {rank} does not give this state, or not any more")
        wish = Wish(next(self._numbers), part, asyncio.get_running_loop().create_future(), kind, op_seq)
        talk.wishes.append(wish)
        self._changes.notify()
        return wish

    def _say(self, job: Job, rank: int, word: types_pb2.StateWord) -> None:
        talk = self._talk(job, rank)
        if job.own is not None:
            word.local = job.own.ranks.index(rank)
        present = frozenset((row.rank, row.life) for row in self._rows(job)) if word.here else frozenset()
        if talk.word == word or not (talk.word.here or word.here):
            if present - talk.told_to:  # who has come since has not heard it
                talk.told_to = present
                self._watchers.tell_state(job, rank)
            return
        talk.told_to = present
        if talk.word.root != word.root:
            for wish in (*talk.wishes, *talk.asked.values()):
                if not wish.answer.done():
                    wish.answer.set_exception(NotFound(f"job {job.name!r}: rank {rank} gives this state no more"))
                    wish.answer.exception()  # whoever waits sees it; nobody else misses it
            talk.wishes.clear()
            talk.asked.clear()
        if word.here and not talk.word.here:
            asyncio.get_running_loop().call_later(_patience(word), self._look, job, rank)
        talk.word = job.state_words[rank] = word
        self._watchers.tell_state(job, rank)
        self._changes.notify()

    def _look(self, job: Job, rank: int) -> None:
        """Whether the rank still makes turns."""
        talk, loop = self._talk(job, rank), asyncio.get_running_loop()
        if job.over or not talk.word.here:
            return
        silent = talk.turned + _patience(talk.word)
        if rank not in job.sessions or loop.time() >= silent:
            self._say(job, rank, types_pb2.StateWord())
        else:
            loop.call_at(silent, self._look, job, rank)

    def _rows(self, job: Job) -> list[trainer_pb2.StateRow]:
        epoch, talks = self._council.epoch(job), self._of(job)
        assert job.own is not None and job.links is not None
        rows = []
        for member in epoch.members if epoch is not None else ():
            if member.slot == job.own.index:
                life, host = job.incarnation, job.own
                said = {rank: talk.word for rank, talk in talks.here.items()}
            elif member.slot not in job.links:
                continue
            else:
                link = job.links[member.slot]
                life, host = member.life, link.host
                if not link.up() or link.leaving or host.incarnation != life:
                    continue
                said = {rank: word for rank, (of, word) in talks.heard.items() if of == life}
            words = ((rank, said.get(rank)) for rank in host.ranks)
            rows += [
                trainer_pb2.StateRow(
                    rank=rank, life=life, word=word if word and word.here else None, place=_place(host)
                )
                for rank, word in words
            ]
        return rows

    def _table(self, job: Job) -> trainer_pb2.TurnStateResponse:
        told = trainer_pb2.TurnStateResponse(rows=self._rows(job), next_op_seq=self._engine.next_op_seq(job.number))
        told.place = _place(job.own)
        mark = hashlib.blake2b(told.SerializeToString(deterministic=True), digest_size=8).digest()
        told.table = int.from_bytes(mark, "little") & INT64_MAX
        return told

    def _tell_wanted(self, job: Job) -> None:
        """Tells the ranks here when somebody waits for their state or follows them, and when nobody does any more."""
        if job.own is None or job.links is None:
            return
        rows, followed = self._rows(job), self.followers(job) > 0
        for rank, session in job.sessions.items():
            talk = self._talk(job, rank)
            words = [row.word for row in rows if row.rank != rank]
            wanted = any(word.asks or (word.takes and not word.root) for word in words), followed
            if wanted != talk.told_wanted:
                talk.told_wanted = wanted
                session.trainer.want_state(*wanted)


def _place(host: Host | None) -> str:
    return str(host.place) if host is not None and host.place.port else ""


def _patience(word: types_pb2.StateWord) -> float:
    return FOLLOW_SILENT_SECONDS if word.follows else SILENT_SECONDS


def checked(word: types_pb2.StateWord) -> types_pb2.StateWord:
    """Raises InvalidArgument for a word that cannot be."""
    whole("word.op_seq", word.op_seq, 0, OP_SEQ_MAX)
    whole("word.size", word.size, 0, INT64_MAX)
    whole("word.revision", word.revision, 0, INT64_MAX)
    whole("word.follows", word.follows, 0, HOSTS_MAX)
    if len(word.root) not in (0, ROOT_BYTES):
        raise InvalidArgument(f"word.root: {len(word.root)} bytes: allowed: {ROOT_BYTES}, or none")
    return word if word.here else types_pb2.StateWord()
