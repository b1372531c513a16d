# SPDX-License-Identifier: Apache-2.0
"""How the ranks of one host get into a job.

Where hosts come and go, a host has one seat for all its ranks. So none of them registers before all have come, and then
each registers for all. A rank that is started again is of the next life of its host in the job: it waits until the
other ranks of the last one are gone.
"""

from __future__ import annotations

import asyncio

from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.base.errors import DeadlineExceeded, Unavailable
from ultima.daemon.base.waiting import Changes, numbers
from ultima.daemon.hosts.host import Membership
from ultima.daemon.hosts.registration import Title
from ultima.daemon.jobs.job import Job, Joiner, JoinSpec
from ultima.daemon.trainers.attach import Trainer
from ultima.daemon.trainers.budget import check_share
from ultima.daemon.trainers.users import check_join

SEAT_SECONDS = 0.05  # before another seat is asked for, where another host has the one that was given


class Entrance:
    """See the module; the rest is in `JobTable`."""

    _config: DaemonConfig
    _changes: Changes
    _jobs: dict[Title, Job]
    _closing: bool

    def all(self) -> list[Job]:
        """See JobTable."""
        raise NotImplementedError

    async def _register(self, job: Job, spec: JoinSpec, deadline: float) -> Membership:
        raise NotImplementedError

    def _form(self, job: Job, membership: Membership, rank: int) -> None:
        raise NotImplementedError

    def _give_up_seat(self, job: Job) -> None:
        raise NotImplementedError

    async def _admit(self, trainer: Trainer, spec: JoinSpec, deadline: float) -> Job:
        """The life of the job on this host in which the rank has its place; it is noted there as joining."""
        while True:
            if self._closing:
                raise Unavailable("the daemon is going down")
            for other in self.all():
                if (other.name, other.uid) == (spec.job, trainer.uid) and not other.empty:
                    other.check_secret(spec)  # of another user it is another job: nobody takes a name from its secret
            job = self._jobs.get((spec.job, spec.secret))
            if job is None:
                check_share("jobs", self._config.limits, (j.uid for j in self.all()), trainer.uid, "jobs are here")
                job = Job(spec.job, trainer.uid, spec.secret)
                self._jobs[job.title] = job
            if not job.empty:
                check_join(job.name, job.uid, trainer.uid)
            begun = spec.elastic is not None and job.membership is not None
            if spec.rank in job.left or (job.empty and (begun or job.uid != trainer.uid)):
                await self._life_over(job, spec.rank, deadline)
                continue
            job.check_place(spec)
            if begun:  # ranks of this host come and go together: this one is of the next life
                await self._life_over(job, spec.rank, deadline, together=True)
                continue
            job.joining[spec.rank] = Joiner(trainer, spec)
            self._changes.notify()  # the proofs of other hosts may wait for the secret that has come
            return job

    async def _life_over(self, job: Job, rank: int, deadline: float, together: bool = False) -> None:
        """Returns when a life of a job that `rank` has no part in any more has ended, or has begun to grow again, which
        it cannot if its ranks begin `together`."""

        def over() -> bool:
            return job.over or not (together or job.empty or rank in job.left)

        if not await self._changes.until(over, deadline):
            raise DeadlineExceeded(
                f"job {job.name!r}: its last run is not over: ranks {numbers(job.sessions)} have not left it"
            )

    async def _seated(self, job: Job, spec: JoinSpec, deadline: float) -> JoinSpec:
        """What a rank asked for, with its place in the job, when the paths to the other hosts stand or lead nowhere."""
        while True:
            if not await self._changes.until(lambda: job.gathered, deadline):
                each, came = job.elastic.each if job.elastic else 0, len(job.joining)
                raise DeadlineExceeded(f"job {job.name!r}: {came} of the {each} ranks of this host have joined")
            if job.membership is None:
                life = job.incarnation
                told = await self._register(job, spec, deadline)
                if job.incarnation != life or not job.gathered:
                    continue  # another rank here has given up that seat meanwhile, or is gone
                spec = job.take_seat(spec, told)
                self._form(job, told, spec.rank)
            await self._connected(job, deadline)
            if job.unseated:
                self._give_up_seat(job)
                await asyncio.sleep(SEAT_SECONDS)
            elif job.membership is not None:
                return job.take_seat(spec, job.membership)

    async def _connected(self, job: Job, deadline: float) -> None:
        def settled() -> bool:
            return job.ready or job.over or job.unseated or job.failed is not None or job.membership is None

        in_time = await self._changes.until(settled, deadline)
        job.check_failed()
        if not in_time:
            assert job.links is not None
            raise DeadlineExceeded(f"job {job.name!r}: not connected to {job.links.unsettled()}")
        if job.over:
            raise Unavailable(f"job {job.name!r}: over")
