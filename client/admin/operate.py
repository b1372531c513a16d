# SPDX-License-Identifier: Apache-2.0
"""For whoever runs the daemon itself: its options, the level of its log, its health, and a status that goes on."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from ultima.admin.calls import (
    EXAMINE_TIMEOUT_S,
    STATUS_TIMEOUT_S,
    Code,
    Meanings,
    asking,
    channel_to,
    failure,
    not_here,
)
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.session.caller import proof
from ultima.v1 import admin_pb2

CLUSTER_TIMEOUT_S = 15.0  # the daemon itself waits 5 s for the slowest host
CLUSTER_BYTES_MAX = 32 << 20  # 64 KiB of each of 256 hosts, and this one's own


def get_config(socket: str) -> list[admin_pb2.ConfigValue]:
    """All options in force. Raises DaemonUnavailable and ProtocolError."""
    with asking(socket, STATUS_TIMEOUT_S) as service:
        request = admin_pb2.GetConfigRequest()
        answer: admin_pb2.GetConfigResponse = service.GetConfig(request, timeout=STATUS_TIMEOUT_S)
    return list(answer.values)


def set_log_level(socket: str, level: str, seconds: float = 0.0) -> str:
    """Changes the least level that is logged, for so many seconds or, for 0, until it is changed again; returns the
    level before. Raises InvalidArgument, UltimaError if this user may not, and as `get_config`."""
    request = admin_pb2.SetLogLevelRequest(level=level, for_ms=round(seconds * 1000))
    who = proof(socket, STATUS_TIMEOUT_S)
    meanings: Meanings = {
        Code.INVALID_ARGUMENT: lambda text: InvalidArgument("LEVEL", level, text),
        Code.PERMISSION_DENIED: UltimaError,
    }
    with asking(socket, STATUS_TIMEOUT_S, meanings) as service:
        answer: admin_pb2.SetLogLevelResponse = service.SetLogLevel(request, timeout=STATUS_TIMEOUT_S, metadata=who)
    return answer.before


def drain(socket: str) -> admin_pb2.DrainResponse:
    """Has the daemon announce that it goes, end its open ops, and end. Raises UltimaError if this user may not, and as
    `get_config`."""
    who = proof(socket, STATUS_TIMEOUT_S)
    with asking(socket, STATUS_TIMEOUT_S, {Code.PERMISSION_DENIED: UltimaError}) as service:
        request = admin_pb2.DrainRequest()
        answer: admin_pb2.DrainResponse = service.Drain(request, timeout=STATUS_TIMEOUT_S, metadata=who)
    return answer


def get_cluster(socket: str, job: str = "") -> admin_pb2.GetClusterResponse:
    """All hosts of a job, or of all jobs here, as their daemons say; those that do not answer in time say why. Raises
    InvalidArgument for a job that is not here, UltimaError if this user may not attach, and as `get_config`."""
    who = proof(socket, STATUS_TIMEOUT_S)
    meanings: Meanings = {
        Code.NOT_FOUND: lambda text: not_here("--job", job, text),
        Code.RESOURCE_EXHAUSTED: UltimaError,
    }
    with asking(socket, CLUSTER_TIMEOUT_S, meanings, CLUSTER_BYTES_MAX) as service:
        request = admin_pb2.GetClusterRequest(job=job)
        answer: admin_pb2.GetClusterResponse = service.GetCluster(request, timeout=CLUSTER_TIMEOUT_S, metadata=who)
    return answer


def ping(socket: str, peer: str) -> admin_pb2.PingResponse:
    """What the way to another daemon is like; |peer| is "address[:port]". Raises InvalidArgument for one that is no
    address, UltimaError while another examination of this user runs, if he may not attach and if the daemon has no
    peers, and as `get_config`."""
    who = proof(socket, STATUS_TIMEOUT_S)
    meanings: Meanings = {
        Code.INVALID_ARGUMENT: lambda text: InvalidArgument("HOST", peer, text),
        Code.RESOURCE_EXHAUSTED: UltimaError,
        Code.FAILED_PRECONDITION: UltimaError,
    }
    with asking(socket, EXAMINE_TIMEOUT_S, meanings) as service:
        request = admin_pb2.PingRequest(peer=peer)
        answer: admin_pb2.PingResponse = service.Ping(request, timeout=EXAMINE_TIMEOUT_S, metadata=who)
    return answer


def watch(socket: str, interval_s: float, job: str = "") -> Iterator[admin_pb2.AdminServiceWatchResponse]:
    """The status every so many seconds, with the events since the last time. Raises InvalidArgument for a job that is
    not here, and as `get_config`; ends only so."""
    request = admin_pb2.AdminServiceWatchRequest(interval_ms=round(interval_s * 1000), job=job)
    who = proof(socket, STATUS_TIMEOUT_S)
    meanings: Meanings = {
        Code.NOT_FOUND: lambda text: not_here("--job", job, text),
        Code.INVALID_ARGUMENT: lambda text: InvalidArgument("--interval", interval_s, "200ms to 60s"),
        Code.RESOURCE_EXHAUSTED: UltimaError,
    }
    with asking(socket, STATUS_TIMEOUT_S, meanings) as service:
        yield from service.Watch(request, metadata=who)


def open_page(socket: str) -> str:
    """The address of the status page, with a token that opens it once within a minute. Raises UltimaError if the daemon
    serves none, and as `get_config`."""
    with asking(socket, STATUS_TIMEOUT_S, {Code.FAILED_PRECONDITION: UltimaError}) as service:
        request = admin_pb2.OpenPageRequest()
        answer: admin_pb2.OpenPageResponse = service.OpenPage(request, timeout=STATUS_TIMEOUT_S)
    return answer.address


def healthy(socket: str) -> bool:
    """Whether the daemon says that its ops make progress. Raises DaemonUnavailable while nobody answers."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with channel_to(socket) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=STATUS_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise failure(socket, error, STATUS_TIMEOUT_S) from None
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
