# SPDX-License-Identifier: Apache-2.0
"""The memory that a trainer is given: how it is made, what the trainer may do with it, and how it is taken back.

The kernel keeps a page of a memfd while anybody holds a descriptor or a mapping of the file, and charges it to whoever
touched it first, which is often the daemon. So the end of a trainer is not the end of its memory: it may have handed
the descriptor on. When the trainer is gone, the daemon takes the pages out of the files before it says that they are
free. Whoever still has a file then reads zeros, and what he writes there is charged to him.

A file that is sealed against writers (F_SEAL_FUTURE_WRITE) keeps its pages for ever. Therefore completions, which a
trainer must not forge, lie in a file that it gets open for reading alone. Only this daemon's user and root may open the
file once more for writing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import socket
from dataclasses import dataclass

from ultima.daemon.base.errors import Unavailable
from ultima.daemon.engine.engine import Region, SessionMemory
from ultima.daemon.engine.host_engine import HostEngine

_MFD_NOEXEC_SEAL = 0x0008  # Linux 6.3
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(eq=False)
class Memory:
    """Arena, rings and bells of one trainer."""

    rings: tuple[SessionMemory, ...]
    """Arena and completion bell are the same in all."""
    parcel: list[int]
    """What only the trainer needs by number, until it was sent: arena, its end of the completion bell, rings."""

    def descriptors(self) -> list[int]:
        """As they are sent: arena and completion bell; then pair by pair both rings and its submission bell."""
        arena, bell, *rings = self.parcel
        found = [arena, bell]
        for at, memory in enumerate(self.rings):
            found += [*rings[2 * at : 2 * at + 2], memory.submit_fd]
        return found

    def sent(self) -> None:
        """The trainer has them; what is mapped here is no longer needed by number."""
        for fd in self.parcel:
            os.close(fd)
        self.parcel = []

    def close(self) -> None:
        """Closes all descriptors."""
        self.sent()
        for fd in (self.rings[0].complete_fd, *(each.submit_fd for each in self.rings)):
            os.close(fd)

    def unmap(self, engine: HostEngine, discard: bool) -> None:
        """Ends the mappings, and takes the pages from all who hold the files if `discard` says so. Large memory takes
        a while; any thread may call this."""
        rings = [region for each in self.rings for region in (each.submissions, each.completions)]
        for region in (self.rings[0].arena, *rings):
            engine.region_unmap(region, discard)


def whole_pages(size: int) -> int:
    """`size` rounded up to pages, because a file is mapped by pages and one byte beyond its end is a SIGBUS."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def ring_bytes(engine: HostEngine) -> tuple[int, int]:
    """Of the submissions and the completions of a pair of rings, in whole pages."""
    return whole_pages(engine.info.submission_bytes), whole_pages(engine.info.completion_bytes)


def size_of(engine: HostEngine, arena_bytes: int) -> int:
    """Bytes of all memory of a trainer with an arena of that size."""
    return sum(ring_bytes(engine)) * engine.count + arena_bytes


def create(engine: HostEngine, arena_bytes: int) -> Memory:
    """New memory, mapped and of sealed size. Raises Unavailable if the kernel has none."""
    rings = ring_bytes(engine)
    with contextlib.ExitStack() as undo:
        parcel: list[int] = []

        def kept(fd: int) -> int:
            undo.callback(os.close, fd)
            return fd

        def region(name: str, nbytes: int, *, writable: bool = True) -> Region:
            fd = create_memfd(name, nbytes)
            try:
                mapped = engine.region_map(fd, nbytes)
                undo.callback(engine.region_unmap, mapped, True)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
                parcel.append(kept(os.dup(fd) if writable else for_reading(fd)))
            finally:
                os.close(fd)
            return mapped

        try:
            arena = region("ultima-arena", arena_bytes)
            complete_fd, theirs = map(kept, make_bell())
            parcel.append(theirs)
            memory = tuple(
                SessionMemory(
                    region("ultima-submit", rings[0]),
                    region("ultima-complete", rings[1], writable=False),
                    arena,
                    kept(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)),
                    complete_fd,
                )
                for _ in range(engine.count)
            )
        except OSError as error:
            raise Unavailable(_why(error)) from error
        undo.pop_all()
    return Memory(memory, parcel)


def _why(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"this host's daemon has all the {most} descriptors open that it may have (LimitNOFILE= of its service)"
    if error.errno == errno.ENFILE:
        return "this host has as many files open as it may have (fs.file-max)"
    return f"this host's daemon gets no shared memory: {error.strerror}"


def make_bell() -> tuple[int, int]:
    """Both ends of a completion bell, by number: ours, which only sends, and the trainer's. Raises OSError."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    near.shutdown(socket.SHUT_RD)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is: a few rings that are not heard yet
    return near.detach(), far.detach()


def create_memfd(name: str, size: int) -> int:
    """A memfd of `size` bytes whose seals can still be set. Raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create(name, flags)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def for_reading(fd: int) -> int:
    """The same file open for reading alone; no other user than ours can open it for writing. Raises OSError."""
    os.fchmod(fd, 0o400)
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
