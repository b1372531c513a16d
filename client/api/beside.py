# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a job that runs, or some of them, meet in a further job on the same daemons.

A partial job has one vector and takes nothing but sums of it. A program that averages gradients there, and now
and then the whole model, needs two jobs, and a hierarchy needs one for each group.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from ultima.base.errors import InvalidArgument
from ultima.base.receipt import Host
from ultima.settings.config import Settings, join_address
from ultima.settings.options import Options, resolve
from ultima.v1.limits import JOB_NAME_MAX

ARENA_SPARE_BYTES = 1 << 20


def settings_beside(
    settings: Settings,
    hosts: Sequence[Host],
    suffix: str,
    options: Options,
    *,
    ranks: Sequence[int] | None,
    arena_bytes: int,
    bucket_bytes: int,
) -> Settings:
    """Settings of the job of `Job.beside`, from those of the job that runs and its hosts. Raises InvalidArgument."""
    members = range(settings.world_size) if ranks is None else ranks
    if settings.least and ranks is not None:
        raise InvalidArgument("ranks", list(ranks), "None where hosts come and go: each host that calls comes")
    known = set(range(settings.world_size))
    if settings.rank not in members or not set(members) <= known or list(members) != sorted(set(members)):
        allowed = f"ranks of 0 to {settings.world_size - 1}, ascending, {settings.rank} among them"
        raise InvalidArgument("ranks", list(members), allowed)
    name = f"{settings.job}/{suffix}"
    if len(name) > JOB_NAME_MAX:
        raise InvalidArgument("job", name, f"a name that leaves room for {suffix!r} in {JOB_NAME_MAX} characters")
    made = replace(
        settings,
        job=name,
        arena_bytes=max(settings.arena_bytes, arena_bytes + ARENA_SPARE_BYTES),
        bucket_bytes_max=bucket_bytes,
        options={**settings.options, **resolve(options, os.environ)},
    )
    if settings.least:  # hosts meet where they did, and get seats there
        return made
    host_of = {rank: host for host in hosts for rank in host.ranks}
    places = tuple(join_address(host_of[rank].address, host_of[rank].port) for rank in members)
    return replace(
        made,
        rank=list(members).index(settings.rank),
        world_size=len(members),
        rendezvous="",
        rank_addresses=places if len(hosts) > 1 else (),  # a daemon that serves its host alone has no place
    )
