# SPDX-License-Identifier: Apache-2.0
"""A trainer that keeps no rule: attached to a real daemon, it maps its own memory and writes there what it likes.

It uses nothing of the client: the attach socket and JoinJob are spoken raw, and rings are looked at as the C structs
that they are. What an attack needs to be polite in, it must say itself.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from ultima._native import ffi, lib
from ultima.session.attach import PROTOCOL_VERSION
from ultima.v1 import trainer_pb2, trainer_pb2_grpc

RING_ENTRIES: int = lib.UT_RING_ENTRIES
PATIENCE_S = 20.0


class Lane:
    """Both rings of a lane, and its submission bell."""

    def __init__(self, submissions: int, completions: int, bell: int, sizes: tuple[int, int]) -> None:
        self.memory = mmap.mmap(submissions, sizes[0])
        self._answers = mmap.mmap(completions, sizes[1], mmap.MAP_SHARED, mmap.PROT_READ)
        self.submissions = ffi.from_buffer("ut_submission_ring *", self.memory)
        self.completions = ffi.from_buffer("ut_completion_ring *", self._answers)
        self.bell = bell
        self._taken = 0

    def write(self, **fields: Any) -> None:
        """One request in the next place of the ring, whether there is room or not. Fields are ut_submission's; what is
        not said is an in-place sum of float32, bounded, with a deadline of a minute.
        """
        said = {
            "dtype": lib.UT_FLOAT32,
            "redop": lib.UT_SUM,
            "mode": lib.UT_BOUNDED,
            "collective": lib.UT_ALLREDUCE,
            "deadline_ns": time.monotonic_ns() + 60 * 10**9,
            **fields,
        }
        head = self.submissions.head
        entry = self.submissions.entries[head % RING_ENTRIES]
        ffi.buffer(ffi.addressof(self.submissions.entries, head % RING_ENTRIES))[:] = bytes(ffi.sizeof("ut_submission"))
        for name, value in said.items():
            setattr(entry, name, value)
        self.submissions.head = (head + 1) % 2**64

    def ring(self) -> None:
        """Adds one to the bell."""
        os.eventfd_write(self.bell, 1)

    def submit(self, **fields: Any) -> None:
        """Writes and rings."""
        self.write(**fields)
        self.ring()

    def receipts(self) -> Iterator[Any]:
        """The struct ut_receipt of each completion that has not been taken yet, in order; taken as they are told."""
        while self._taken < self.completions.head:
            receipt = ffi.new("ut_receipt *", self.completions.entries[self._taken % RING_ENTRIES])
            self._taken += 1
            self.submissions.completions_taken = self._taken
            yield receipt

    def wait(self, count: int, seconds: float = PATIENCE_S) -> list[Any]:
        """So many receipts, or those that came within `seconds`."""
        limit, got = time.monotonic() + seconds, list(self.receipts())
        while len(got) < count and time.monotonic() < limit:
            time.sleep(0.001)
            got += self.receipts()
        return got


class HostileTrainer:
    """A process's session with a daemon, from attach to hang-up; a context manager."""

    def __init__(self, daemon_socket: Path, arena_bytes: int = 1 << 20) -> None:
        """Attaches."""
        self._daemon = daemon_socket
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(PATIENCE_S)
        self.line.connect(str(daemon_socket.parent / "attach.sock"))
        hello = {"v": PROTOCOL_VERSION, "arena_bytes": arena_bytes, "pid": os.getpid()}
        self.line.send(json.dumps(hello).encode())
        data, self.fds, _, _ = socket.recv_fds(self.line, 16384, 64)
        self.reply = json.loads(data)
        assert "error" not in self.reply, self.reply
        sizes = self.reply["submission_bytes"], self.reply["completion_bytes"]
        self.arena = mmap.mmap(self.fds[0], self.reply["arena_bytes"])
        self.bell = self.fds[1]
        self.lanes = [Lane(*self.fds[at : at + 3], sizes) for at in range(2, len(self.fds), 3)]

    def join(
        self,
        job: str,
        rank: int = 0,
        world_size: int = 1,
        rendezvous: str = "",
        seconds: float = PATIENCE_S,
        **more: Any,
    ) -> trainer_pb2.JoinJobResponse:
        """JoinJob as its fields say. Raises grpc.RpcError."""
        fields = {"bucket_bytes_max": 1 << 20, **more}
        request = trainer_pb2.JoinJobRequest(
            ticket=self.reply["ticket"], job=job, rank=rank, world_size=world_size, rendezvous=rendezvous, **fields
        )
        with grpc.insecure_channel(f"unix:{self._daemon}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            return trainer_pb2_grpc.TrainerServiceStub(channel).JoinJob(request, timeout=PATIENCE_S)

    def hang_up(self) -> None:
        """Ends as a process does that dies. Idempotent."""
        self.line.close()
        fds, self.fds = self.fds, []
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __enter__(self) -> HostileTrainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()


def join_all(trainers: Sequence[HostileTrainer], job: str, rendezvous: str = "", **fields: Any) -> list[object]:
    """All ranks of a job at once; what each got, be it an error."""
    ret: list[object] = [None] * len(trainers)

    def one(rank: int) -> None:
        try:
            ret[rank] = trainers[rank].join(job, rank, len(trainers), rendezvous, **fields)
        except grpc.RpcError as error:
            ret[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(trainers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ret


def refused(joined: list[object]) -> bool:
    """Whether nobody came in."""
    return all(isinstance(each, grpc.RpcError) for each in joined)
