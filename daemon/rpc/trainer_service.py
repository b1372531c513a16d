# SPDX-License-Identifier: Apache-2.0
"""TrainerService: what trainers ask of the daemon on their host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from ultima.daemon.base.config import BUCKET_BYTES_UNSAID, DaemonConfig, Limits
from ultima.daemon.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    Refused,
    ResourceExhausted,
    abort,
    translated,
)
from ultima.daemon.base.options import Options, check_job, from_proto
from ultima.daemon.base.ranges import OP_SEQ_MAX, whole
from ultima.daemon.hosts.host import Elastic
from ultima.daemon.hosts.meeting import Meeting, Where
from ultima.daemon.hosts.membership import elastic, job_name
from ultima.daemon.jobs.job import JoinSpec
from ultima.daemon.jobs.state_desk import TURN_MS_MAX
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.trainers.attach import AttachServer
from ultima.v1 import trainer_pb2, trainer_pb2_grpc
from ultima.v1.limits import WORLD_SIZE_MAX
from ultima.v1.secrets import SECRET_BYTES

DRAIN_MS_MAX = 600_000
ANSWER_SECONDS = 0.5  # kept back from the caller's time, so that the answer arrives while it still waits


def inner_deadline(context: Any, seconds_max: float) -> float:
    """When a call has to be answered, on the loop's clock: a little before the caller stops waiting, and at the latest
    in `seconds_max`."""
    remaining = context.time_remaining()
    left = seconds_max if remaining is None else min(float(remaining), seconds_max)
    return asyncio.get_running_loop().time() + left - min(ANSWER_SECONDS, left / 10)


def checked(request: trainer_pb2.JoinJobRequest, limits: Limits, where: Where, arena_bytes: int) -> JoinSpec:
    """The request with every field in its range. Raises InvalidArgument or ResourceExhausted.

    The largest bucket is memory of the job, many times over, so a trainer that does not say it gets no more than could
    ever lie in its arena.
    """
    job_name(request.job)
    if not 1 <= request.world_size <= WORLD_SIZE_MAX:
        raise InvalidArgument(f"world_size = {request.world_size}: allowed: 1 to {WORLD_SIZE_MAX}")
    if not 0 <= request.rank < request.world_size:
        raise InvalidArgument(f"rank = {request.rank}: allowed: 0 to {request.world_size - 1}")
    if request.bucket_bytes_max < 0:
        raise InvalidArgument(f"bucket_bytes_max = {request.bucket_bytes_max}: allowed: 0 to {limits.bucket_bytes}")
    if request.bucket_bytes_max > limits.bucket_bytes:
        raise ResourceExhausted(
            f"limits.bucket_bytes = {limits.bucket_bytes}: bucket_bytes_max = {request.bucket_bytes_max} asked"
        )
    if request.rate_bytes_per_s < 0:
        raise InvalidArgument(f"rate_bytes_per_s = {request.rate_bytes_per_s}: allowed: 0 or more")
    if request.HasField("next_op_seq"):
        whole("next_op_seq", request.next_op_seq, 0, OP_SEQ_MAX)
    if len(request.secret) not in (0, SECRET_BYTES):
        raise InvalidArgument(f"secret: {len(request.secret)} bytes: allowed: {SECRET_BYTES}, or none")
    options = from_proto(request.options)
    check_job(options, request.world_size)
    return JoinSpec(
        job=request.job,
        rank=request.rank,
        world_size=request.world_size,
        rendezvous=where.rendezvous,
        advertise=where.advertise,
        bucket_bytes_max=request.bucket_bytes_max or min(limits.bucket_bytes, BUCKET_BYTES_UNSAID, arena_bytes),
        rate_bytes_per_s=request.rate_bytes_per_s,
        options=options,
        secret=request.secret,
        next_op_seq=request.next_op_seq if request.HasField("next_op_seq") else None,
        elastic=_elastic(request, options),
        others=where.others,
        follow=request.follow,
    )


def _elastic(request: trainer_pb2.JoinJobRequest, options: Options) -> Elastic | None:
    rules = elastic(request.least, request.split_waits, request.world_size, options, request.local_world_size or 1)
    if rules is not None:
        whole("rank", request.rank, 0, rules.each - 1)
        if request.follow and rules.each > 1:
            raise InvalidArgument(f"follow = True: allowed: False, as local_world_size = {rules.each}")
    return rules


class TrainerService(trainer_pb2_grpc.TrainerServiceServicer):
    """On the Unix socket only."""

    def __init__(self, attach: AttachServer, jobs: JobTable, config: DaemonConfig, grpc_port: int) -> None:
        self._attach, self._jobs, self._limits = attach, jobs, config.limits
        self._meeting = Meeting(config, grpc_port)
        self._insecure = bool(config.bind) and config.insecure

    @translated
    async def JoinJob(self, request: trainer_pb2.JoinJobRequest, context: Any) -> trainer_pb2.JoinJobResponse:
        """See trainer.proto."""
        deadline = inner_deadline(context, self._limits.join_seconds)
        trainer = self._attach.claim(request.ticket)
        try:
            with self._jobs.coming(trainer):
                where = await self._meeting.where(request, trainer.uid)
                spec = checked(request, self._limits, where, trainer.memory[0].arena.size)
                self._check_secret(spec)
                joined = await self._jobs.join(trainer, spec, deadline)
        except BaseException:
            self._attach.release(trainer)
            raise
        return trainer_pb2.JoinJobResponse(
            hosts=[host.to_proto(state) for host, state in joined.hosts],
            host_index=joined.host_index,
            next_op_seq=joined.next_op_seq,
            session=joined.session,
            bucket_bytes_max=joined.bucket_bytes_max,
            options=joined.options.to_proto(),
            lanes=joined.lanes,
            portions=joined.portions,
            rank=joined.rank,
            view=trainer_pb2.View(**joined.view._asdict()) if joined.view else None,
        )

    @translated
    async def LeaveJob(self, request: trainer_pb2.LeaveJobRequest, context: Any) -> trainer_pb2.LeaveJobResponse:
        """See trainer.proto."""
        drain_s = whole("drain_ms", request.drain_ms, 0, DRAIN_MS_MAX) / 1e3
        next_op = whole("next_op_seq", request.next_op_seq, 0, OP_SEQ_MAX) if request.HasField("next_op_seq") else None
        await self._jobs.drain(request.ticket, request.session, inner_deadline(context, drain_s), next_op)
        self._attach.release(self._jobs.leave(request.ticket, request.session))
        return trainer_pb2.LeaveJobResponse()

    @translated
    async def TurnState(self, request: trainer_pb2.TurnStateRequest, context: Any) -> trainer_pb2.TurnStateResponse:
        """See trainer.proto."""
        wait_s = whole("wait_ms", request.wait_ms, 0, TURN_MS_MAX) / 1e3
        _, job, rank = self._jobs.at(request.ticket, request.session)
        return await self._jobs.fellows.states.turn(job, rank, request, inner_deadline(context, wait_s))

    async def FetchState(
        self, request: trainer_pb2.FetchStateRequest, context: Any
    ) -> AsyncIterator[trainer_pb2.FetchStateResponse]:
        """See trainer.proto."""
        try:
            job = self._jobs.at(request.ticket, request.session)[1]
            found = self._jobs.fellows.states.fetch(job, request)
            async with aclosing(found) as parts:
                async for part, data in parts:
                    yield trainer_pb2.FetchStateResponse(part=part, data=data)
        except Refused as error:
            await abort(context, error)

    @translated
    async def TellRound(self, request: trainer_pb2.TellRoundRequest, context: Any) -> trainer_pb2.TellRoundResponse:
        """See trainer.proto."""
        _, job, rank = self._jobs.at(request.ticket, request.session)
        request.round.rank, request.round.told_ns = rank, time.time_ns()
        self._jobs.recorder.round_told(job.record, request.round)
        return trainer_pb2.TellRoundResponse()

    def _check_secret(self, spec: JoinSpec) -> None:
        if spec.secret and self._insecure:
            raise FailedPrecondition(
                f"job {spec.job!r}: has a secret, but this daemon runs with --insecure and would not use it: give the "
                "daemon certificates, or start the ranks without ULTIMA_JOB_SECRET and ULTIMA_JOB_SECRET_FILE"
            )
