# SPDX-License-Identifier: Apache-2.0
"""Proves to the daemon who calls: a token from the attach socket, for the metadata of one gRPC call.

The kernel tells the daemon there which user is at the other end; the gRPC socket cannot. See
ultima.daemon.trainers.users.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence

from ultima.base.errors import DaemonUnavailable, ProtocolError, UltimaError

ATTACH_SOCKET = "attach.sock"
METADATA_KEY = "ultima-token"
PROTOCOL_VERSION = 4
REPLY_MAX_BYTES = 4096


def attach_path(grpc_socket: str) -> str:
    """The attach socket, which lies beside the gRPC socket."""
    return os.path.join(os.path.dirname(grpc_socket), ATTACH_SOCKET)


def proof(grpc_socket: str, timeout_s: float) -> Sequence[tuple[str, str]]:
    """Metadata for one call on |grpc_socket|, good for a few seconds.

    Raises DaemonUnavailable when nobody answers within |timeout_s| seconds, UltimaError when the daemon refuses this
    user, and ProtocolError for an answer that is none.
    """
    path = attach_path(grpc_socket)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as line:
        line.settimeout(timeout_s)
        try:
            line.connect(path)
            line.send(json.dumps({"v": PROTOCOL_VERSION, "who": True}).encode())
            data = line.recv(REPLY_MAX_BYTES)
        except TimeoutError:
            raise DaemonUnavailable(f"no answer within {timeout_s:g} s on {path}; is ultimad stopped?") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            text = f"no daemon answers on {path}: {reason}; is ultimad running, and does ULTIMA_SOCKET name it?"
            raise DaemonUnavailable(text) from None
    return ((METADATA_KEY, _token(data, path)),)


def _token(data: bytes, path: str) -> str:
    try:
        reply = json.loads(data)
    except (ValueError, RecursionError):
        reply = None
    if isinstance(reply, dict) and "error" in reply:
        raise UltimaError(f"the daemon on {path} does not serve this user: {reply.get('message', reply['error'])}")
    token = reply.get("token") if isinstance(reply, dict) and reply.get("v") == PROTOCOL_VERSION else None
    if not isinstance(token, str):
        raise ProtocolError(f"the daemon on {path} sent no token for this user: different releases?")
    return token
