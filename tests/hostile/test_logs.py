# SPDX-License-Identifier: Apache-2.0
"""A stranger who wants the daemon's log to fill the disk: by refusals and failures, each of them a line."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import grpc

from tests.e2e.hosts import running
from ultima.v1 import admin_pb2, admin_pb2_grpc, peer_pb2, peer_pb2_grpc, trainer_pb2, trainer_pb2_grpc, types_pb2

TIMES = 1500
BYTES_MAX = 160_000  # of all that it may come to: a burst of each kind of line


def shout(path: Path, hello: bytes) -> None:
    """Attaches with nonsense, and reads what it gets for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(20)
        line.connect(str(path))
        line.send(hello)
        with contextlib.suppress(ConnectionResetError):
            line.recv(4096)


def call(method: Any, request: Any, times: int, timeout: float = 20) -> None:
    """Calls that all fail, many at a time."""
    for _ in range(0, times, 100):
        for future in [method.future(request, timeout=timeout) for _ in range(100)]:
            assert future.exception() is not None


def test_log__of_refused_attaches_and_calls_stays_small() -> None:
    with running(1) as (host,):
        before = len(host.log())
        path = host.socket.parent / "attach.sock"
        for number in range(TIMES):
            shout(path, b'{"v": 4, "arena_bytes": %d}' % -number)
        for _ in range(TIMES // 10):
            shout(path, b'{"v": %d}' % 10**3000)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.connect(str(path))
        with grpc.insecure_channel(f"unix:{host.socket}") as channel:
            admin, trainer = admin_pb2_grpc.AdminServiceStub(channel), trainer_pb2_grpc.TrainerServiceStub(channel)
            call(admin.Tune, admin_pb2.TuneRequest(job="x"), TIMES)
            call(admin.GetStatus, admin_pb2.GetStatusRequest(job="x"), TIMES)
            call(trainer.JoinJob, trainer_pb2.JoinJobRequest(job="x" * 10000), TIMES)
        written = host.log()[before:]
    assert len(written) < BYTES_MAX, f"{len(written)} bytes:\n{written[-2000:]}"
    assert "attach refused status=INVALID_ARGUMENT" in written


def test_log__of_anonymous_calls_between_daemons_stays_small() -> None:
    """A state that no enum has was a traceback of 978 bytes for each call."""
    with running(1) as (host,):
        before = len(host.log())
        odd = types_pb2.Host(address="127.0.0.1", grpc_port=1, incarnation=1, ranks=[0], packet_bytes=1472, state=77)  # type: ignore[arg-type]
        odd.lanes.add(data_port=1, feedback_port=2)
        restore = peer_pb2.RestoreRequest(
            job="x", world_size=1, generation=1, lanes=1, bucket_bytes_max=1, hosts=[odd], next_op_seq=-1
        )
        connect = peer_pb2.ConnectRequest(job="x", generation=1, caller=odd, offer=-1)
        with grpc.insecure_channel(host.rendezvous) as channel:
            peer = peer_pb2_grpc.PeerServiceStub(channel)
            call(peer.Restore, restore, TIMES)
            call(peer.Connect, connect, 300, timeout=0.05)
        written = host.log()[before:]
    assert len(written) < BYTES_MAX, f"{len(written)} bytes:\n{written[-2000:]}"
