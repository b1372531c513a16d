# SPDX-License-Identifier: Apache-2.0
"""Where a trainer comes in: a SOCK_SEQPACKET socket that hands out shared memory and then serves as a life line.

gRPC for Python tells neither who is at the other end nor passes descriptors, so this is a socket of its own. The
kernel says who calls (SO_PEERCRED). The daemon makes the memory and seals its size, so that no trainer can take it
away under the engine's hands, and never maps what a trainer gives (memory.py). One message goes each way, in JSON;
after it, the end of the connection is the news that one side has died.

    trainer -> daemon   {"v": 4, "arena_bytes": N, "pid": P}
    daemon -> trainer   {"v": 4, "ticket": "32 hex digits", "lanes": L, "arena_bytes": N, "submission_bytes": S,
                         "completion_bytes": C, "version": "..."}  and descriptors:
                        arena (memfd), complete (a stream socket), and for each lane submissions, completions (memfds),
                        submit (eventfd). The job may have fewer lanes than the daemon, and then uses the first ones
                    or  {"v": 4, "error": "INVALID_ARGUMENT", "message": "..."}

A caller that only wants to prove its user to the gRPC socket asks for a token, gets it, and is hung up on (users.py):

    caller  -> daemon   {"v": 4, "who": true}
    daemon  -> caller   {"v": 4, "token": "32 hex digits"}, or an error as above

Later the daemon may send notes for people on the life line, such as that UDP is blocked; a trainer may ignore them:

    daemon  -> trainer  {"note": "udp blocked", "text": "..."}

A daemon that was told to stop says so before it hangs up, and for how long it is worth waiting for the next one. What
the trainer has asked for and got no result of, it asks the next one for:

    daemon  -> trainer  {"back_within_ms": 10000}

Two bells, for nobody polls. The trainer adds to `submit` after each submission; the daemon only listens, for to read or
write a file whose flags a trainer can change is to wait for him. The daemon sends a byte on `complete` when there are
completions, unless it is full of bytes not heard yet; a byte says no more than that it is time to look. What a trainer
sends there goes nowhere: the daemon's end is shut for reading, for what is sent may carry descriptors, and the kernel
may block in dropping those. Of the attach socket itself they are refused where the kernel can (Linux 6.16).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import json
import logging
import os
import pwd
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.base.errors import (
    InvalidArgument,
    PermissionDenied,
    Refused,
    ResourceExhausted,
    Unauthenticated,
    status_of,
)
from ultima.daemon.base.logs import about
from ultima.daemon.base.waiting import spawn
from ultima.daemon.engine.engine import SessionMemory
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.trainers import memory
from ultima.daemon.trainers.budget import Budget, check_share
from ultima.daemon.trainers.memory import Memory, whole_pages
from ultima.daemon.trainers.users import Tokens, counts_as

log = logging.getLogger("ultimad.attach")

PROTOCOL = 4
HELLO_BYTES_MAX = 4096
NOTES_MAX = 64  # that one trainer is sent
SILENT_MAX = 256  # connections that have not said hello yet; more are hung up on
SILENT_PER_UID_MAX = 192  # of one user
_SO_PEERPIDFD = 77  # Linux 6.5
_SO_PASSRIGHTS = 83  # Linux 6.16


@dataclass(eq=False)
class Trainer:
    """One attached process and the memory it was given."""

    uid: int
    pid: int
    ticket: str
    given: Memory
    size: int
    """Of what it was given, in bytes."""
    connection: socket.socket
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    joined: bool = False
    """It is in a job, or on its way into one: its ticket is used and it may stay as long as it likes."""
    expiry: asyncio.TimerHandle | None = None
    told: set[str] = field(default_factory=set)
    """Notes that it has had."""

    @property
    def memory(self) -> tuple[SessionMemory, ...]:
        """Pairs of rings; arena and completion bell are the same in all."""
        return self.given.rings

    def tell(self, name: str, text: str) -> None:
        """Sends a note for people, once. Nobody waits for a trainer that does not listen: then the note is lost."""
        if text not in self.told and len(self.told) < NOTES_MAX:
            self.told.add(text)
            with contextlib.suppress(OSError):
                self.connection.send(json.dumps({"note": name, "text": text}).encode(), socket.MSG_DONTWAIT)

    def see(self, view: Mapping[str, object]) -> None:
        """Says who is in its job from now on. Its receipts say the same, if it does not listen."""
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps({"view": view}).encode(), socket.MSG_DONTWAIT)

    def want_state(self, wanted: bool, followed: bool) -> None:
        """Says whether another rank of its job waits for its state, and whether one follows it."""
        with contextlib.suppress(OSError):
            told = {"state_wanted": wanted, "followed": followed}
            self.connection.send(json.dumps(told).encode(), socket.MSG_DONTWAIT)

    def part(self, back_within_s: float) -> None:
        """Says that the daemon goes, and for how long it is to be waited for: the last word before it hangs up."""
        with contextlib.suppress(OSError):
            self.connection.send(
                json.dumps({"back_within_ms": round(back_within_s * 1e3)}).encode(), socket.MSG_DONTWAIT
            )

    def expire_after(self, seconds: float) -> None:
        """Hangs up on a trainer that is in no job unless it joins one within `seconds`."""
        self.joined = False
        self.expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def keep(self) -> None:
        """The trainer is in use: it does not expire."""
        self.joined = True
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None

    def hang_up(self) -> None:
        """Ends the life line from this side."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _expire(self) -> None:
        log.info("ticket expired pid=%d uid=%d", self.pid, self.uid)
        self.hang_up()


def credentials(connection: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end, as the kernel knew it when it connected."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", data)
    return pid, uid, gid


def may_attach(uid: int, gid: int, config: DaemonConfig) -> bool:
    """The daemon's own user, root, the listed users, and members of the configured group."""
    if uid in (os.geteuid(), *config.allow_uids) or (uid == 0 and config.root_is_trusted):
        return True
    if not config.allow_group:
        return False
    try:
        allowed = grp.getgrnam(config.allow_group).gr_gid
        return allowed == gid or allowed in os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return False


def parse_hello(data: bytes, arena_bytes_max: int) -> int | None:
    """The arena size that a trainer asks for, in bytes, rounded up to whole pages; None: a caller wants a token.

    Raises InvalidArgument or ResourceExhausted.
    """
    if len(data) > HELLO_BYTES_MAX:
        raise InvalidArgument(f"hello: more than {HELLO_BYTES_MAX} bytes")
    try:
        hello = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidArgument("hello: not JSON") from None
    if not isinstance(hello, dict) or hello.get("v") != PROTOCOL:
        version = hello.get("v") if isinstance(hello, dict) else None
        raise InvalidArgument(f"v = {version!r}: this daemon speaks {PROTOCOL}")
    who = hello.get("who", False)
    if who is True:
        return None
    if who is not False:
        raise InvalidArgument(f"who = {who!r}: allowed: true, or to be left out")
    size = hello.get("arena_bytes")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidArgument(f"arena_bytes = {size!r}: allowed: 1 to {arena_bytes_max}")
    if size > arena_bytes_max:
        raise ResourceExhausted(f"limits.arena_bytes = {arena_bytes_max}: arena_bytes = {size} asked")
    return whole_pages(size)


class AttachServer:
    """Listens on DIR/attach.sock and keeps the trainers that came in."""

    def __init__(
        self,
        config: DaemonConfig,
        engine: HostEngine,
        budget: Budget,
        tokens: Tokens,
        version: str,
        on_gone: Callable[[Trainer], None],
    ) -> None:
        """`on_gone` is called once for each trainer that goes, while its memory is still mapped."""
        self._config, self._engine, self._budget, self._version = config, engine, budget, version
        self._tokens = tokens
        self._on_gone = on_gone
        self._tickets: dict[str, Trainer] = {}
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._trainers: set[Trainer] = set()
        self._returning = ThreadPoolExecutor(1, thread_name_prefix="memory")
        """Takes memory back."""
        self._stopping = False
        self._silent: Counter[int] = Counter()
        """Connections that have not said hello yet, by user."""

    @property
    def trainers(self) -> int:
        """Processes that hold memory now."""
        return len(self._trainers)

    def start(self, listener: socket.socket) -> None:
        """Accepts on a listening SOCK_SEQPACKET socket, which becomes the server's."""
        listener.setblocking(False)
        self._listener = listener
        self._accepting = spawn(self._accept(listener), "attach-accept")

    def claim(self, ticket: str) -> Trainer:
        """Uses a ticket up. Raises Unauthenticated if it does not exist (never did, was used, has expired)."""
        trainer = self._tickets.pop(ticket, None)
        if trainer is None:
            raise Unauthenticated("ticket: unknown, used or expired; attach again for a new one")
        trainer.keep()
        return trainer

    def release(self, trainer: Trainer) -> None:
        """The trainer is in no job any more: it hangs up soon, or is hung up on."""
        if not trainer.gone.is_set():
            trainer.expire_after(self._config.limits.ticket_seconds)

    async def stop_accepting(self) -> None:
        """Nobody new comes in; those who are in stay."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def stop(self) -> None:
        """Hangs up on everybody and takes all memory back."""
        await self.stop_accepting()
        self._stopping = True
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.to_thread(self._returning.shutdown)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors or memory: others may go, so it is worth another try
                log.warning("accept failed error=%s", error.strerror)
                await asyncio.sleep(1.0)
                continue
            connection.setblocking(False)
            _, uid, _ = credentials(connection)
            if self._silent.total() >= SILENT_MAX or self._silent[uid] >= SILENT_PER_UID_MAX:
                connection.close()
                continue
            self._silent[uid] += 1
            task = spawn(self._attend(connection, uid), "attach")
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _attend(self, connection: socket.socket, uid: int) -> None:
        trainer: Trainer | None = None
        try:
            try:
                trainer = await self._welcome(connection)
            finally:
                self._silent -= Counter((uid,))  # which forgets those that have none
            if trainer is not None:
                self._answer(connection, trainer)
                await self._until_gone(connection, trainer)
        except Refused as error:
            log.warning("attach refused status=%s reason=%s", status_of(error).name, error, extra=about(uid))
            reply = {"v": PROTOCOL, "error": status_of(error).name, "message": str(error)}
            with contextlib.suppress(OSError):
                connection.send(json.dumps(reply).encode())
        except (OSError, TimeoutError) as error:
            log.info("attach ended early error=%s", str(error) or "no hello in time")
        finally:
            if trainer is not None:
                await self._forget(trainer)
            connection.close()

    async def _welcome(self, connection: socket.socket) -> Trainer | None:
        """Makes a trainer of who says hello, or answers with a token. Raises Refused."""
        pid, uid, gid = credentials(connection)
        # Read before anything is refused: an answer to somebody whose words were not read is lost with a reset.
        # Descriptors that come along are dropped by the kernel, because recv has no room for them.
        receive = asyncio.get_running_loop().sock_recv(connection, HELLO_BYTES_MAX + 1)
        hello = await asyncio.wait_for(receive, self._config.limits.hello_seconds)
        if not hello:
            raise OSError(errno.ECONNRESET, "hung up before saying anything")
        if not may_attach(uid, gid, self._config):
            raise PermissionDenied(f"uid {uid} may not attach: see allow_uids and allow_group in the daemon's config")
        uid = counts_as(uid, self._config.root_is_trusted)
        arena_bytes = parse_hello(hello, self._config.limits.arena_bytes)
        if arena_bytes is None:
            connection.send(json.dumps({"v": PROTOCOL, "token": self._tokens.give(uid)}).encode())
            return None
        idle = (trainer.uid for trainer in self._trainers if not trainer.joined)
        check_share("attaching", self._config.limits, idle, uid, "processes are attaching")
        trainer = self._create(connection, pid, uid, arena_bytes)
        self._trainers.add(trainer)
        self._tickets[trainer.ticket] = trainer
        trainer.expire_after(self._config.limits.ticket_seconds)
        log.info("trainer attached pid=%d uid=%d arena_bytes=%d", pid, uid, arena_bytes)
        return trainer

    def _create(self, connection: socket.socket, pid: int, uid: int, arena_bytes: int) -> Trainer:
        size = memory.size_of(self._engine, arena_bytes)
        self._budget.take(uid, size)
        try:
            given = memory.create(self._engine, arena_bytes)
        except BaseException:
            self._budget.give_back(uid, size)
            raise
        return Trainer(uid, pid, secrets.token_hex(16), given, size, connection)

    def _answer(self, connection: socket.socket, trainer: Trainer) -> None:
        first = trainer.memory[0]
        reply = {
            "v": PROTOCOL,
            "ticket": trainer.ticket,
            "lanes": len(trainer.memory),
            "arena_bytes": first.arena.size,
            "submission_bytes": first.submissions.size,
            "completion_bytes": first.completions.size,
            "version": self._version,
            "monotonic_ns": time.monotonic_ns(),  # deadlines are times of this clock: the trainer's must be the same
        }
        socket.send_fds(connection, [json.dumps(reply).encode()], trainer.given.descriptors())
        trainer.given.sent()

    async def _until_gone(self, connection: socket.socket, trainer: Trainer) -> None:
        """Returns when the trainer hangs up, or its process ends although a child still holds the socket open."""
        loop = asyncio.get_running_loop()
        died: asyncio.Future[None] = loop.create_future()
        pidfd = process_handle(connection, trainer.pid)
        if pidfd >= 0:
            loop.add_reader(pidfd, died.cancel)
        line = asyncio.ensure_future(loop.sock_recv(connection, 1))
        try:
            await asyncio.wait((line, died), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if pidfd >= 0:
                loop.remove_reader(pidfd)
                os.close(pidfd)
            if not line.done():
                line.cancel()
            (data,) = await asyncio.gather(line, return_exceptions=True)
        if isinstance(data, bytes) and data:
            log.warning("trainer broke the protocol pid=%d: it spoke twice", trainer.pid)

    async def _forget(self, trainer: Trainer) -> None:
        """Ends a trainer. It counts until its memory has gone back, which for a large arena takes a while."""
        self._tickets.pop(trainer.ticket, None)
        trainer.keep()
        trainer.gone.set()
        # When the daemon ends, trainers live on, and so do the arrays that they have in their arenas.
        discard = not self._stopping
        try:
            self._on_gone(trainer)
        finally:
            work = self._returning.submit(trainer.given.unmap, self._engine, discard)
            try:
                await asyncio.shield(asyncio.wrap_future(work))
            finally:
                trainer.given.close()
                self._budget.give_back(trainer.uid, trainer.size)
                self._trainers.discard(trainer)
                log.info("trainer gone pid=%d uid=%d", trainer.pid, trainer.uid)


def process_handle(connection: socket.socket, pid: int) -> int:
    """A pidfd of the process at the other end, or -1 where the kernel cannot give one; readable when it has ended."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i"))
        return int(struct.unpack("i", data)[0])
    except OSError:
        pass
    try:
        return os.pidfd_open(pid) if pid > 0 else -1
    except OSError:
        return -1


def listen(path: Path, group: str) -> socket.socket:
    """A listening SOCK_SEQPACKET socket at `path`, for its owner and `group` only. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o117)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if group:
            os.chown(path, -1, grp.getgrnam(group).gr_gid, follow_symlinks=False)
        with contextlib.suppress(OSError):  # an older kernel; who connects gets what the listener has
            listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener
