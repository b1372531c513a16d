# SPDX-License-Identifier: Apache-2.0
"""For whoever runs the daemon itself: its options, the level of its log, its health, and a status that goes on."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from ultima.admin.calls import STATUS_TIMEOUT_S, channel_to, failure
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.session.caller import proof
from ultima.v1 import admin_pb2, admin_pb2_grpc


def get_config(socket: str) -> list[admin_pb2.ConfigValue]:
    """All options in force. Raises DaemonUnavailable and ProtocolError."""
    with channel_to(socket) as channel:
        try:
            answer: admin_pb2.GetConfigResponse = admin_pb2_grpc.AdminServiceStub(channel).GetConfig(
                admin_pb2.GetConfigRequest(), timeout=STATUS_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise failure(socket, error, STATUS_TIMEOUT_S) from None
    return list(answer.values)


def set_log_level(socket: str, level: str, seconds: float = 0.0) -> str:
    """Changes the least level that is logged, for so many seconds or, for 0, until it is changed again; returns the
    level before. Raises InvalidArgument, UltimaError if this user may not, and as `get_config`."""
    request = admin_pb2.SetLogLevelRequest(level=level, for_ms=round(seconds * 1000))
    who = proof(socket, STATUS_TIMEOUT_S)
    with channel_to(socket) as channel:
        try:
            answer: admin_pb2.SetLogLevelResponse = admin_pb2_grpc.AdminServiceStub(channel).SetLogLevel(
                request, timeout=STATUS_TIMEOUT_S, metadata=who
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidArgument("LEVEL", level, str(error.details())) from None
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise UltimaError(str(error.details())) from None
            raise failure(socket, error, STATUS_TIMEOUT_S) from None
    return answer.before


def drain(socket: str) -> admin_pb2.DrainResponse:
    """Has the daemon announce that it goes, end its open ops, and end. Raises UltimaError if this user may not, and as
    `get_config`."""
    who = proof(socket, STATUS_TIMEOUT_S)
    with channel_to(socket) as channel:
        try:
            answer: admin_pb2.DrainResponse = admin_pb2_grpc.AdminServiceStub(channel).Drain(
                admin_pb2.DrainRequest(), timeout=STATUS_TIMEOUT_S, metadata=who
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise UltimaError(str(error.details())) from None
            raise failure(socket, error, STATUS_TIMEOUT_S) from None
    return answer


def watch(socket: str, interval_s: float, job: str = "") -> Iterator[admin_pb2.AdminServiceWatchResponse]:
    """The status every so many seconds, with the events since the last time. Raises InvalidArgument for a job that is
    not here, and as `get_config`; ends only so."""
    request = admin_pb2.AdminServiceWatchRequest(interval_ms=round(interval_s * 1000), job=job)
    who = proof(socket, STATUS_TIMEOUT_S)
    with channel_to(socket) as channel:
        try:
            yield from admin_pb2_grpc.AdminServiceStub(channel).Watch(request, metadata=who)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise InvalidArgument("--job", job, f"a job on this host ({error.details()})") from None
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidArgument("--interval", interval_s, "200ms to 60s") from None
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise UltimaError(str(error.details())) from None
            raise failure(socket, error, STATUS_TIMEOUT_S) from None


def open_page(socket: str) -> str:
    """The address of the status page, with a token that opens it once within a minute. Raises UltimaError if the daemon
    serves none, and as `get_config`."""
    with channel_to(socket) as channel:
        try:
            answer: admin_pb2.OpenPageResponse = admin_pb2_grpc.AdminServiceStub(channel).OpenPage(
                admin_pb2.OpenPageRequest(), timeout=STATUS_TIMEOUT_S
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise UltimaError(str(error.details())) from None
            raise failure(socket, error, STATUS_TIMEOUT_S) from None
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
