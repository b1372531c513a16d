# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon on this host how it is: for `ultima status`, and for the process group that must learn its own
daemon's address before it can tell it to the other ranks.
"""

from __future__ import annotations

import grpc

from ultima.v1 import admin_pb2, admin_pb2_grpc

from .errors import DaemonUnavailable, ProtocolError

STATUS_TIMEOUT_S = 5.0


def get_status(socket: str, job: str = "", timeout_s: float = STATUS_TIMEOUT_S) -> admin_pb2.GetStatusResponse:
    """The daemon's status, of one job or of all ("").

    |socket| is the path of its gRPC socket. Raises DaemonUnavailable when nobody answers there within |timeout_s|
    seconds, and ProtocolError when somebody does who does not know the question.
    """
    with grpc.insecure_channel(f"unix:{socket}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        try:
            response: admin_pb2.GetStatusResponse = admin_pb2_grpc.AdminServiceStub(channel).GetStatus(
                admin_pb2.GetStatusRequest(job=job), timeout=timeout_s
            )
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                how = (
                    "no daemon answers" if code is grpc.StatusCode.UNAVAILABLE else f"no answer within {timeout_s:g} s"
                )
                raise DaemonUnavailable(
                    f"{how} on {socket}; is ultimad running, and does ULTIMA_SOCKET name it?"
                ) from None
            raise ProtocolError(f"the daemon on {socket} answered {code.name}: {error.details()}") from None
    return response
