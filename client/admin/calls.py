# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon on this host how it is and tells it what to change: for `ultima status` and `ultima set`, and for the
process group that must learn its own daemon's address before it can tell it to the other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc

from ultima.base.errors import DaemonUnavailable, InvalidArgument, ProtocolError, UltimaError
from ultima.session.caller import proof
from ultima.settings import options
from ultima.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from ultima.v1.unix_target import unix_target

STATUS_TIMEOUT_S = 5.0
TUNE_TIMEOUT_S = 20.0
EXAMINE_TIMEOUT_S = 300.0
Code = grpc.StatusCode
ANSWER_BYTES_MAX = 4 << 20

Meanings = Mapping[grpc.StatusCode, Callable[[str], UltimaError]]
"""What a status means, made of the daemon's words, where it is an answer to what was asked and no trouble."""


@contextmanager
def asking(
    socket: str, timeout_s: float, meanings: Meanings | None = None, bytes_max: int = ANSWER_BYTES_MAX
) -> Iterator[admin_pb2_grpc.AdminServiceStub]:
    """The AdminService of the daemon on |socket|, for one call, which may take |timeout_s|. If it fails, this raises
    what |meanings| makes of that, else DaemonUnavailable or ProtocolError.
    """
    with channel_to(socket, bytes_max) as channel:
        try:
            yield admin_pb2_grpc.AdminServiceStub(channel)
        except grpc.RpcError as error:
            meant = (meanings or {}).get(error.code())
            raise (meant(str(error.details())) if meant else failure(socket, error, timeout_s)) from None


def get_receipts(
    socket: str, job: str = "", op_seq: int | None = None, timeout_s: float = STATUS_TIMEOUT_S
) -> admin_pb2.GetReceiptsResponse:
    """The receipt of one op, None for the newest, that the daemon remembers of a job ("" for the only one).

    Only the job's user, root and the daemon's own user may read it. Raises as `get_status`; InvalidArgument when it
    remembers no such job or op, UltimaError when it remembers none at all, or they are another user's.
    """
    request = admin_pb2.GetReceiptsRequest(job=job, op_seq=op_seq)
    who = proof(socket, timeout_s)
    meanings: Meanings = {
        Code.NOT_FOUND: lambda text: _not_remembered(job, op_seq, text),
        Code.INVALID_ARGUMENT: lambda text: InvalidArgument("--job", job, f"a job that this host remembers ({text})"),
        Code.PERMISSION_DENIED: UltimaError,
    }
    with asking(socket, timeout_s, meanings) as service:
        response: admin_pb2.GetReceiptsResponse = service.GetReceipts(request, timeout=timeout_s, metadata=who)
    return response


def get_status(socket: str, job: str = "", timeout_s: float = STATUS_TIMEOUT_S) -> admin_pb2.GetStatusResponse:
    """The daemon's status, of one job or of all ("").

    |socket| is the path of its gRPC socket. Raises DaemonUnavailable when nobody answers there within |timeout_s|
    seconds, InvalidArgument for a job that is not here, and ProtocolError when somebody does who does not know the
    question.
    """
    with asking(socket, timeout_s, {Code.NOT_FOUND: lambda text: not_here("--job", job, text)}) as service:
        request = admin_pb2.GetStatusRequest(job=job)
        response: admin_pb2.GetStatusResponse = service.GetStatus(request, timeout=timeout_s)
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
    meanings: Meanings = {
        Code.INVALID_ARGUMENT: lambda text: InvalidArgument("--peer", ", ".join(peers), text),
        Code.RESOURCE_EXHAUSTED: UltimaError,
    }
    with asking(socket, timeout_s, meanings) as service:
        request = admin_pb2.ExamineRequest(peers=peers)
        response: admin_pb2.ExamineResponse = service.Examine(request, timeout=timeout_s, metadata=who)
    return list(response.checks)


def not_here(field: str, job: str, text: str) -> InvalidArgument:
    """What it means that the daemon has no such |job|; |field| named it."""
    return InvalidArgument(field, job, f"a job on this host ({text})")


def _not_remembered(job: str, op_seq: int | None, text: str) -> UltimaError:
    """What was asked for is not there: the caller's slip if he named it."""
    if job:
        return InvalidArgument("--job", job, f"a job that this host remembers ({text})")
    if op_seq is not None:
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
    meanings: Meanings = {
        Code.NOT_FOUND: lambda text: not_here("JOB", job, text),
        Code.INVALID_ARGUMENT: lambda text: InvalidArgument("KEY=VALUE", "refused", text),
        Code.FAILED_PRECONDITION: UltimaError,
        Code.PERMISSION_DENIED: UltimaError,
    }
    with asking(socket, timeout_s, meanings) as service:
        response: admin_pb2.TuneResponse = service.Tune(request, timeout=timeout_s, metadata=who)
    return response.options


def channel_to(socket: str, bytes_max: int = ANSWER_BYTES_MAX) -> grpc.Channel:
    """A channel to the daemon, for answers of so many bytes."""
    options = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", bytes_max))
    return grpc.insecure_channel(unix_target(socket), options=options)


def failure(socket: str, error: grpc.RpcError, timeout_s: float) -> UltimaError:
    """What it means that a call did not end well: nobody answers, or somebody who does not understand."""
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DaemonUnavailable(
                f"no answer within {timeout_s:g} s on {socket}, though a daemon is there: it hangs, was stopped by a "
                "signal, or gets no CPU; see `systemctl status ultimad` and the load of this host"
            )
        how = "no daemon answers"
        return DaemonUnavailable(
            f"{how} on {socket}; is ultimad running, and does ULTIMA_SOCKET name it? `ultima run -- PROGRAM` starts one"
        )
    return ProtocolError(f"the daemon on {socket} answered {code.name}: {error.details()}")
