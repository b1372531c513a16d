# SPDX-License-Identifier: Apache-2.0
"""A daemon's two sockets, with every answer written by the test: for what a healthy daemon never says."""

import contextlib
import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from ultima.session import rings
from ultima.v1 import admin_pb2_grpc, trainer_pb2, trainer_pb2_grpc, types_pb2

ARENA_BYTES = 65536
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Say = Callable[[socket.socket], None]


def memfd(nbytes: int, seals: int = SEALS) -> int:
    fd = os.memfd_create("test-attach", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def welcome(*, fds: int = 5, lanes: int = 1, seals: int = SEALS, short_of: int = 0, **changes: Any) -> Say:
    """A good answer, but for what is asked to be wrong with it."""

    def say(connection: socket.socket) -> None:
        sizes = [rings.SUBMISSION_RING_BYTES, rings.COMPLETION_RING_BYTES, ARENA_BYTES]
        bell, rung = socket.socketpair()
        descriptors = [memfd(sizes[2] - short_of, seals), bell.detach()]
        for _ in range(lanes):
            descriptors += [*(memfd(size - short_of, seals) for size in sizes[:2]), os.eventfd(0)]
        reply = {
            "v": 4,
            "ticket": "ab" * 16,
            "lanes": lanes,
            "submission_bytes": sizes[0],
            "completion_bytes": sizes[1],
            "arena_bytes": sizes[2],
            **changes,
        }
        socket.send_fds(connection, [json.dumps(reply).encode()], descriptors[:fds])
        rung.close()
        for fd in descriptors:
            os.close(fd)

    return say


def refuse(error: str, message: str) -> Say:
    return lambda connection: send(connection, json.dumps({"v": 4, "error": error, "message": message}).encode())


def token(text: str = "cd" * 16) -> Say:
    """The answer to who only wants to prove who it is."""
    return lambda connection: send(connection, json.dumps({"v": 4, "token": text}).encode())


def send(connection: socket.socket, data: bytes) -> None:
    connection.send(data)


class AttachServer(trainer_pb2_grpc.TrainerServiceServicer):
    """Listens in `folder`. `says` answers each attach in turn, the last one for ever; None never answers."""

    def __init__(
        self, folder: Path, *says: Say | None, admin: admin_pb2_grpc.AdminServiceServicer | None = None
    ) -> None:
        self.socket = str(folder / "ultimad.sock")
        self.hellos: list[dict[str, Any]] = []
        self.joins: list[trainer_pb2.JoinJobRequest] = []
        self.leaves: list[trainer_pb2.LeaveJobRequest] = []
        self.status: tuple[grpc.StatusCode, str] | None = None
        self.lanes = 1
        self.hold = threading.Event()
        self.hold.set()
        self._says = list(says or [welcome()])
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / "attach.sock"))
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self._grpc = grpc.server(ThreadPoolExecutor(2))
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self, self._grpc)
        if admin is not None:
            admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, self._grpc)
        self._grpc.add_insecure_port(f"unix:{self.socket}")
        self._grpc.start()

    def JoinJob(
        self, request: trainer_pb2.JoinJobRequest, context: grpc.ServicerContext
    ) -> trainer_pb2.JoinJobResponse:
        self.joins.append(request)
        self.hold.wait(20)
        if self.status is not None:
            context.abort(*self.status)
        hosts = [types_pb2.Host(index=index, address=f"10.0.0.{index}", ranks=[index]) for index in range(2)]
        return trainer_pb2.JoinJobResponse(
            hosts=hosts, host_index=1, next_op_seq=7, session=3, bucket_bytes_max=4096, lanes=self.lanes
        )

    def LeaveJob(
        self, request: trainer_pb2.LeaveJobRequest, context: grpc.ServicerContext
    ) -> trainer_pb2.LeaveJobResponse:
        self.leaves.append(request)
        self.hold.wait(20)
        return trainer_pb2.LeaveJobResponse()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            hello = connection.recv(4096)
            self.hellos.append(json.loads(hello) if hello else {})
            say = self._says.pop(0) if len(self._says) > 1 else self._says[0]
            if say is not None:
                with contextlib.suppress(OSError):
                    say(connection)

    def hang_up(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._connections.clear()

    def __enter__(self) -> "AttachServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hold.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._connections:
            connection.close()
        self._grpc.stop(None).wait()
