# SPDX-License-Identifier: Apache-2.0
"""Opens a further job for the ranks of a job that runs, or for some of them, on the same daemons.

A partial job has one vector and takes nothing but sums of it. Whoever averages gradients there and now and then the
whole model needs two jobs, and a hierarchy needs one for each group.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from ultima.api.job import Job
from ultima.base.errors import InvalidArgument
from ultima.settings.config import join_address
from ultima.settings.options import Options, resolve
from ultima.v1.limits import JOB_NAME_MAX

ARENA_SPARE_BYTES = 1 << 20


def open_beside(
    job: Job,
    suffix: str,
    options: Options,
    *,
    ranks: Sequence[int] | None = None,
    arena_bytes: int = 0,
    bucket_bytes: int = 0,
) -> Job:
    """Joins the job named as |job| and |suffix|; returns when all its ranks are there.

    options: beyond those of |job|. ranks: of |job|, ascending, this one among them; all for None. In the new job they
    are numbered from 0. arena_bytes: shared memory that is needed; never less than |job| has. bucket_bytes: of the
    largest array, if it is known; the job's memory is counted by it.

    All of |ranks| must call, with the same arguments. Raises as `connect`, and InvalidArgument for other ranks or a
    name that grows too long.
    """
    members = range(job.world_size) if ranks is None else ranks
    known = set(range(job.world_size))
    if job.rank not in members or not set(members) <= known or list(members) != sorted(set(members)):
        allowed = f"ranks of 0 to {job.world_size - 1}, ascending, {job.rank} among them"
        raise InvalidArgument("ranks", list(members), allowed)
    name = f"{job.name}/{suffix}"
    if len(name) > JOB_NAME_MAX:
        raise InvalidArgument("job", name, f"a name that leaves room for {suffix!r} in {JOB_NAME_MAX} characters")
    host_of = {rank: host for host in job.hosts for rank in host.ranks}
    settings = job._settings
    places = tuple(join_address(host_of[rank].address, host_of[rank].port) for rank in members)
    made = replace(
        settings,
        job=name,
        rank=list(members).index(job.rank),
        world_size=len(members),
        rendezvous="",
        rank_addresses=places if len(job.hosts) > 1 else (),  # a daemon that serves its host alone has no place
        arena_bytes=max(settings.arena_bytes, arena_bytes + ARENA_SPARE_BYTES),
        bucket_bytes_max=bucket_bytes,
        options={**settings.options, **resolve(options, os.environ)},
    )
    return Job(made, job._connector)
