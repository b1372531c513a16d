# SPDX-License-Identifier: Apache-2.0
"""The part of AdminService that tells of the past: single ops, events, and minutes of jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ultima.daemon.base.errors import InvalidArgument, NotFound, Refused, abort, translated
from ultima.daemon.base.quota import Quota
from ultima.daemon.hosts.host import Host, Place
from ultima.daemon.observe import view_changes
from ultima.daemon.observe.events import HostEvent
from ultima.daemon.observe.keeper import Keeper
from ultima.daemon.observe.lives import copied, together
from ultima.daemon.observe.recorder import Recorder
from ultima.daemon.trainers.users import Tokens, check_manage, may_manage
from ultima.v1 import admin_pb2, admin_pb2_grpc, peer_pb2, records_pb2, rounds_pb2

EVENTS_MAX, EVENTS_EACH = 20_000, 500
MINUTES_MAX, VIEWS_MAX = 20_000, 5_000
FOLLOWERS_MAX = 32
FOREVER_NS = 2**63 - 1
READ_SECONDS = 5.0  # for another host to tell what it has recorded

ReadOps = Callable[[Place, peer_pb2.ReadOpsRequest, float], Awaitable[records_pb2.JobLife]]


class HistoryCalls(admin_pb2_grpc.AdminServiceServicer):
    """See the module. Single ops are for the job's owner; events and minutes tell no more than the status does."""

    def __init__(self, keeper: Keeper, recorder: Recorder, tokens: Tokens, read_ops: ReadOps) -> None:
        """`read_ops` asks the daemon at a place."""
        self._keeper, self._recorder, self._tokens, self._read_ops = keeper, recorder, tokens, read_ops
        self._followers = Quota("followers of events", FOLLOWERS_MAX, FOLLOWERS_MAX // 4)

    @translated
    async def GetOps(self, request: admin_pb2.GetOpsRequest, context: Any) -> admin_pb2.GetOpsResponse:
        """See admin.proto."""
        uid = self._tokens.caller(context)
        since, until = bounds(request.since_ns, request.until_ns)
        copies = [copied(record, running) for record, running in self._recorder.lives(request.job, uid)]
        rows = await self._keeper.ask(lambda store: store.minutes(request.job, since, until, MINUTES_MAX))
        readable = [row for row in rows if may_manage(row[0].uid, uid)]
        if not copies and not readable:
            if request.job and rows:
                check_manage(request.job, rows[0][0].uid, uid)
            raise NotFound(f"job = {request.job!r}: no job of this name of uid {uid} is recorded here")
        lives = await asyncio.to_thread(together, copies, readable, since, until)
        answer = admin_pb2.GetOpsResponse(lives=lives)
        if request.all_hosts and lives:
            await self._ask_others(answer, lives[0], request)
        return answer

    @translated
    async def GetRounds(self, request: rounds_pb2.GetRoundsRequest, context: Any) -> rounds_pb2.GetRoundsResponse:
        """See admin.proto."""
        uid = self._tokens.caller(context)
        found = self._recorder.rounds_of(request.job, uid)
        names = list(dict.fromkeys(record.life.job for record, _ in found if record.life is not None))
        if not names:
            kept = [record.life.job for record, _ in self._recorder.rounds_of("", uid) if record.life is not None]
            said = f"; rounds are kept of: {', '.join(dict.fromkeys(kept))}" if kept else "; none is kept of any job"
            raise NotFound(f"job = {request.job!r}: no rounds of local SGD of uid {uid} are kept of it here{said}")
        if len(names) > 1:
            raise InvalidArgument(f"job = {request.job!r}: several have rounds; name one of: {', '.join(names)}")
        record, running = found[0]
        rounds = record.rounds.of(request.number if request.HasField("number") else None)
        low, high = record.rounds.numbers()
        size = record.life.world_size if record.life is not None else 0
        return rounds_pb2.GetRoundsResponse(
            job=names[0], world_size=size, running=running, rounds=rounds, oldest=low, newest=high
        )

    async def GetEvents(
        self, request: admin_pb2.GetEventsRequest, context: Any
    ) -> AsyncIterator[admin_pb2.GetEventsResponse]:
        """See admin.proto."""
        try:
            with contextlib.ExitStack() as following:
                if request.follow:
                    following.enter_context(self._followers.taken(f"uid {self._tokens.caller(context)}"))
                since, until = bounds(request.since_ns, request.until_ns)
                await self._check_known(request.job)
                last = self._recorder.events.last
                past = await self._keeper.ask(lambda store: store.events(request.job, since, until, EVENTS_MAX))
                for at in range(0, len(past), EVENTS_EACH):
                    told = [event_message(each) for each in past[at : at + EVENTS_EACH]]
                    yield admin_pb2.GetEventsResponse(events=told)
                if not request.follow:
                    return
                async for news in self._recorder.events.follow(last):
                    found = [event_message(event) for event in news if request.job in ("", event.job)]
                    if found:
                        yield admin_pb2.GetEventsResponse(events=found)
        except Refused as error:
            await abort(context, error)

    @translated
    async def GetHistory(self, request: admin_pb2.GetHistoryRequest, context: Any) -> admin_pb2.GetHistoryResponse:
        """See admin.proto."""
        since, until = bounds(request.since_ns, request.until_ns)
        await self._check_known(request.job)
        rows = await self._keeper.ask(lambda store: store.minutes(request.job, since, until, MINUTES_MAX))
        oldest = await self._keeper.ask(lambda store: store.oldest_ns())
        minutes = [admin_pb2.JobMinute.FromString(minute.minute) for _, minute in rows]
        kind = view_changes.KIND
        events = await self._keeper.ask(lambda store: store.events(request.job, since, until, VIEWS_MAX, kind))
        views = filter(None, map(view_changes.read, events))
        return admin_pb2.GetHistoryResponse(
            minutes=minutes, oldest_ns=oldest, on_disk=self._keeper.on_disk, views=views
        )

    async def _check_known(self, job: str) -> None:
        """Raises NotFound for a name of which there is no trace."""
        if job and not self._recorder.knows(job) and not await self._keeper.ask(lambda store: store.knows(job)):
            raise NotFound(f"job = {job!r}: no job of this name is recorded on this host")

    async def _ask_others(
        self, answer: admin_pb2.GetOpsResponse, life: records_pb2.JobLife, request: admin_pb2.GetOpsRequest
    ) -> None:
        """Adds what the other hosts of a job's newest life have recorded."""
        others = [Host.from_proto(host) for host in life.hosts if host.index != life.host_index]
        wanted = peer_pb2.ReadOpsRequest(
            job=life.job, generation=life.generation, since_ns=request.since_ns, until_ns=request.until_ns
        )
        calls = [self._read_ops(host.place, wanted, READ_SECONDS) for host in others]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for host, told in zip(others, answers, strict=True):
            if isinstance(told, records_pb2.JobLife):
                # Whatever it says of itself: it is asked as this host of this life.
                told.job, told.generation, told.host_index = life.job, life.generation, host.index
                del told.hosts[:]
                told.hosts.extend(life.hosts)
                answer.lives.append(told)
            elif isinstance(told, Refused):
                answer.unreached.append(f"{host.name}: {told}")
            else:
                raise told


def bounds(since_ns: int, until_ns: int) -> tuple[int, int]:
    """Both ends of a time, 0 for none. Raises InvalidArgument."""
    if since_ns < 0 or until_ns < 0 or (until_ns and since_ns > until_ns):
        raise InvalidArgument(f"since_ns = {since_ns}, until_ns = {until_ns}: allowed: 0 for no bound, and in order")
    return since_ns, until_ns or FOREVER_NS


def event_message(event: HostEvent) -> admin_pb2.HostEvent:
    """As it travels."""
    return admin_pb2.HostEvent(
        at_ns=event.at_ns, kind=event.kind, job=event.job, text=event.text, level=event.level,
        rank=event.rank, host=event.host,
    )  # fmt: skip
