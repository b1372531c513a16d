# SPDX-License-Identifier: Apache-2.0
"""AdminService: what operators and their tools ask."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.base.errors import InvalidArgument, NotFound, translated
from ultima.daemon.engine.engine import NEVER, Status
from ultima.daemon.engine.host_engine import HostEngine, HostSnapshot
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.outside import job_view
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.jobs.tuning import Tuning
from ultima.daemon.observe.keeper import Keeper
from ultima.daemon.observe.metrics import Facts
from ultima.daemon.observe.partial_stats import NOBODY
from ultima.daemon.observe.recorder import selected
from ultima.daemon.probe.controller import controller_of
from ultima.daemon.rpc.examine import Examiner
from ultima.daemon.rpc.history_calls import ReadOps
from ultima.daemon.rpc.operator_calls import AskCluster, OperatorCalls
from ultima.daemon.trainers.users import METADATA_KEY, Tokens, check_manage, may_manage
from ultima.daemon.trust.trust import Trust
from ultima.v1 import admin_pb2, partial_pb2, types_pb2

# generated: ut_peer_stats (schema/)
COUNTS = (
    "sent_bytes",
    "received_bytes",
    "lost_bytes",
    "window_bytes",
    "ce_packets",
    "sent_packets",
    "feedbacks_sent",
    "feedbacks_heard",
    "feedbacks_beside",
)
# generated: end


class AdminService(OperatorCalls):
    """On the Unix socket only.

    Whoever may open that may see the status of all jobs: names, hosts and counts, by which users of one host find out
    why it is slow. What is said of single ops, and what changes a job, is for its owner.
    """

    def __init__(
        self,
        config: DaemonConfig,
        engine: HostEngine,
        jobs: JobTable,
        tuning: Tuning,
        tokens: Tokens,
        version: str,
        incarnation: int,
        grpc_port: int,
        trust: Trust | None,
        keeper: Keeper,
        read_ops: ReadOps,
        facts: Callable[[], Facts],
        examiner: Examiner,
        page: Callable[[], str],
        ask_to_stop: Callable[[], None],
        cluster: AskCluster,
    ) -> None:
        super().__init__(config, keeper, jobs.recorder, tokens, read_ops, facts, page, ask_to_stop, cluster)
        self._config, self._engine, self._jobs, self._tuning = config, engine, jobs, tuning
        self._tokens = tokens
        self._version, self._incarnation, self._grpc_port = version, incarnation, grpc_port
        self._trust = trust
        self._examiner = examiner
        self._started = time.monotonic()

    @translated
    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        """See admin.proto."""
        return self.status(request.job)

    def status(self, job: str) -> admin_pb2.GetStatusResponse:
        """See OperatorCalls."""
        jobs = [each for each in self._jobs.all() if job in ("", each.name)]
        if job and not jobs:
            raise NotFound(f"job = {job!r}: not on this host")
        now = self._engine.snapshot()
        return admin_pb2.GetStatusResponse(
            version=self._version,
            incarnation=self._incarnation,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            pid=os.getpid(),
            insecure=self._config.insecure and bool(self._config.bind),
            address=self._config.address or self._config.bind,
            grpc_port=self._grpc_port,
            engine=_engine_status(now),
            jobs=[job_status(each, self._engine, now) for each in jobs],
            limits=self._config.limits_in_force(),
            security=self._security(),
        )

    def here(self) -> admin_pb2.ClusterHost:
        """This host's row of the view of the cluster."""
        told = self.status("")
        return admin_pb2.ClusterHost(
            address=told.address,
            grpc_port=told.grpc_port,
            node=told.security.node,
            here=True,
            version=told.version,
            uptime_ms=told.uptime_ms,
            jobs=told.jobs,
        )

    @translated
    async def Tune(self, request: admin_pb2.TuneRequest, context: Any) -> admin_pb2.TuneResponse:
        """See admin.proto."""
        uid = self._tokens.caller(context)
        options, start = await self._tuning.tune(request.job, request.options, uid)
        return admin_pb2.TuneResponse(options=options.to_proto(), from_op_seq=start)

    @translated
    async def GetReceipts(self, request: admin_pb2.GetReceiptsRequest, context: Any) -> admin_pb2.GetReceiptsResponse:
        """See admin.proto."""
        record = self._record(request.job, self._tokens.caller(context))
        return selected(record, request.op_seq if request.HasField("op_seq") else None)

    @translated
    async def Examine(self, request: admin_pb2.ExamineRequest, context: Any) -> admin_pb2.ExamineResponse:
        """See admin.proto."""
        named = any(key == METADATA_KEY for key, _ in context.invocation_metadata() or ())
        uid = self._tokens.caller(context) if named or request.peers else None
        return await self._examiner.examine(request, uid)

    @translated
    async def Ping(self, request: admin_pb2.PingRequest, context: Any) -> admin_pb2.PingResponse:
        """See admin.proto."""
        return await self._examiner.ping(request.peer, self._tokens.caller(context))

    def _security(self) -> admin_pb2.Security:
        if self._trust is not None:
            return self._trust.status(time.time())
        return admin_pb2.Security(mode="insecure" if self._config.bind else "alone")

    def _record(self, name: str, uid: int) -> admin_pb2.GetReceiptsResponse:
        """What is remembered of a job of this name, or of the only one, that this user may read. Raises Refused."""
        named = [job for job in self._jobs.all() if name in ("", job.name) and job.number >= 0]
        running = [job for job in named if may_manage(job.uid, uid)]
        if len(running) > 1 and not name:
            raise InvalidArgument(
                f"job = '': several jobs run here; name one of: {', '.join(job.name for job in running)}"
            )
        running.sort(key=lambda job: not job.secret)  # of two of one name this one has been shown to be its users'
        record = self._jobs.record(running[0]) if running else self._jobs.recorder.ended(name, uid)
        if record is not None:
            if running and (view := job_view(running[0])) is not None:
                record.view.CopyFrom(view)
            return record
        owners = [job.uid for job in named] or self._jobs.recorder.owners(name)
        if name and owners:
            check_manage(name, owners[0], uid)
        raise NotFound(f"job = {name!r}: no job of this name of uid {uid} is running here or ended here lately")


def job_status(job: Job, engine: HostEngine, now: HostSnapshot) -> admin_pb2.JobStatus:
    """How a job fares on this host."""
    membership, present = job.membership, job.present()
    status = admin_pb2.JobStatus(
        job=job.name,
        generation=job.generation,
        world_size=job.world_size,
        host_index=job.own.index if job.own else 0,
        next_op_seq=now.next_op_seq(job.number) if membership else 0,
        bucket_bytes_max=membership.bucket_bytes_max if membership else 0,
        hosts=[_host_status(job, host, state, now) for host, state in present],
        ops_complete_count=job.stats.count[Status.COMPLETE],
        ops_partial_count=job.stats.count[Status.PARTIAL],
        ops_insufficient_count=job.stats.count[Status.INSUFFICIENT],
        ops_failed_count=job.stats.count[Status.FAILED],
        missing_bytes=job.stats.missing_bytes,
        op_p50_us=job.stats.percentile_us(50),
        op_p99_us=job.stats.percentile_us(99),
        options=job.in_force.options.to_proto() if job.in_force else None,
        options_from_op_seq=job.in_force.start if job.in_force else 0,
        lanes=membership.lanes if membership else 0,
        ops_diverged_count=job.stats.diverged,
        last_diverged_op_seq=job.stats.last_diverged,
        straggler_rank=NOBODY,
        controller_host=NOBODY,
        late_host=NOBODY,
        ailments=[job.ailment] if job.ailment else [],
        wires=[
            partial_pb2.WireStatus(wire=wire, sent_bytes=row.sent, received_bytes=row.received, value_bytes=row.values)
            for wire, row in sorted(job.stats.by_wire.items())
        ],
        relayed=[
            types_pb2.RelayedPair(from_host=here, to_host=there, bytes=count)
            for (here, there), count in sorted(job.forwarded.items())
        ],
        waiting_for="" if job.ready else job.waiting_for,
        view=job_view(job),
        rounds=job.record.rounds.status(),
        world_size_asked=0 if membership else next((j.spec.world_size for j in job.joining.values()), 0),
    )
    if job.partial is not None:
        job.partial.fill(status)
        controller = controller_of(job, now)
        status.controller_host = NOBODY if controller is None else controller.index
        status.probes.CopyFrom(partial_pb2.ProbeStatus(**job.probes.values()))
    if (latest := job.latest(engine, now)) is not None:
        host, late = latest
        status.late_host, status.late_us, status.late_of_us = host.index, late.late_us, late.took_us
        if len(host.ranks) == 1:
            status.straggler_rank = host.ranks[0]
    return status


def _engine_status(now: HostSnapshot) -> admin_pb2.EngineStatus:
    info = now.info
    return admin_pb2.EngineStatus(
        data_port=info.data_port,
        feedback_port=info.feedback_port,
        packet_bytes=info.packet_bytes,
        gso=info.gso,
        gro=info.gro,
        simd=info.simd,
        receive_buffer_bytes=info.receive_buffer_bytes,
        send_buffer_bytes=info.send_buffer_bytes,
        counters=_shown(now.stats),
        lanes=[
            admin_pb2.LaneStatus(
                data_port=part.info.data_port, feedback_port=part.info.feedback_port, counters=_shown(part.stats)
            )
            for part in now.parts
        ],
    )


def _host_status(job: Job, host: Host, state: State, now: HostSnapshot) -> admin_pb2.JobHostStatus:
    status = admin_pb2.JobHostStatus(host=host.to_proto(state), state=host.to_proto(state).state)
    if host is not job.own:
        peer = now.peer_stats(job.number, host.index)
        status.srtt_us, status.base_rtt_us = peer.srtt_ns // 1000, peer.base_rtt_ns // 1000
        for name in COUNTS:
            count = getattr(peer, name)
            setattr(status, name, 0 if count == NEVER else count)
        status.window_cuts_count = peer.window_cuts
    if job.links is not None and host.index in job.links:
        link = job.links[host.index]
        status.violations_count, status.quarantine_s = link.violations, job.quarantine_s(host.index)
        if link.route is not None:
            status.relay_host, status.way_opened = link.route
        status.secrets_renewed_count = link.renewed + (link.renewal.count if link.renewal is not None else 0)
    return status


def _shown(counters: dict[str, int]) -> dict[str, int]:
    """Counters as they travel: NEVER, an instant that does not come, does not fit an int64; it is shown as 0."""
    return {name: 0 if value == NEVER else min(value, 2**63 - 1) for name, value in counters.items()}
