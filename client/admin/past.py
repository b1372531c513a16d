# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon on this host what it has recorded: single ops, events, and minutes of jobs."""

from __future__ import annotations

from collections.abc import Iterator

from ultima.admin.calls import STATUS_TIMEOUT_S, Code, Meanings, asking
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.session.caller import proof
from ultima.v1 import admin_pb2, records_pb2

OPS_TIMEOUT_S = 20.0
_BYTES_MAX = 256 << 20
_REFUSALS = (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION)


def get_ops(
    socket: str, job: str = "", since_ns: int = 0, until_ns: int = 0, all_hosts: bool = False
) -> admin_pb2.GetOpsResponse:
    """Lives of a job ("" for all of this user's), the newest first, with the ops that ended in that time.

    Times are nanoseconds since 1970, 0 for no bound. Raises InvalidArgument for a job that was never here, UltimaError
    if it is another user's, DaemonUnavailable and ProtocolError as `get_status`.
    """
    request = admin_pb2.GetOpsRequest(job=job, since_ns=since_ns, until_ns=until_ns, all_hosts=all_hosts)
    who = proof(socket, OPS_TIMEOUT_S)
    with asking(socket, OPS_TIMEOUT_S, _meanings(job), _BYTES_MAX) as service:
        answer: admin_pb2.GetOpsResponse = service.GetOps(request, timeout=OPS_TIMEOUT_S, metadata=who)
    return answer


def get_history(socket: str, job: str = "", since_ns: int = 0, until_ns: int = 0) -> admin_pb2.GetHistoryResponse:
    """Minutes of a job, or of all, that began in that time. Raises as `get_ops`."""
    request = admin_pb2.GetHistoryRequest(job=job, since_ns=since_ns, until_ns=until_ns)
    with asking(socket, OPS_TIMEOUT_S, _meanings(job), _BYTES_MAX) as service:
        answer: admin_pb2.GetHistoryResponse = service.GetHistory(request, timeout=OPS_TIMEOUT_S)
    return answer


def get_events(
    socket: str, job: str = "", since_ns: int = 0, until_ns: int = 0, follow: bool = False
) -> Iterator[admin_pb2.HostEvent]:
    """What has happened in that time, oldest first; with |follow| it goes on as more happens. Raises as `get_ops`."""
    request = admin_pb2.GetEventsRequest(job=job, since_ns=since_ns, until_ns=until_ns, follow=follow)
    who = proof(socket, OPS_TIMEOUT_S) if follow else ()
    with asking(socket, STATUS_TIMEOUT_S, _meanings(job), _BYTES_MAX) as service:
        for answer in service.GetEvents(request, timeout=None if follow else OPS_TIMEOUT_S, metadata=who):
            yield from answer.events


def get_metrics(socket: str) -> str:
    """The daemon's metrics in the text form of Prometheus. Raises DaemonUnavailable and ProtocolError."""
    with asking(socket, STATUS_TIMEOUT_S, bytes_max=_BYTES_MAX) as service:
        request = admin_pb2.GetMetricsRequest()
        answer: admin_pb2.GetMetricsResponse = service.GetMetrics(request, timeout=STATUS_TIMEOUT_S)
    return answer.text


def receipt_of(life: records_pb2.JobLife, op_seq: int) -> admin_pb2.GetReceiptsResponse | None:
    """The receipt of an op as `get_receipts` would give it; None if only the op is recorded."""
    found = [receipt for receipt in life.receipts if receipt.op_seq == op_seq]
    if not found:
        return None
    return admin_pb2.GetReceiptsResponse(
        job=life.job, world_size=life.world_size, running=life.running, hosts=life.hosts, receipts=found[:1]
    )


def _meanings(job: str) -> Meanings:
    def not_found(text: str) -> UltimaError:
        return InvalidArgument("--job", job, f"a job that this host remembers ({text})") if job else UltimaError(text)

    return {
        **dict.fromkeys(_REFUSALS, UltimaError),
        Code.NOT_FOUND: not_found,
        Code.INVALID_ARGUMENT: lambda text: InvalidArgument("--since and --until", "refused", text),
    }
