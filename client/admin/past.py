# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon on this host what it has recorded: single ops, events, and minutes of jobs."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from ultima.admin.calls import STATUS_TIMEOUT_S, channel_to, failure
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.session.caller import proof
from ultima.v1 import admin_pb2, admin_pb2_grpc, records_pb2

OPS_TIMEOUT_S = 20.0
_ANSWER_BYTES_MAX = 256 << 20
_REFUSALS = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
)


def get_ops(
    socket: str, job: str = "", since_ns: int = 0, until_ns: int = 0, all_hosts: bool = False
) -> admin_pb2.GetOpsResponse:
    """Lives of a job ("" for all of this user's), the newest first, with the ops that ended in that time.

    Times are nanoseconds since 1970, 0 for no bound. Raises InvalidArgument for a job that was never here, UltimaError
    if it is another user's, DaemonUnavailable and ProtocolError as `get_status`.
    """
    request = admin_pb2.GetOpsRequest(job=job, since_ns=since_ns, until_ns=until_ns, all_hosts=all_hosts)
    who = proof(socket, OPS_TIMEOUT_S)
    with channel_to(socket, _ANSWER_BYTES_MAX) as channel:
        try:
            answer: admin_pb2.GetOpsResponse = admin_pb2_grpc.AdminServiceStub(channel).GetOps(
                request, timeout=OPS_TIMEOUT_S, metadata=who
            )
        except grpc.RpcError as error:
            raise _told(socket, error, job, OPS_TIMEOUT_S) from None
    return answer


def get_history(socket: str, job: str = "", since_ns: int = 0, until_ns: int = 0) -> admin_pb2.GetHistoryResponse:
    """Minutes of a job, or of all, that began in that time. Raises as `get_ops`."""
    request = admin_pb2.GetHistoryRequest(job=job, since_ns=since_ns, until_ns=until_ns)
    with channel_to(socket, _ANSWER_BYTES_MAX) as channel:
        try:
            answer: admin_pb2.GetHistoryResponse = admin_pb2_grpc.AdminServiceStub(channel).GetHistory(
                request, timeout=OPS_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise _told(socket, error, job, OPS_TIMEOUT_S) from None
    return answer


def get_events(
    socket: str, job: str = "", since_ns: int = 0, until_ns: int = 0, follow: bool = False
) -> Iterator[admin_pb2.HostEvent]:
    """What has happened in that time, oldest first; with |follow| it goes on as more happens. Raises as `get_ops`."""
    request = admin_pb2.GetEventsRequest(job=job, since_ns=since_ns, until_ns=until_ns, follow=follow)
    who = proof(socket, OPS_TIMEOUT_S) if follow else ()
    with channel_to(socket, _ANSWER_BYTES_MAX) as channel:
        try:
            stream = admin_pb2_grpc.AdminServiceStub(channel).GetEvents(
                request, timeout=None if follow else OPS_TIMEOUT_S, metadata=who
            )
            for answer in stream:
                yield from answer.events
        except grpc.RpcError as error:
            raise _told(socket, error, job, STATUS_TIMEOUT_S) from None


def get_metrics(socket: str) -> str:
    """The daemon's metrics in the text form of Prometheus. Raises DaemonUnavailable and ProtocolError."""
    with channel_to(socket, _ANSWER_BYTES_MAX) as channel:
        try:
            answer: admin_pb2.GetMetricsResponse = admin_pb2_grpc.AdminServiceStub(channel).GetMetrics(
                admin_pb2.GetMetricsRequest(), timeout=STATUS_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise failure(socket, error, STATUS_TIMEOUT_S) from None
    return answer.text


def receipt_of(life: records_pb2.JobLife, op_seq: int) -> admin_pb2.GetReceiptsResponse | None:
    """The receipt of an op as `get_receipts` would give it; None if only the op is recorded."""
    found = [receipt for receipt in life.receipts if receipt.op_seq == op_seq]
    if not found:
        return None
    return admin_pb2.GetReceiptsResponse(
        job=life.job, world_size=life.world_size, running=life.running, hosts=life.hosts, receipts=found[:1]
    )


def _told(socket: str, error: grpc.RpcError, job: str, timeout_s: float) -> UltimaError:
    code, text = error.code(), str(error.details())
    if code is grpc.StatusCode.NOT_FOUND:
        if job:
            return InvalidArgument("--job", job, f"a job that this host remembers ({text})")
        return UltimaError(text)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidArgument("--since and --until", "refused", text)
    return UltimaError(text) if code in _REFUSALS else failure(socket, error, timeout_s)
