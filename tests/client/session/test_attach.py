# SPDX-License-Identifier: Apache-2.0
"""Attaching to sockets that answer wrongly, late or never. What a good daemon does is for tests/e2e."""

import os
import random
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import ultima
from tests.client.attach_server import AttachServer, Say, refuse, send, welcome
from tests.client.session.test_session import ends_within, open_descriptors


def connect(server: AttachServer, **options: Any) -> ultima.Job:
    return ultima.connect("j", 1, 2, server.socket, "", **{"timeout": 20, "arena": "64K", **options})


def test_attach__all_that_was_asked_arrives(tmp_path: Path) -> None:
    with AttachServer(tmp_path) as server:
        options: dict[str, Any] = {"arena": 5000, "bucket_bytes_max": "4K", "rate": 10}
        job = ultima.connect("j", 1, 2, f"unix://{server.socket}", "node0:29520", **options)
        assert server.hellos == [{"v": 4, "arena_bytes": 5000, "pid": os.getpid()}]
        (join,) = server.joins
        assert (join.ticket, join.job, join.rank, join.world_size) == ("ab" * 16, "j", 1, 2)
        assert (join.rendezvous, join.bucket_bytes_max, join.rate_bytes_per_s) == ("node0:29520", 4096, 10)
        assert (job.arena_bytes, job.host_index, job.bucket_bytes_max) == (65536, 1, 4096)
        assert [host.ranks for host in job.hosts] == [(0,), (1,)]
        assert job.allreduce_async(np.ones(4)).op_seq == 7
        job.close()
        assert [(leave.session, leave.ticket) for leave in server.leaves] == [(3, "ab" * 16)]
        with connect(server, rank_addresses=["a:1", "b:2"]):
            assert list(server.joins[1].rank_addresses) == ["a:1", "b:2"]


def test_attach__hangup_is_seen_at_once(tmp_path: Path) -> None:
    with AttachServer(tmp_path) as server, connect(server) as job:
        handle = job.allreduce_async(np.ones(4), deadline=60)
        server.hang_up()
        with ends_within(0.1), pytest.raises(ultima.DaemonLost) as caught:
            handle.wait()
        assert caught.value.reason == "hangup"


WRONG: list[tuple[str, Say, type[Exception], str]] = [
    ("too few descriptors", welcome(fds=4), ultima.ProtocolError, "4 descriptors"),
    ("no descriptors", welcome(fds=0), ultima.ProtocolError, "0 descriptors"),
    ("unsealed", welcome(seals=0), ultima.ProtocolError, "sealed"),
    ("smaller than said", welcome(short_of=8), ultima.ProtocolError, "too small"),
    ("other version", welcome(v=5), ultima.ProtocolError, "version 4"),
    ("no ticket", welcome(ticket=None), ultima.ProtocolError, "ticket"),
    ("a clock ahead", welcome(monotonic_ns=2**62), ultima.DaemonUnavailable, "s ahead of this process's"),
    ("a clock behind", welcome(monotonic_ns=1), ultima.DaemonUnavailable, "s behind this process's"),
    ("no arena", welcome(arena_bytes=0), ultima.ProtocolError, "arena_bytes = 0"),
    ("rings of another release", welcome(submission_bytes=64), ultima.ProtocolError, "different releases"),
    ("not json", lambda line: send(line, b"\xff{"), ultima.ProtocolError, "version 4"),
    ("not an object", lambda line: send(line, b"[1]"), ultima.ProtocolError, "version 4"),
    ("too long", lambda line: send(line, b" " * 20000), ultima.ProtocolError, "more than"),
    ("over a limit", refuse("RESOURCE_EXHAUSTED", "limits.arena_bytes = 4096"), ultima.ResourceExhausted, "4096"),
    ("bad argument", refuse("INVALID_ARGUMENT", "1 to 9"), ultima.InvalidArgument, "1 to 9"),
    ("not allowed", refuse("PERMISSION_DENIED", "uid 7"), ultima.DaemonUnavailable, "uid 7"),
]


@pytest.mark.parametrize(("case", "say", "kind", "words"), WRONG, ids=[row[0] for row in WRONG])
def test_attach__wrong_answer(tmp_path: Path, case: str, say: Say, kind: type[Exception], words: str) -> None:
    with AttachServer(tmp_path, say) as server:
        before = open_descriptors()
        with ends_within(0.0), pytest.raises(kind, match=words):
            connect(server)
        server.hang_up()
        # The server's thread may still be closing its own.
        limit = time.monotonic() + 5
        while open_descriptors() > before and time.monotonic() < limit:
            time.sleep(0.005)
        assert open_descriptors() <= before, f"{case}: descriptors are left"
        assert server.joins == []


def test_attach__keeps_trying_while_the_daemon_starts(tmp_path: Path) -> None:
    hang_up: Say = lambda line: line.close()  # noqa: E731
    with AttachServer(tmp_path, refuse("UNAVAILABLE", "starting"), hang_up, welcome()) as server, connect(server):
        assert len(server.hellos) == 3


def test_attach__nobody_there(tmp_path: Path) -> None:
    with ends_within(0.1), pytest.raises(ultima.DaemonUnavailable) as caught:
        ultima.connect(socket=tmp_path / "ultimad.sock", timeout="100ms")
    assert "attach.sock" in str(caught.value) and "No such file" in str(caught.value)


def test_attach__stale_socket_file(tmp_path: Path) -> None:
    with AttachServer(tmp_path):
        pass
    with ends_within(0.1), pytest.raises(ultima.DaemonUnavailable, match="refused"):
        ultima.connect(socket=tmp_path / "ultimad.sock", timeout="100ms")


def test_attach__tells_the_last_answer_if_the_time_ends_without_one(tmp_path: Path) -> None:
    """The last try has a millisecond, and what it misses says nothing of the daemon."""
    hangs_up = lambda connection: connection.close()  # noqa: E731
    with AttachServer(tmp_path, hangs_up, None) as server:
        with ends_within(0.3), pytest.raises(ultima.DaemonUnavailable, match="hung up while attaching"):
            connect(server, timeout="300ms")
        assert len(server.hellos) == 2


def test_attach__no_answer(tmp_path: Path) -> None:
    no_answer = pytest.raises(ultima.DaemonUnavailable, match="does not answer")
    with AttachServer(tmp_path, None) as server, ends_within(0.2), no_answer:
        connect(server, timeout="200ms")


def test_attach__join_without_end(tmp_path: Path) -> None:
    with AttachServer(tmp_path) as server:
        server.hold.clear()
        with ends_within(0.7), pytest.raises(ultima.JoinTimeout, match="job 'j', rank 1 of 2"):
            connect(server, timeout="700ms")


@pytest.mark.parametrize(
    ("status", "kind", "tries"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, ultima.JoinTimeout, 1),
        (grpc.StatusCode.INVALID_ARGUMENT, ultima.InvalidArgument, 1),
        (grpc.StatusCode.FAILED_PRECONDITION, ultima.JoinRefused, 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ultima.ResourceExhausted, 1),
        (grpc.StatusCode.PERMISSION_DENIED, ultima.JoinRefused, 1),
        (grpc.StatusCode.INTERNAL, ultima.ProtocolError, 1),
        (grpc.StatusCode.UNIMPLEMENTED, ultima.ProtocolError, 1),
        (grpc.StatusCode.ALREADY_EXISTS, ultima.JoinRefused, 2),
        (grpc.StatusCode.UNAVAILABLE, ultima.DaemonUnavailable, 2),
        (grpc.StatusCode.UNAUTHENTICATED, ultima.DaemonUnavailable, 2),
    ],
)
def test_join__each_status(tmp_path: Path, status: grpc.StatusCode, kind: type[Exception], tries: int) -> None:
    """What may pass by itself is tried again; what will not is told at once."""
    with AttachServer(tmp_path) as server:
        server.status = (status, "because of rank 5")
        with ends_within(0.7), pytest.raises(kind, match="because of rank 5"):
            connect(server, timeout="700ms")
        assert len(server.joins) >= tries
        assert (len(server.joins) > 1) == (tries > 1)


def test_close__daemon_that_does_not_answer(tmp_path: Path) -> None:
    with AttachServer(tmp_path) as server:
        job = connect(server)
        server.hold.clear()
        start = time.monotonic()
        with ends_within(0.2):
            job.close("200ms")
        assert time.monotonic() - start >= 0.15, "it did not even ask"
        assert len(server.leaves) == 1


def test_connect__leaves_the_random_numbers_of_the_program_alone(tmp_path: Path) -> None:
    """However often it tries, which depends on when the daemon starts: a run with a seed can be repeated."""
    before = random.getstate()
    with pytest.raises(ultima.DaemonUnavailable):
        ultima.connect("j", 0, 1, str(tmp_path / "none.sock"), timeout=0.1)
    assert random.getstate() == before
