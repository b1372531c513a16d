# SPDX-License-Identifier: Apache-2.0
"""What a daemon tells of relays, and whom it lets ask for one."""

from __future__ import annotations

from collections.abc import Iterable

from ultima.daemon.base.addresses import same_machine
from ultima.daemon.base.errors import NotFound, PermissionDenied, Unavailable
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.link import Link
from ultima.daemon.rpc.local_checks import WARNING, check
from ultima.v1 import admin_pb2, peer_pb2


def members(jobs: Iterable[Job], request: peer_pb2.RelayRequest, source: str, node: str) -> tuple[Job, Link]:
    """The job that a call to Relay is about, and the path to its caller, who is at `source` and, among daemons with
    certificates, is `node`. Raises Refused."""
    here, there = request.host_index, request.to_index
    for job in jobs:
        links = job.links
        if (job.name, job.generation) != (request.job, request.generation) or job.over or links is None:
            continue
        assert job.own is not None
        if here not in links or here == there or there not in {job.own.index, *(x.host.index for x in links.values())}:
            continue
        link = links[here]
        if link.host.node != node:
            raise PermissionDenied(f"host_index = {here}: is the place of another node than {node!r}")
        if not node and not same_machine(source, link.host.address):
            raise PermissionDenied(f"host_index = {here}: is at {link.host.address}, the call comes from {source}")
        if not link.up():
            raise Unavailable(f"host_index = {here}: no path to it stands here")
        return job, link
    raise NotFound(f"job {request.job!r} generation {request.generation}: is not here with hosts {here} and {there}")


def of_ways(job: Job) -> list[admin_pb2.Check]:
    """For `ultima doctor`: to which hosts packets do not go straight."""
    rows = []
    for link in job.links.values() if job.links is not None else ():
        if link.route is not None and not link.route.opened:
            finding = f"packets to {link.host.name} go by relay, host {link.route.relay}: UDP does not get through"
            remedy = "open the UDP ports of both hosts to each other, and the relay is not needed"
            rows.append(check("relay", WARNING, finding, remedy, f"job {job.name}"))
    return rows


def to_place(jobs: Iterable[Job], place: Place) -> list[admin_pb2.Check]:
    """For `ultima ping`: the jobs whose packets to that daemon go by relay."""
    rows = []
    for job in jobs:
        for link in job.links.values() if job.links is not None else ():
            if link.host.place[:2] == place[:2] and link.route is not None:
                how = "straight, as both hosts opened the way" if link.route.opened else f"by host {link.route.relay}"
                rows.append(check("relay", WARNING, f"packets of job {job.name} to it go {how}", "", str(place)))
    return rows
