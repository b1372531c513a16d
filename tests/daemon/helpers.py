# SPDX-License-Identifier: Apache-2.0
"""A trainer and a few daemons for tests of the control plane, all in one event loop, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import grpc
import grpc.aio

from tests.daemon.fake_engine import FakeEngine
from tests.nursery import DAEMON, ROOT, Process, nursery_of
from ultima.daemon.base.config import DaemonConfig, load
from ultima.daemon.process.server import Daemon
from ultima.daemon.trainers.users import METADATA_KEY
from ultima.v1 import admin_pb2, admin_pb2_grpc, peer_pb2_grpc, trainer_pb2, trainer_pb2_grpc

HOSTS_SECONDS = 10.0  # for what should happen at once; generous, because the machine is shared


def config(folder: Path, **flags: object) -> DaemonConfig:
    """A daemon's options on loopback, with ports of its own choice; of one lane, unless a test says otherwise."""
    environment = {"ULTIMAD_ENGINE_LANES": str(flags.pop("lanes", 1))}
    for limit in ("probe_seconds", "join_seconds"):
        if limit in flags:
            environment[f"ULTIMAD_LIMITS_{limit.upper()}"] = str(flags.pop(limit))
    tls: Any = flags.pop("tls", {})  # variables; a daemon that has them is not insecure
    flags = {"runtime_dir": str(folder), "bind": "127.0.0.1", "insecure": None if tls else True, "port": "0", **flags}
    environment |= tls
    return load(flags, environment, Path("/nonexistent/ultimad.toml"))


async def eventually(predicate: Callable[[], bool], what: str, seconds: float = HOSTS_SECONDS) -> float:
    """Waits until `predicate` holds, and returns how long that took in seconds."""
    began = time.monotonic()
    while not predicate():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


@dataclass
class Answer:
    """What the attach socket said."""

    reply: dict[str, Any]
    fds: list[int]

    def close(self) -> None:
        """Closes the descriptors that came along."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def connect_as(path: Path, uid: int | None) -> socket.socket:
    """A connection to an attach socket, made by another user if `uid` says so, for which this one must be root.

    Only the one thread that connects becomes the other: the kernel keeps who somebody is by thread, and glibc, which
    would change all of them, is not asked.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)

    def work() -> None:
        if uid is not None:
            for number, name in ((119, "setresgid"), (117, "setresuid")):  # of x86_64
                if ctypes.CDLL(None, use_errno=True).syscall(number, uid, uid, uid):
                    raise OSError(ctypes.get_errno(), name)
        connection.connect(str(path))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result(HOSTS_SECONDS)
    connection.setblocking(False)
    return connection


async def attach(path: Path, hello: bytes | dict[str, Any], uid: int | None = None) -> tuple[socket.socket, Answer]:
    """Says hello on an attach socket; returns the connection, and the answer ({} if the daemon just hung up)."""
    loop = asyncio.get_running_loop()
    connection = connect_as(path, uid)
    await loop.sock_sendall(connection, hello if isinstance(hello, bytes) else json.dumps(hello).encode())
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), HOSTS_SECONDS)
    finally:
        loop.remove_reader(connection)
    data, fds, flags, _ = socket.recv_fds(connection, 65536, 16)
    assert not flags & socket.MSG_CTRUNC
    return connection, Answer(json.loads(data) if data else {}, list(fds))


async def proof(path: Path, uid: int | None = None) -> tuple[tuple[str, str]]:
    """The metadata by which one call tells who makes it: this process's user, or `uid`. `path` is the attach socket."""
    connection, answer = await attach(path, {"v": 4, "who": True}, uid)
    connection.close()
    return ((METADATA_KEY, answer.reply["token"]),)


@dataclass
class Trainer:
    """One process that is attached to a daemon, as far as the daemon can tell."""

    connection: socket.socket
    answer: Answer
    socket_path: Path
    joined: trainer_pb2.JoinJobResponse | None = None

    @classmethod
    async def attach(cls, daemon: Daemon | ChildDaemon, arena_bytes: int = 65536, uid: int | None = None) -> Trainer:
        """Attaches, and expects to be let in."""
        hello = {"v": 4, "arena_bytes": arena_bytes, "pid": 1}
        connection, answer = await attach(daemon.config.attach_socket, hello, uid)
        assert "ticket" in answer.reply, answer.reply
        return cls(connection, answer, daemon.config.socket)

    async def join(
        self, rank: int = 0, world_size: int = 1, job: str = "job", timeout: float = HOSTS_SECONDS, **fields: Any
    ) -> trainer_pb2.JoinJobResponse:
        """JoinJob; raises AioRpcError."""
        request = trainer_pb2.JoinJobRequest(
            ticket=self.answer.reply["ticket"], job=job, rank=rank, world_size=world_size, **fields
        )
        async with local_channel(self.socket_path) as channel:
            stub: Any = trainer_pb2_grpc.TrainerServiceStub(channel)
            self.joined = await stub.JoinJob(request, timeout=timeout)
        return self.joined

    async def leave(self, **fields: Any) -> None:
        """LeaveJob, and hangs up."""
        assert self.joined is not None
        ticket = self.answer.reply["ticket"]
        request = trainer_pb2.LeaveJobRequest(session=self.joined.session, ticket=ticket, **fields)
        async with local_channel(self.socket_path) as channel:
            stub: Any = trainer_pb2_grpc.TrainerServiceStub(channel)
            await stub.LeaveJob(request, timeout=HOSTS_SECONDS)
        self.hang_up()

    def hang_up(self) -> None:
        """Dies, as seen from the daemon."""
        self.connection.close()
        self.answer.close()

    async def line_is_dead(self) -> bool:
        """Whether the daemon has hung up."""
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.sock_recv(self.connection, 1), HOSTS_SECONDS) == b""
        except ConnectionResetError:
            return True


def local_channel(path: Path) -> grpc.aio.Channel:
    """A channel to a daemon's Unix socket."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),))


async def status(daemon: Daemon | ChildDaemon, job: str = "") -> admin_pb2.GetStatusResponse:
    """GetStatus."""
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        return await stub.GetStatus(admin_pb2.GetStatusRequest(job=job), timeout=HOSTS_SECONDS)


@contextlib.asynccontextmanager
async def peer(daemon: Daemon) -> AsyncIterator[Any]:
    """A daemon's PeerService."""
    async with grpc.aio.insecure_channel(f"{daemon.config.bind}:{daemon.grpc_port}") as channel:
        yield peer_pb2_grpc.PeerServiceStub(channel)


@dataclass
class House:
    """Daemons that live as long as one test."""

    folder: Path
    daemons: list[Daemon] = field(default_factory=list)
    trainers: list[Trainer] = field(default_factory=list)
    children: list[ChildDaemon] = field(default_factory=list)

    async def child(self, name: str, port: int, *flags: str, anew: bool = False, **environment: str) -> ChildDaemon:
        """Starts one in a process of its own."""
        child = await ChildDaemon.start(self.folder / name, port, *flags, anew=anew, **environment)
        self.children.append(child)
        return child

    async def daemon(self, name: str = "", **flags: object) -> Daemon:
        """Starts one more."""
        daemon = Daemon(config(self.folder / (name or f"d{len(self.daemons)}"), **flags), FakeEngine, "1.2.3")
        await daemon.start()
        self.daemons.append(daemon)
        return daemon

    async def trainer(self, daemon: Daemon | ChildDaemon, arena_bytes: int = 65536, uid: int | None = None) -> Trainer:
        """Attaches one more."""
        trainer = await Trainer.attach(daemon, arena_bytes, uid)
        self.trainers.append(trainer)
        return trainer

    async def stop(self, daemon: Daemon) -> None:
        """Stops one, as SIGTERM would at its end."""
        self.daemons.remove(daemon)
        await daemon.stop()

    async def restart(self, daemon: Daemon) -> Daemon:
        """A new life in the same folder and on the same port."""
        port, given = daemon.grpc_port, daemon.config.tls
        tls = {f"ULTIMAD_{name.replace('.', '_').upper()}": getattr(given, name[4:]) for name in given.given()}
        await self.stop(daemon)
        return await self.daemon(daemon.config.runtime_dir.name, port=str(port), tls=tls)

    async def job(self, daemons: Sequence[Daemon | ChildDaemon], job: str = "job", **fields: Any) -> list[Trainer]:
        """A rank on each of `daemons`, joined to one job whose coordinator is the first one's."""
        trainers = [await self.trainer(daemon) for daemon in daemons]
        fields.setdefault("rendezvous", rendezvous(daemons[0]))
        await asyncio.gather(*(t.join(rank, len(daemons), job, **fields) for rank, t in enumerate(trainers)))
        return trainers

    async def close(self) -> None:
        """Ends everything."""
        for trainer in self.trainers:
            trainer.hang_up()
        for child in self.children:
            await child.kill()
        for daemon in self.daemons:
            await daemon.stop()


def rendezvous(daemon: Daemon | ChildDaemon) -> str:
    """Where a daemon's PeerService listens."""
    return f"{daemon.config.bind}:{daemon.grpc_port}"


def engine(daemon: Daemon, lane: int = 0) -> FakeEngine:
    """The fake behind a daemon, of one lane."""
    fake = daemon.engine.engines[lane]
    assert isinstance(fake, FakeEngine)
    return fake


def wired(daemons: Sequence[Daemon], job: int = 0, lane: int = 0) -> bool:
    """Whether each host puts on its packets the id that the other one listens for, for every pair."""
    for a, left in enumerate(daemons):
        for b, right in enumerate(daemons):
            if a != b:
                ours, theirs = engine(left, lane).path(job, b), engine(right, lane).path(job, a)
                if not ours.up or not theirs.up or not ours.tx_cid or ours.tx_cid != theirs.rx_cid:
                    return False
    return True


@dataclass
class ChildDaemon:
    """A daemon in a process of its own: with the fake engine, unless a subclass names another module."""

    process: Process | subprocess.Popen[bytes]
    config: DaemonConfig
    grpc_port: int
    log: Path
    module: ClassVar[str] = "tests.daemon.run_fake"

    @classmethod
    async def start(cls, folder: Path, port: int, *flags: str, anew: bool = False, **environment: str) -> Self:
        """Starts it, by an interpreter of its own if it is to be |anew|, and waits until it is ready."""
        insecure = () if "ULTIMAD_TLS_KEY" in environment else ("--insecure",)
        flags = ("--runtime-dir", str(folder), "--port", str(port), "--bind", "127.0.0.1", *insecure, *flags)
        log, variables = folder.with_suffix(".log"), os.environ | environment
        process: Process | subprocess.Popen[bytes]
        with log.open("ab") as file:
            before = file.tell()
            if anew:
                command = [sys.executable, "-m", cls.module, *flags]
                process = subprocess.Popen(command, cwd=ROOT, env=variables, stderr=file)
            else:
                process = nursery_of(DAEMON).start(cls.module, flags, variables, stderr=file)
        limit = time.monotonic() + 30
        while not (match := re.search(rb" port=(\d+) .*\n", log.read_bytes()[before:])):
            if process.poll() is not None or time.monotonic() > limit:
                process.kill()
                raise AssertionError(log.read_text())
            await asyncio.sleep(0.01)
        return cls(process, config(folder, port=str(port)), int(match[1]), log)

    async def kill(self, number: int = signal.SIGKILL) -> int:
        """Sends it a signal and waits until it has ended."""
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 30)
