# SPDX-License-Identifier: Apache-2.0
"""Who is in the ops of a job, and why the other hosts are not, as status and receipts tell it."""

from __future__ import annotations

from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs.job import Job, Standing
from ultima.v1 import types_pb2

FOLLOWS = "it takes the state and results of the others, and is in no op yet"


def job_view(job: Job) -> types_pb2.JobView | None:
    """The view of a job; None if this host does not know any. A seat that nobody has had yet is in no list."""
    standing = job.standing
    if standing is None:
        return None
    rows = [(host, *_why(job, host, state, standing)) for host, state in job.hosts() if not host.vacant]
    return types_pb2.JobView(
        number=standing.number,
        from_op_seq=standing.start,
        why=standing.why,
        hosts=sorted(standing.slots),
        outside=[
            types_pb2.HostOutside(host=host.index, place=str(host.place), reason=reason, text=text)
            for host, reason, text in rows
            if host.index not in standing.slots
        ],
    )


def _why(job: Job, host: Host, state: State, standing: Standing) -> tuple[str, str]:
    """Why a host is not in: a word, and a clause."""
    if host is job.own and job.follows:
        return "follows", FOLLOWS
    if host is job.own or job.links is None:
        return "waits", "the others have not taken this host in yet"
    link = job.links[host.index]
    if host.index in standing.flaps:
        return "flaps", standing.flaps[host.index]
    if host.index in standing.left or link.leaving:
        return "left", "it left in good order"
    if state is State.UP and link.follows:
        return "follows", FOLLOWS
    if state is State.UP:
        return "waits", "it is there, and not taken in yet"
    if state is State.CONNECTING:
        return "never came", f"there is no path to it yet: it {link.why}"
    return "gone", link.why
