# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon on this host how it is and tells it what to change: for `ultima status` and `ultima set`, and for the
process group that must learn its own daemon's address before it can tell it to the other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc

from ultima.base.errors import DaemonUnavailable, InvalidArgument, ProtocolError, UltimaError
from ultima.session.caller import proof
from ultima.settings import options
from ultima.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from ultima.v1.unix_target import unix_target

STATUS_TIMEOUT_S = 5.0
TUNE_TIMEOUT_S = 20.0
EXAMINE_TIMEOUT_S = 300.0
# Answers to what was asked, not trouble with the daemon.
_REFUSALS = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)


def get_receipts(
    socket: str, job: str = "", op_seq: int | None = None, timeout_s: float = STATUS_TIMEOUT_S
) -> admin_pb2.GetReceiptsResponse:
    """The receipt of one op, None for the newest, that the daemon remembers of a job ("" for the only one).

    Only the job's user, root and the daemon's own user may read it. Raises as `get_status`; InvalidArgument when it
    remembers no such job or op, UltimaError when it remembers none at all, or they are another user's.
    """
    request = admin_pb2.GetReceiptsRequest(job=job, op_seq=op_seq)
    who = proof(socket, timeout_s)
    with channel_to(socket) as channel:
        try:
            response: admin_pb2.GetReceiptsResponse = admin_pb2_grpc.AdminServiceStub(channel).GetReceipts(
                request, timeout=timeout_s, metadata=who
            )
        except grpc.RpcError as error:
            if error.code() in _REFUSALS:
                raise _refused(job, op_seq, error) from None
            raise failure(socket, error, timeout_s) from None
    return response


def get_status(socket: str, job: str = "", timeout_s: float = STATUS_TIMEOUT_S) -> admin_pb2.GetStatusResponse:
    """The daemon's status, of one job or of all ("").

    |socket| is the path of its gRPC socket. Raises DaemonUnavailable when nobody answers there within |timeout_s|
    seconds, InvalidArgument for a job that is not here, and ProtocolError when somebody does who does not know the
    question.
    """
    with channel_to(socket) as channel:
        try:
            response: admin_pb2.GetStatusResponse = admin_pb2_grpc.AdminServiceStub(channel).GetStatus(
                admin_pb2.GetStatusRequest(job=job), timeout=timeout_s
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise InvalidArgument("--job", job, f"a job on this host ({error.details()})") from None
            raise failure(socket, error, timeout_s) from None
    return response


def examine(socket: str, peers: Sequence[str], timeout_s: float = EXAMINE_TIMEOUT_S) -> list[admin_pb2.Check]:
    """What the daemon finds wrong and right with its host, its jobs and the way to |peers|, each "address[:port]".

    Raises as `get_status`; InvalidArgument for a peer that is no address; UltimaError while another examination of this
    user runs, and for |peers| if he may not attach.
    """
    who: Sequence[tuple[str, str]] = ()
    try:
        who = proof(socket, STATUS_TIMEOUT_S)
    except UltimaError:
        if peers:
            raise
    with channel_to(socket) as channel:
        try:
            response: admin_pb2.ExamineResponse = admin_pb2_grpc.AdminServiceStub(channel).Examine(
                admin_pb2.ExamineRequest(peers=peers), timeout=timeout_s, metadata=who
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidArgument("--peer", ", ".join(peers), str(error.details())) from None
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise UltimaError(str(error.details())) from None
            raise failure(socket, error, timeout_s) from None
    return list(response.checks)


def _refused(job: str, op_seq: int | None, error: grpc.RpcError) -> UltimaError:
    """What was asked for is not there: the caller's slip if he named it."""
    text, code = str(error.details()), error.code()
    if code is grpc.StatusCode.INVALID_ARGUMENT or (code is grpc.StatusCode.NOT_FOUND and job):
        return InvalidArgument("--job", job, f"a job that this host remembers ({text})")
    if code is grpc.StatusCode.NOT_FOUND and op_seq is not None:
        return InvalidArgument("OP", op_seq, f"an op that this host remembers ({text})")
    return UltimaError(text)


def tune(socket: str, job: str, changes: Mapping[str, int], timeout_s: float = TUNE_TIMEOUT_S) -> types_pb2.JobOptions:
    """Changes options of a job on all its hosts; returns those that are in force then.

    |changes| are numbers by field of JobOptions. Raises InvalidArgument for a job that is not here and for a value that
    it cannot have, UltimaError when some host could not be told (the message names it; doing it again is safe) and when
    the job is another user's, and what `get_status` raises.
    """
    request = admin_pb2.TuneRequest(job=job, options=options.message(changes))
    who = proof(socket, timeout_s)
    with channel_to(socket) as channel:
        try:
            response: admin_pb2.TuneResponse = admin_pb2_grpc.AdminServiceStub(channel).Tune(
                request, timeout=timeout_s, metadata=who
            )
        except grpc.RpcError as error:
            text = str(error.details())
            match error.code():
                case grpc.StatusCode.NOT_FOUND:
                    raise InvalidArgument("JOB", job, f"a job on this host ({text})") from None
                case grpc.StatusCode.INVALID_ARGUMENT:
                    raise InvalidArgument("KEY=VALUE", "refused", text) from None
                case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.PERMISSION_DENIED:
                    raise UltimaError(text) from None
            raise failure(socket, error, timeout_s) from None
    return response.options


def channel_to(socket: str, bytes_max: int = 4 << 20) -> grpc.Channel:
    """A channel to the daemon, for answers of so many bytes."""
    options = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", bytes_max))
    return grpc.insecure_channel(unix_target(socket), options=options)


def failure(socket: str, error: grpc.RpcError, timeout_s: float) -> UltimaError:
    """What it means that a call did not end well: nobody answers, or somebody who does not understand."""
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        how = "no daemon answers" if code is grpc.StatusCode.UNAVAILABLE else f"no answer within {timeout_s:g} s"
        return DaemonUnavailable(
            f"{how} on {socket}; is ultimad running, and does ULTIMA_SOCKET name it? `ultima run -- PROGRAM` starts one"
        )
    return ProtocolError(f"the daemon on {socket} answered {code.name}: {error.details()}")
