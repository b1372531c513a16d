# SPDX-License-Identifier: Apache-2.0
"""Finds out that a host is never heard over UDP although its daemon answers over TCP, and tells everyone.

Once a second the counters of each path are read. A path on which packets go out and nothing comes back within the next
second, or many are lost, is suspected; then the daemon at the other end is asked for its counters, second by second,
until unheard.py has proof or the path is well again. What they prove of the past is tried before it is told: a cut
network that is whole again has lost as much. A daemon that does not answer, because it is dead, frozen or cut off
altogether, gives no proof. What was found goes to all hosts of the job with the news (watchers.py), so that all name
the same trouble: in receipts, in status, in the log, and in a note to each trainer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ultima.daemon.base.errors import NotFound, Refused
from ultima.daemon.base.logs import about
from ultima.daemon.base.waiting import numbers
from ultima.daemon.engine.engine import PeerStats
from ultima.daemon.engine.host_engine import HostEngine, HostSnapshot
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.link import Link
from ultima.daemon.jobs.trial import Trial
from ultima.daemon.jobs.unheard import NAME, Counts, Sample, Unheard, ailment, believed, proved
from ultima.daemon.jobs.watchers import Watchers
from ultima.v1 import peer_pb2

log = logging.getLogger("ultimad.hearing")

LOOK_SECONDS = 1.0
ASK_SECONDS = 0.8
ASKED_AT_ONCE = 8  # paths of a job; the others have their turn later
SAMPLES_MAX = 30
LOST_OF = 4
SUSPECT_LOOKS = 6  # for which a path is asked about after the last look at which it seemed ill


@dataclass(eq=False)
class _Path:
    """What is known of the path to one host in one life of a job."""

    cids: tuple[int, ...]
    before: tuple[PeerStats, ...] = ()
    """Counters at the last look but one, and at the last one."""
    last: tuple[PeerStats, ...] = ()
    suspect: int = 0
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))


class Hearing:
    """See the module."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[Job]],
        engine: HostEngine,
        peers: Callable[[], Peers],
        watchers: Watchers,
        on_change: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """`on_change` is told of a job whose ailment is another than before."""
        self._on_change = on_change
        self._jobs, self._engine, self._peers, self._watchers = jobs, engine, peers, watchers
        self._trial = Trial(engine, peers)
        self._paths: dict[tuple[int, int], _Path] = {}
        """By the incarnation of the job here and the index of the other host."""

    async def run(self) -> None:
        """Looks, for as long as the daemon lives."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One look at all jobs that have peers."""
        jobs = [job for job in self._jobs() if job.ready and not job.over and job.links is not None]
        jobs = [job for job in jobs if job.links is not None and job.links.values()]
        known = {job.incarnation for job in jobs}
        self._paths = {key: path for key, path in self._paths.items() if key[0] in known}
        if not jobs:
            return
        now = self._engine.snapshot()
        asked = [self._ask(job, link, path, now) for job in jobs for link, path in self._suspects(job, now)]
        await asyncio.gather(*asked)
        for job in jobs:
            if not job.over:
                self.settle(job)

    def counts(self, job: Job, index: int) -> list[peer_pb2.PathCounts]:
        """What another host of a job is answered: the counts of the path to it at this end."""
        return [
            peer_pb2.PathCounts(
                data_sent=each.data_sent,
                data_heard=each.data_heard,
                feedback_sent=each.feedback_sent,
                feedback_heard=each.feedback_heard,
                feedback_beside=each.feedback_beside,
            )
            for each in _counts(self._engine.snapshot().paths(job.number, index))
        ]

    def told(self, job: Job, news: peer_pb2.WatchResponse) -> None:
        """Another host of the job tells what it found."""
        pairs = self._engine.ports_of(job.number)
        found = believed(news.unheard, news.host_index, len(job.hosts()), pairs)
        if found != job.unheard.get(news.host_index, frozenset()):
            job.unheard[news.host_index] = found
            self.settle(job)

    def rerouted(self, job: Job, index: int) -> None:
        """Packets to a host go another way from now on: what this host found of the former one is void."""
        assert job.own is not None
        if (path := self._paths.get((job.incarnation, index))) is not None:
            path.samples.clear()
            path.suspect = 0
        own = job.unheard.get(job.own.index, frozenset())
        left = frozenset(each for each in own if index not in (each.from_host, each.to_host))
        if left != own:
            job.unheard[job.own.index] = left
            self._watchers.tell(job)
            self.settle(job)

    def settle(self, job: Job) -> None:
        """Brings receipts, log and trainers up to date with what is known of a job."""
        hosts = [host for host, _ in job.hosts()]
        unheard = frozenset().union(*job.unheard.values())
        before = job.ailment
        job.ailment = ailment(unheard, hosts) if unheard else None
        if job.ailment != before:
            blamed = job.ailment.hosts if job.ailment else ()
            self._engine.peers_blocked(job.number, blamed)
            if job.ailment:
                log.warning(
                    "udp blocked job=%s hosts=%s ports=%s: %s",
                    *(job.name, numbers(blamed), numbers(job.ailment.ports), job.ailment.text),
                    extra=about(job.name),
                )
            else:
                log.info("udp gets through again job=%s", job.name)
            self._on_change(job)
        if job.ailment:
            for session in job.sessions.values():
                session.trainer.tell(NAME, job.ailment.text)

    def _suspects(self, job: Job, now: HostSnapshot) -> list[tuple[Link, _Path]]:
        assert job.links is not None
        found = []
        for link in job.links.values():
            key = (job.incarnation, link.host.index)
            path = self._paths.get(key)
            if not link.up():
                self._paths.pop(key, None)
                continue
            if path is None or path.cids != link.rx_cids:
                path = self._paths[key] = _Path(link.rx_cids)
            stats = tuple(now.paths(job.number, link.host.index))
            ill = seems_ill(path.before, path.last, stats)
            path.suspect = SUSPECT_LOOKS if ill else max(0, path.suspect - 1)
            path.before, path.last = path.last, stats
            if path.suspect:
                found.append((link, path))
            else:
                path.samples.clear()
        return sorted(found, key=lambda item: len(item[1].samples))[-ASKED_AT_ONCE:]

    async def _ask(self, job: Job, link: Link, path: _Path, now: HostSnapshot) -> None:
        """Takes a sample of a path, and what it proves."""
        assert job.own is not None
        here, there = job.own.index, link.host.index
        request = peer_pb2.HearRequest(job=job.name, generation=job.generation, host_index=here)
        try:
            answer = await self._peers().hear(link.host.place, request, ASK_SECONDS)
        except Refused as error:
            log.debug("not asked job=%s host=%d reason=%s", job.name, there, error)
            return
        if answer.incarnation != link.host.incarnation or len(answer.lanes) != len(path.last) or job.over:
            return
        theirs = tuple(
            Counts(each.data_sent, each.data_heard, each.feedback_sent, each.feedback_heard, each.feedback_beside)
            for each in answer.lanes
        )
        path.samples.append(Sample(tuple(_counts(now.paths(job.number, there))), theirs))
        lost, came = proved(path.samples, here, there)
        if lost - job.unheard.get(here, frozenset()):
            # What was sent while the network was cut, or to a host that had not taken the path yet, is lost too.
            tried = await self._tried(link, here, len(path.last))
            if tried is not None:
                lost = tried
                path.samples.clear()
        own = (job.unheard.get(here, frozenset()) - came) | lost
        if own != job.unheard.get(here, frozenset()):
            job.unheard[here] = own
            self._watchers.tell(job)

    async def _tried(self, link: Link, here: int, pairs: int) -> set[Unheard] | None:
        """All ports that a job uses and datagrams do not get through now, between here and another host. A path on
        which feedback does not come carries no data that could be missed, so counters tell of some ports alone. Of
        ports that the job does not use no counter could ever take back what was found. None: it could not be tried."""
        there, place = link.host.index, link.host.place
        found: set[Unheard] = set()
        try:
            for feedback in (False, True):
                out = await self._trial.outward(place, list(link.host.ports[:pairs]), feedback)
                back = await self._trial.inward(place, pairs, feedback)
                found |= {Unheard(here, there, at, feedback) for at, came in enumerate(out) if not came}
                found |= {Unheard(there, here, at, feedback) for at, came in enumerate(back) if not came}
        except Refused as error:
            log.debug("not tried host=%d reason=%s", there, error)
            return None
        return found


def seems_ill(before: tuple[PeerStats, ...], last: tuple[PeerStats, ...], now: tuple[PeerStats, ...]) -> bool:
    """Whether something went out from a pair of ports between `before` and `last`, and of data or feedback nothing came
    back from `before` to `now`, or more than a part in LOST_OF of the data was lost. What went out since `last` is not
    judged, because at each look some exchange is under way. Networks lose some all the time, and to ask costs both
    daemons a call.
    """
    return any(
        (middle.sent_packets > old.sent_packets or middle.feedbacks_sent > old.feedbacks_sent)
        and (
            new.received_bytes == old.received_bytes
            or new.feedbacks_heard == old.feedbacks_heard
            or LOST_OF * (new.lost_bytes - old.lost_bytes) > new.sent_bytes - old.sent_bytes
        )
        for old, middle, new in zip(before, last, now, strict=False)
    )


def _counts(paths: Iterable[PeerStats]) -> list[Counts]:
    return [
        Counts(each.sent_packets, each.received_bytes, each.feedbacks_sent, each.feedbacks_heard, each.feedbacks_beside)
        for each in paths
    ]


def job_of(jobs: Iterable[Job], request: peer_pb2.HearRequest) -> Job:
    """The job that another host asks about. Raises NotFound."""
    for job in jobs:
        same = job.name == request.job and job.generation == request.generation and not job.over
        if same and job.links is not None and request.host_index in job.links:
            return job
    raise NotFound(f"job {request.job!r} generation {request.generation}: is not here with host {request.host_index}")
