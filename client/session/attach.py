# SPDX-License-Identifier: Apache-2.0
"""Attaches to the real daemon: the attach socket for memory, then gRPC for the place in the job.

Every step has the same time limit, so a daemon that is stopped in the middle of one costs no more than the timeout.
Loaded only when a real connection is made: grpc takes a quarter of a second to import.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import re
import socket
import threading
import time
from typing import Any

import grpc

from ultima.base.errors import (
    DaemonUnavailable,
    Desync,
    InvalidArgument,
    JoinRefused,
    JoinTimeout,
    ProtocolError,
    ResourceExhausted,
    UltimaError,
    Unsupported,
)
from ultima.base.receipt import Host
from ultima.base.views import View
from ultima.session import rings
from ultima.session.arena import Arena
from ultima.session.attachment import Attachment
from ultima.session.caller import attach_path
from ultima.session.memory import SharedMap
from ultima.session.notes import hear, tell
from ultima.session.round_line import DaemonRoundLine
from ultima.session.state_line import DaemonStateLine
from ultima.settings import options as job_options
from ultima.settings.config import Settings
from ultima.v1 import trainer_pb2, trainer_pb2_grpc, types_pb2
from ultima.v1.job_options import POLICY_CODED
from ultima.v1.limits import LANES_MAX
from ultima.v1.unix_target import unix_target

PROTOCOL_VERSION = 4
REPLY_MAX_BYTES = 16384
FDS_MAX = 2 + 3 * LANES_MAX
# A memfd that can neither shrink nor grow cannot make us die of SIGBUS.
SEALS_NEEDED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# The daemon ends an RPC that runs out of time itself, with a message; ours only has to end when it does not.
RPC_GRACE_S = 0.04
RETRY_FIRST_S = 0.01
RETRY_MOST_S = 0.2
NOTES_LOOK_S = 0.5
# Not the module's own generator, which is the program's.
_jitter = random.SystemRandom()

# Answers that may change by themselves: the daemon is starting, or has not noticed yet that our old session is gone.
_TRANSIENT_ERRNOS = {errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE}


def _check_coded(settings: Settings) -> None:
    """Raises Unsupported for codes that the engine does not have."""
    said = {name: job_options.BY_NAME[name] for name in ("children", "code", "exact")}
    values = {name: each.write(settings.options.get(each.row.field, each.row.default)) for name, each in said.items()}
    where = "with linear codes" if values["code"] == "linear" else "in trees" if values["children"] != "star" else ""
    if where and values["exact"] == "no":
        raise Unsupported("policy coded", f"the engine of this release has no estimates {where}, exact no")


class DaemonConnector:
    """Connector for `ultimad`."""

    def attach(self, settings: Settings, until_ns: int, patience_ns: int, next_op_seq: int | None = None) -> Attachment:
        """See Connector.attach."""
        if settings.options.get("policy") == POLICY_CODED:
            _check_coded(settings)
        pause = RETRY_FIRST_S
        answer: _TryAgain | None = None
        while True:
            try:
                return self._attach_once(settings, until_ns, next_op_seq)
            except _TryAgain as again:
                # The last try has little time. What an earlier one was told says more than that this one heard nothing.
                answer = answer if answer is not None and isinstance(again, _NoAnswer) else again
                left = (min(until_ns, patience_ns) - time.monotonic_ns()) / 1e9
                if left <= 0:
                    raise answer.error from None
                time.sleep(min(left, pause * _jitter.uniform(0.8, 1.2)))
                pause = min(2 * pause, RETRY_MOST_S)

    def _attach_once(self, settings: Settings, until_ns: int, next_op_seq: int | None) -> Attachment:
        path = attach_path(settings.socket)
        with contextlib.ExitStack() as undo:
            lifeline = undo.enter_context(_connect(path, until_ns))
            reply, fds = _exchange(lifeline, path, settings.arena_bytes, until_ns)
            for fd in fds:
                undo.callback(os.close, fd)
            arena, pairs = _map(reply, fds)
            lifeline.setblocking(False)
            answer = _join(settings, str(reply["ticket"]), until_ns, lifeline, next_op_seq)
            if not 1 <= answer.lanes <= len(pairs):
                raise ProtocolError(f"the daemon says that the job has {answer.lanes} lanes; its own are {len(pairs)}")
            if answer.portions not in (0, 1, answer.lanes):
                raise ProtocolError(f"the daemon says {answer.portions} portions; the job has {answer.lanes} lanes")
            lanes = pairs[: answer.lanes]  # the daemon may have more than the job
            hosts = tuple(map(_host, answer.hosts))
            undo.pop_all()
            bells = fds[4::3][: len(lanes)]
            for fd in {*fds} - {fds[1], *bells}:
                os.close(fd)
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fds[1])
            session, ticket = answer.session, str(reply["ticket"])
            rank = answer.rank if settings.least else settings.rank
            options = job_options.words(answer.options)
            partial = options.get("policy", "none") != "none"
            rounds = DaemonRoundLine(settings.socket, session, ticket)

            def leave(timeout_s: float, drain_s: float, next_op_seq: int) -> None:
                rounds.close()
                request = trainer_pb2.LeaveJobRequest(session=session, ticket=ticket, next_op_seq=next_op_seq)
                _leave(settings.socket, request, timeout_s, drain_s)

            return Attachment(
                rings=rings.NativeRings(
                    lanes,
                    hosts,
                    rank,
                    0 if settings.least else settings.world_size,
                    next_op_seq=answer.next_op_seq,
                    portions=answer.portions or 1,
                    bells=bells,
                    partial=partial,
                ),
                arena=Arena(arena),
                lifeline=lifeline,
                bell=bell,
                hosts=hosts,
                host_index=answer.host_index,
                rank=rank,
                view=_view(answer) if settings.least else None,
                state_line=DaemonStateLine(settings.socket, session, ticket) if settings.least else None,
                next_op_seq=answer.next_op_seq,
                bucket_bytes_max=answer.bucket_bytes_max,
                round_line=rounds,
                leave=leave,
                options=options,
                sparse=not partial and options.get("algorithm") == "tar" and options.get("deterministic") == "no",
            )


def _host(said: types_pb2.Host) -> Host:
    return Host(said.index, said.address, tuple(said.ranks), said.grpc_port, tuple(said.wires))


class _TryAgain(Exception):
    """`error` is what to raise when there is no time for another attempt."""

    def __init__(self, error: UltimaError) -> None:
        super().__init__(str(error))
        self.error = error


class _NoAnswer(_TryAgain):
    """The time is over."""


def _left_s(until_ns: int) -> float:
    return max(0.001, (until_ns - time.monotonic_ns()) / 1e9)


def _connect(path: str, until_ns: int) -> socket.socket:
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        lifeline.settimeout(_left_s(until_ns))
        lifeline.connect(path)
    except TimeoutError:
        lifeline.close()
        raise _no_answer(path) from None
    except OSError as error:
        lifeline.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        unavailable = DaemonUnavailable(
            f"no daemon at {path}: {reason}. Is ultimad running, is ULTIMA_SOCKET right? "
            "`ultima run -- PROGRAM` starts a daemon for one run"
        )
        if error.errno in _TRANSIENT_ERRNOS:
            raise _TryAgain(unavailable) from None
        raise unavailable from None
    return lifeline


def _exchange(lifeline: socket.socket, path: str, arena_bytes: int, until_ns: int) -> tuple[dict[str, Any], list[int]]:
    """The one message each way. The descriptors that came are the caller's."""
    request = {"v": PROTOCOL_VERSION, "arena_bytes": arena_bytes, "pid": os.getpid()}
    try:
        lifeline.settimeout(_left_s(until_ns))
        asked_ns = time.monotonic_ns()
        lifeline.send(json.dumps(request).encode())
        data, fds, flags, _ = socket.recv_fds(lifeline, REPLY_MAX_BYTES, FDS_MAX, socket.MSG_CMSG_CLOEXEC)
    except TimeoutError:
        raise _no_answer(path) from None
    except OSError as error:
        raise _TryAgain(DaemonUnavailable(f"the daemon at {path} hung up while attaching: {error.strerror}")) from None
    try:
        if not data:
            raise _TryAgain(DaemonUnavailable(f"the daemon at {path} hung up while attaching"))
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise ProtocolError(f"the daemon at {path} sent more than this client takes")
        reply = _checked_reply(data, fds, path)
        _check_clock(reply, asked_ns, time.monotonic_ns(), path)
        return reply, fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _checked_reply(data: bytes, fds: list[int], path: str) -> dict[str, Any]:
    try:
        reply = json.loads(data)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict) or reply.get("v") != PROTOCOL_VERSION:
        raise ProtocolError(f"the daemon at {path} does not speak version {PROTOCOL_VERSION} of the attach protocol")
    if "error" in reply:
        raise _attach_error(str(reply["error"]), str(reply.get("message", "")))
    for name in ("lanes", "arena_bytes", "submission_bytes", "completion_bytes"):
        if not isinstance(reply.get(name), int) or reply[name] <= 0:
            raise ProtocolError(f"the daemon at {path} sent {name} = {reply.get(name)!r}; a positive number is needed")
    needed = 2 + 3 * reply["lanes"]
    if len(fds) != needed or not isinstance(reply.get("ticket"), str):
        raise ProtocolError(f"the daemon at {path} sent {len(fds)} descriptors; {needed} and a ticket are needed")
    return reply


def _check_clock(reply: dict[str, Any], asked_ns: int, answered_ns: int, path: str) -> None:
    """Raises DaemonUnavailable where the daemon's CLOCK_MONOTONIC is another than ours: deadlines are times of that
    clock, so every op would be late at once, or never. Its word was made between our question and its answer. A daemon
    of an older release does not tell.
    """
    theirs = reply.get("monotonic_ns")
    if not isinstance(theirs, int) or asked_ns <= theirs <= answered_ns:
        return
    apart_s = (theirs - (asked_ns if theirs < asked_ns else answered_ns)) * 1e-9
    raise DaemonUnavailable(
        f"the clock of the daemon at {path} is {abs(apart_s):.3f} s {'ahead of' if apart_s > 0 else 'behind'} this "
        "process's (CLOCK_MONOTONIC), so no deadline would hold: the two run in different time namespaces, as after "
        "`unshare --time` or a restore by CRIU. Run both in one"
    )


def _attach_error(code: str, message: str) -> Exception:
    if code == "RESOURCE_EXHAUSTED":
        return ResourceExhausted("attach", message)
    if code == "INVALID_ARGUMENT":
        return InvalidArgument("arena", "refused by the daemon", message)
    if code == "UNAVAILABLE":
        return _TryAgain(DaemonUnavailable(message))
    return DaemonUnavailable(f"the daemon refuses this user: {message}")


def _map(reply: dict[str, Any], fds: list[int]) -> tuple[SharedMap, list[tuple[SharedMap, SharedMap]]]:
    """The arena, and both rings of each lane."""
    submission, completion = int(reply["submission_bytes"]), int(reply["completion_bytes"])
    for size, needed, name in (
        (submission, rings.SUBMISSION_RING_BYTES, "submission"),
        (completion, rings.COMPLETION_RING_BYTES, "completion"),
    ):
        if size < needed:
            raise ProtocolError(f"the daemon's {name} ring has {size} bytes, ours {needed}: different releases?")
    # Descriptors: the arena and the completion bell; then of each lane both rings and its submission bell.
    arena = _mapped(fds[0], int(reply["arena_bytes"]), writable=True)
    pairs = [
        (_mapped(fds[at], submission, writable=True), _mapped(fds[at + 1], completion, writable=False))
        for at in range(2, len(fds), 3)
    ]
    return arena, pairs


def _mapped(fd: int, size: int, writable: bool) -> SharedMap:
    if os.fstat(fd).st_size < size or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS_NEEDED != SEALS_NEEDED:
        raise ProtocolError("the daemon sent shared memory that is too small, or not sealed against a change of size")
    return SharedMap(fd, size, writable=writable)


def _channel(path: str) -> grpc.Channel:
    return grpc.insecure_channel(unix_target(path), options=[("grpc.enable_http_proxy", 0)])


def _join(settings: Settings, ticket: str, until_ns: int, lifeline: socket.socket, next_op_seq: int | None) -> Any:
    """Waits for all ranks of the job; what the daemon has to say meanwhile is told."""
    request = trainer_pb2.JoinJobRequest(
        ticket=ticket,
        job=settings.job,
        rank=settings.rank,
        world_size=settings.world_size,
        rendezvous=settings.rendezvous,
        rank_addresses=settings.rank_addresses,
        bucket_bytes_max=settings.bucket_bytes_max,
        rate_bytes_per_s=settings.rate_bytes_per_s,
        options=job_options.message(settings.options),
        secret=settings.secret,
        next_op_seq=next_op_seq,
        least=settings.least,
        split_waits=settings.split_waits,
        follow=settings.follow,
        local_world_size=settings.local_world_size if settings.least else 0,
    )
    with _channel(settings.socket) as channel:
        try:
            call = trainer_pb2_grpc.TrainerServiceStub(channel).JoinJob.future(
                request, timeout=_left_s(until_ns) + RPC_GRACE_S
            )
            _tell_until(call, lifeline)
            return call.result()
        except grpc.RpcError as error:
            raise _join_error(settings, error) from None


def _tell_until(call: Any, lifeline: socket.socket) -> None:
    """Tells the daemon's notes until the call has ended; who is interrupted takes it back."""
    done = threading.Event()
    call.add_done_callback(lambda _: done.set())
    try:
        while not done.wait(NOTES_LOOK_S):
            tell(hear(lifeline).notes)
    except BaseException:
        call.cancel()
        raise


def _join_error(settings: Settings, error: Any) -> Exception:
    """The one table from JoinJob's status codes (trainer.proto) to exceptions."""
    code, text = error.code(), str(error.details() or "").replace(f"job {settings.job!r}: ", "", 1)
    where = f"job {settings.job!r}, rank {settings.rank} of {settings.world_size}"
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return JoinTimeout(f"{where}: not complete in time: {text}")
        case grpc.StatusCode.INVALID_ARGUMENT:
            named = re.fullmatch(r"(\w+) = (\S+): allowed: (.+)", text, re.DOTALL)
            if named is None:
                return InvalidArgument("join", where, text)
            value = int(named[2]) if named[2].isdecimal() else named[2]
            return InvalidArgument(named[1], value, f"{named[3]} ({where})")
        case grpc.StatusCode.FAILED_PRECONDITION:
            differs = re.search(r": (\w+) differs: ", text)
            if differs is None:
                return JoinRefused(f"{where}: {text}")
            field, message = differs[1], f"{where}: {text}; give all ranks the same"
            return Desync(None, field, _said(settings, field), None, message=message)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return ResourceExhausted("join", f"{where}: {text}")
        case grpc.StatusCode.PERMISSION_DENIED:
            return JoinRefused(f"{where}: {text}")
        case grpc.StatusCode.ALREADY_EXISTS:
            # Perhaps our own former session, whose end the daemon is about to notice.
            return _TryAgain(JoinRefused(f"{where}: {text}"))
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED | grpc.StatusCode.UNAUTHENTICATED:
            return _TryAgain(DaemonUnavailable(f"{where}: the daemon hung up during the join: {text}"))
        case _:
            return ProtocolError(f"{where}: JoinJob answered {code.name}: {text}")


def _said(settings: Settings, field: str) -> object:
    """What this rank said of a field in which the ranks differ."""
    if field in settings.options:
        return next(row.write(settings.options[field]) for row in job_options.TABLE if row.field == field)
    return {"world_size": settings.world_size, "local_world_size": settings.local_world_size}.get(field)


def _view(answer: trainer_pb2.JoinJobResponse) -> View:
    if not answer.HasField("view"):
        raise ProtocolError('the daemon gave no view: its release knows no world="elastic"')
    told = answer.view
    return View(told.number, tuple(told.ranks), answer.rank, told.start, told.why)


def _leave(path: str, request: trainer_pb2.LeaveJobRequest, timeout_s: float, drain_s: float) -> None:
    request.drain_ms = int(drain_s * 1e3)
    with _channel(path) as channel, contextlib.suppress(grpc.RpcError):
        trainer_pb2_grpc.TrainerServiceStub(channel).LeaveJob(request, timeout=timeout_s + drain_s)


def _no_answer(path: str) -> _NoAnswer:
    return _NoAnswer(DaemonUnavailable(f"the daemon at {path} does not answer: it is stopped, or starved of CPU"))
