# SPDX-License-Identifier: Apache-2.0
"""Tells the daemon of rounds of local SGD (attachment.py, RoundLine), over gRPC, and waits for no answer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from ultima.v1 import rounds_pb2, trainer_pb2, trainer_pb2_grpc
from ultima.v1.unix_target import unix_target

ANSWER_S = 5.0  # after which a call is given up
AHEAD = 16  # calls under way; where a daemon answers none, further rounds are not told
LAST_S = 0.5  # that the end waits for them
WHY_BYTES = 500  # of a reason in words, as the daemon takes it


class DaemonRoundLine:
    """See RoundLine. The connection is made for the first round, and ends with `close`; safe for several threads."""

    def __init__(self, socket: str, session: int, ticket: str) -> None:
        self._socket, self._session, self._ticket = socket, session, ticket
        self._channel: Any = None
        self._call: Any = None
        self._calls: deque[Any] = deque()
        self._guard = threading.Lock()
        self._unknown = False

    def tell(self, members: Sequence[tuple[int, float, bool]], facts: Mapping[str, Any]) -> None:
        """See RoundLine."""
        why = str(facts["why"]).encode()[:WHY_BYTES].decode(errors="ignore")
        rows = [rounds_pb2.RoundMember(rank=rank, weight=weight, partly=partly) for rank, weight, partly in members]
        told = rounds_pb2.RoundRecord(**{**facts, "why": why, "members": rows})
        request = trainer_pb2.TellRoundRequest(session=self._session, ticket=self._ticket, round=told)
        with self._guard:
            while self._calls and self._calls[0].done():
                self._unknown |= self._calls.popleft().code() is grpc.StatusCode.UNIMPLEMENTED
            if self._unknown or len(self._calls) >= AHEAD:
                return
            if self._channel is None:
                options = [("grpc.enable_http_proxy", 0)]
                self._channel = grpc.insecure_channel(unix_target(self._socket), options=options)
                self._call = trainer_pb2_grpc.TrainerServiceStub(self._channel).TellRound
            self._calls.append(self._call.future(request, timeout=ANSWER_S))

    def close(self) -> None:
        """See RoundLine."""
        with self._guard:
            if self._channel is None:
                return
            until = time.monotonic() + LAST_S
            for call in self._calls:
                try:
                    call.exception(timeout=max(0.0, until - time.monotonic()))
                except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
                    break
            self._calls.clear()
            self._channel.close()
            self._channel, self._unknown = None, True
