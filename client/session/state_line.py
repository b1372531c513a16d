# SPDX-License-Identifier: Apache-2.0
"""What the daemon does for ranks that give or take state (attachment.py, StateLine), over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import grpc

from ultima.state.chosen import Rank, Turn, Word
from ultima.v1 import trainer_pb2, trainer_pb2_grpc, types_pb2
from ultima.v1.unix_target import unix_target

PATIENCE_S = 5.0  # for the daemon on this host to answer a turn, beyond what it may wait for news
READ_S = 30.0  # for another host to give the parts that one call asks for
MESSAGE_BYTES_MAX = 1 << 20


class DaemonStateLine:
    """See StateLine. The connection is made at the first turn, and ends with `close`; safe for several threads."""

    def __init__(self, socket: str, session: int, ticket: str) -> None:
        self._socket, self._session, self._ticket = socket, session, ticket
        self._channel: Any = None
        self._guard = threading.Lock()
        self._moved = {"sent": 0, "received": 0}

    def turn(
        self, word: Word | None, table: int, answer: tuple[int, bytes], wait_s: float, ready: bool = False
    ) -> Turn:
        """See StateLine."""
        request = trainer_pb2.TurnStateRequest(
            session=self._session,
            ticket=self._ticket,
            word=None if word is None else types_pb2.StateWord(here=True, **word._asdict()),
            table=table,
            wish=answer[0],
            data=answer[1],
            wait_ms=int(wait_s * 1e3),
            ready=ready,
        )
        return self._turn(request, wait_s)

    def give(self, answer: tuple[int, bytes], wait_s: float) -> Turn:
        """See StateLine."""
        request = trainer_pb2.TurnStateRequest(
            session=self._session,
            ticket=self._ticket,
            gives=True,
            wish=answer[0],
            data=answer[1],
            wait_ms=int(wait_s * 1e3),
        )
        return self._turn(request, wait_s)

    def moved(self, sent: int = 0, received: int = 0) -> None:
        """See StateLine."""
        with self._guard:
            self._moved["sent"] += sent
            self._moved["received"] += received

    def another(self) -> DaemonStateLine:
        """See StateLine."""
        return DaemonStateLine(self._socket, self._session, self._ticket)

    def _turn(self, request: trainer_pb2.TurnStateRequest, wait_s: float) -> Turn:
        stub = self._stub()
        with self._guard:
            request.sent, request.received = self._moved["sent"], self._moved["received"]
            self._moved.update(sent=0, received=0)
        try:
            told = stub.TurnState(request, timeout=wait_s + PATIENCE_S)
        except (grpc.RpcError, ValueError) as error:
            raise _trouble(error) from None
        ranks = tuple(Rank(row.rank, row.life, _word(row), row.place) for row in told.rows)
        asked = told.wish, told.part, told.kind, told.op_seq
        return Turn(told.table, ranks, told.next_op_seq, *asked, told.followers, told.place)

    def read(
        self, rank: int, root: bytes, parts: Sequence[int], kind: int = 0, op_seq: int = 0
    ) -> Iterator[tuple[int, bytes]]:
        """See StateLine."""
        request = trainer_pb2.FetchStateRequest(
            session=self._session,
            ticket=self._ticket,
            rank=rank,
            root=root,
            parts=parts,
            kind=cast("types_pb2.StateKind.ValueType", kind),
            op_seq=op_seq,
        )
        call = self._stub().FetchState(request, timeout=READ_S)
        try:
            for told in call:
                yield told.part, told.data
        except grpc.RpcError as error:
            raise _trouble(error) from None
        finally:
            call.cancel()

    def close(self) -> None:
        """See StateLine."""
        with self._guard:
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def _stub(self) -> Any:
        with self._guard:
            if self._channel is None:
                options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
                self._channel = grpc.insecure_channel(unix_target(self._socket), options=options)
            return trainer_pb2_grpc.TrainerServiceStub(self._channel)


def _word(row: trainer_pb2.StateRow) -> Word | None:
    if not row.HasField("word"):
        return None
    told = row.word
    return Word(told.op_seq, told.asks, told.takes, told.root, told.size, told.revision)


def _trouble(error: Any) -> ConnectionError:
    if isinstance(error, ValueError):  # gRPC's word for a channel that another thread has closed
        return ConnectionError("CANCELLED: the connection was closed")
    return ConnectionError(f"{error.code().name}: {error.details()}")
