# SPDX-License-Identifier: Apache-2.0
"""What ranks print and read: lines with the rank's number before them, a file for each rank and stream, and the
keyboard for one rank.

A stream that needs none of this is not touched: the ranks have this program's own. The others are pipes, and whole
lines of them are passed on. The beginning of a line that stays unfinished for a moment, such as a question, is shown
as it is. Nobody waits inside a write: what the terminal does not take is kept, and the ranks' pipes are not read
meanwhile.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ultima.base.errors import InvalidArgument
from ultima.launch.signals import Signals

CHUNK = 65536
# poll(2) calls a pipe writable while it has this much room (PIPE_BUF), so a write of no more does not wait.
WRITE = 4096
# A line that is not finished by then is shown: somebody may be asked something.
UNFINISHED_S = 0.2
# How long the end of a run waits for output that a terminal does not take, or that a process outside the ranks' groups
# could still write.
DRAIN_S = 1.0
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?!\Z))")


@dataclass(frozen=True)
class Wanted:
    """What to do with the ranks' streams."""

    prefix: bool | None = None
    """Whether "[rank 3] " stands before each line; None: on a terminal, where the host has several ranks."""
    folder: Path | None = None
    """Where each stream of each rank is kept in a file; None: nowhere."""
    stdin: int | None = None
    """The rank, by its number in the job, that reads what this program's standard input has; None: nobody."""


class Target:
    """One of this program's own streams, standard output or error."""

    def __init__(self, fd: int, signals: Signals, resume: Callable[[], None]) -> None:
        self._fd, self._signals, self._resume = fd, signals, resume
        self._waiting = bytearray()
        self._gone = False
        self.unfinished: object = None
        """Whose line the cursor stands in."""

    @property
    def full(self) -> bool:
        return bool(self._waiting)

    def write(self, data: bytes) -> None:
        if self._gone:
            return
        was_full = self.full
        self._waiting += data
        self._flush()
        if self.full and not was_full:
            self._signals.watch(self._fd, selectors.EVENT_WRITE, self._go_on)

    def drain(self, limit: float) -> None:
        """Writes what waits, until |limit| of time.monotonic()."""
        while self._waiting and (left := limit - time.monotonic()) > 0:
            select.select([], [self._fd], [], left)
            self._flush()
        self._signals.forget(self._fd)

    def _go_on(self) -> None:
        self._flush()
        if not self._waiting:
            self._signals.forget(self._fd)
            self._resume()

    def _flush(self) -> None:
        try:
            while self._waiting and select.select([], [self._fd], [], 0)[1]:
                del self._waiting[: os.write(self._fd, self._waiting[:WRITE])]
        except BlockingIOError:
            return
        except OSError:  # its reader is gone; the files are still written
            self._gone = True
            self._waiting.clear()


@dataclass(eq=False)
class Stream:
    """One stream of one rank: the end of its pipe that is ours."""

    fd: int
    target: Target
    prefix: bytes
    log: int | None
    line: bytearray = field(default_factory=bytearray)
    """The beginning of a line that is not finished."""
    since: float = 0.0
    """When it came."""
    shown: bool = False
    """Whether something of the line is on the terminal already."""


class Output:
    """Carries the streams of all ranks of this host."""

    def __init__(
        self,
        wanted: Wanted,
        several: bool,
        signals: Signals,
        say: Callable[[str], None],
        own: tuple[int, int, int] = (0, 1, 2),
    ) -> None:
        """|several|: whether this host has more than one rank; |own|: this program's input, output and error. Raises
        InvalidArgument for a folder that cannot be."""
        self._own_input = own[0]
        self._wanted, self._signals, self._say = wanted, signals, say
        self._streams: dict[int, Stream] = {}
        self._paused = False
        self._input: int | None = None
        self._typed = bytearray()
        self._input_over = wanted.stdin is None
        self._reading_input = False
        shown = [os.isatty(fd) for fd in own]
        self._prefixed = {fd: several and shown[fd] if wanted.prefix is None else wanted.prefix for fd in (1, 2)}
        self._targets = {fd: Target(own[fd], signals, self._resume) for fd in (1, 2)}
        if shown[1] and shown[2]:
            self._targets[2] = self._targets[1]  # one cursor
        if wanted.folder is not None:
            try:
                wanted.folder.mkdir(parents=True, exist_ok=True)
                os.close(os.open(wanted.folder, os.O_RDONLY | os.O_DIRECTORY))
                if not os.access(wanted.folder, os.W_OK | os.X_OK):
                    raise PermissionError(13, "Permission denied")
            except OSError as error:
                raise InvalidArgument(
                    "--log-dir", str(wanted.folder), f"a folder in which this user can make files ({error.strerror})"
                ) from None

    def carries(self, fd: int) -> bool:
        """Whether stream |fd| of the ranks, 1 or 2, is a pipe of ours, and no terminal even where ours is one."""
        return self._prefixed[fd] or self._wanted.folder is not None

    def attach(self, rank: int, restart: int) -> tuple[int | None, int | None, int | None]:
        """The standard input, output and error for a rank that is about to be started, |restart| times before. None:
        for input nothing, for the others this program's own. The caller closes them once the rank has them."""
        reading: int | None = None
        writing: list[int | None] = []
        if rank == self._wanted.stdin:
            reading, self._input = self._new_input()
        for fd, name in ((1, "out"), (2, "err")):
            if not self.carries(fd):
                writing.append(None)
                continue
            ours, theirs = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ours, False)
            prefix = f"[rank {rank}] ".encode() if self._prefixed[fd] else b""
            stream = Stream(ours, self._targets[fd], prefix, self._log(rank, name))
            if restart and fd == 2 and stream.log is not None:
                self._keep(stream, f"--- ultima run: rank {rank} is started again, restart {restart} ---\n".encode())
            self._streams[ours] = stream
            if not self._paused:
                self._listen(stream)
            writing.append(theirs)
        return reading, writing[0], writing[1]

    def patience(self, seconds: float) -> float:
        """How long the caller may wait for the next event: |seconds|, or less where part of a line is to be shown."""
        if any(stream.line for stream in self._streams.values()):
            return min(seconds, UNFINISHED_S)
        return seconds

    def show_unfinished(self) -> None:
        """Shows the beginnings of lines that have waited for their end."""
        now = time.monotonic()
        for stream in self._streams.values():
            if stream.line and now - stream.since >= UNFINISHED_S and not stream.target.full:
                self._put(stream, bytes(stream.line))
                stream.line.clear()

    def close(self) -> None:
        """All ranks are gone: passes on what is left of their words."""
        limit = time.monotonic() + DRAIN_S
        self._end_input()
        for target in self._targets.values():
            target.drain(limit)
        while self._streams and (left := limit - time.monotonic()) > 0:
            ready = select.select(list(self._streams), [], [], left)[0]
            for fd in ready:
                self._read(self._streams[fd])
            for target in self._targets.values():
                target.drain(limit)
        for stream in list(self._streams.values()):
            self._finish(stream)
        for target in self._targets.values():
            target.drain(limit)

    def _listen(self, stream: Stream) -> None:
        self._signals.watch(stream.fd, selectors.EVENT_READ, lambda: self._read(stream))

    def _resume(self) -> None:
        if self._paused and not any(target.full for target in self._targets.values()):
            self._paused = False
            for stream in self._streams.values():
                self._listen(stream)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            for fd in self._streams:
                self._signals.forget(fd)

    def _read(self, stream: Stream) -> None:
        try:
            data = os.read(stream.fd, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._finish(stream)
            return
        self._keep(stream, data)
        stream.line += data
        stream.since = time.monotonic()
        end = 0
        for found in _LINE.finditer(stream.line):
            self._put(stream, found.group())
            end = found.end()
        del stream.line[:end]
        if len(stream.line) >= CHUNK:
            self._put(stream, bytes(stream.line))
            stream.line.clear()
        if stream.target.full:
            self._pause()

    def _put(self, stream: Stream, text: bytes) -> None:
        """Shows a line, or a part of one."""
        target = stream.target
        before = b""
        if stream.prefix:
            if target.unfinished is not None and target.unfinished is not stream:
                before = b"\n"
            if not (target.unfinished is stream and stream.shown):
                before += stream.prefix
        stream.shown = not text.endswith((b"\n", b"\r"))
        if stream.shown:
            target.unfinished = stream
        elif stream.prefix or target.unfinished is stream:
            target.unfinished = None
        target.write(before + text)

    def _finish(self, stream: Stream) -> None:
        if stream.line:
            self._put(stream, bytes(stream.line))
        if stream.prefix and stream.target.unfinished is stream:
            self._put(stream, b"\n")
        self._signals.forget(stream.fd)
        self._streams.pop(stream.fd, None)
        os.close(stream.fd)
        if stream.log is not None:
            os.close(stream.log)
            stream.log = None

    def _log(self, rank: int, name: str) -> int | None:
        folder = self._wanted.folder
        if folder is None:
            return None
        path = folder / f"rank{rank}.{name}.log"
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InvalidArgument(
                "--log-dir", str(folder), f"{path.name} cannot be written: {error.strerror}"
            ) from None

    def _keep(self, stream: Stream, data: bytes) -> None:
        if stream.log is None:
            return
        try:
            while data:
                data = data[os.write(stream.log, data) :]
        except OSError as error:
            self._say(f"--log-dir {self._wanted.folder}: {error.strerror}; a rank's words are no longer kept there")
            os.close(stream.log)
            stream.log = None

    def _new_input(self) -> tuple[int, int]:
        """The rank's end of its input, and ours, or -1 where nothing passes through this program.

        A file or a pipe is read by the rank itself, so a rank that is started again goes on where it was. A terminal
        gives to its foreground group alone, so its lines pass through here.
        """
        self._end_input(over=self._input_over)
        if not os.isatty(self._own_input):
            return os.dup(self._own_input), -1
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        if self._input_over:
            os.close(ours)
            return theirs, -1
        self._signals.watch(self._own_input, selectors.EVENT_READ, self._read_input)
        self._reading_input = True
        return theirs, ours

    def _read_input(self) -> None:
        try:
            data = os.read(self._own_input, CHUNK)
        except OSError:
            data = b""
        if data:
            self._typed += data
        else:
            self._input_over = True
        self._pass_input()

    def _pass_input(self) -> None:
        """Gives the rank what was typed; while it does not take that, no more is read."""
        assert self._input is not None
        try:
            while self._typed:
                del self._typed[: os.write(self._input, self._typed)]
        except BlockingIOError:
            if self._reading_input:
                self._signals.forget(self._own_input)
                self._signals.watch(self._input, selectors.EVENT_WRITE, self._pass_input)
                self._reading_input = False
            return
        except OSError:  # the rank is gone, or has closed its input
            self._end_input(over=self._input_over)
            return
        if self._input_over:
            self._end_input()
        elif not self._reading_input:
            self._signals.forget(self._input)
            self._signals.watch(self._own_input, selectors.EVENT_READ, self._read_input)
            self._reading_input = True

    def _end_input(self, over: bool = True) -> None:
        """Closes the rank's input. |over|: for good, else until the rank is started again."""
        self._input_over = over
        self._typed.clear()
        if self._reading_input:
            self._signals.forget(self._own_input)
            self._reading_input = False
        if self._input is not None and self._input >= 0:
            self._signals.forget(self._input)
            with suppress(OSError):
                os.close(self._input)
        self._input = None
