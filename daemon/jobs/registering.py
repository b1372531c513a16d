# SPDX-License-Identifier: Apache-2.0
"""What a rank that joins says to the coordinator of its job: on this host as a value, elsewhere as a message."""

from __future__ import annotations

from ultima.daemon.hosts.host import Host
from ultima.daemon.hosts.registration import Registration
from ultima.daemon.jobs.job import Job, JoinSpec
from ultima.v1 import peer_pb2


def registration(job: Job, spec: JoinSpec, host: Host, left: int) -> Registration:
    """For the coordinator on this host. `left` is the life of the job that this host left in good order, or 0. Where
    hosts come and go each rank speaks for all of its host."""
    return Registration(
        job.name,
        spec.rank,
        spec.world_size,
        host,
        spec.bucket_bytes_max,
        left,
        spec.options,
        uid=job.uid,
        secret=spec.secret,
        next_op_seq=spec.next_op_seq or 0,
        elastic=spec.elastic,
        taken=frozenset(job.taken),
    )


def request(job: Job, spec: JoinSpec, host: Host, left: int) -> peer_pb2.RegisterRequest:
    """The same for another one."""
    return peer_pb2.RegisterRequest(
        job=job.name,
        world_size=spec.world_size,
        host=host.to_proto(),
        bucket_bytes_max=spec.bucket_bytes_max,
        left_generation=left,
        options=spec.options.to_proto(),
        uid=job.uid,
        next_op_seq=spec.next_op_seq or 0,
        least=spec.elastic.least if spec.elastic else 0,
        split_waits=bool(spec.elastic and spec.elastic.split_waits),
        taken=sorted(job.taken),
    )
