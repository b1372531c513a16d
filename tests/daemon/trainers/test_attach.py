# SPDX-License-Identifier: Apache-2.0
"""The attach socket: who may come in, what they get, what they cannot do with it, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import mmap
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.helpers import House, attach, engine, eventually
from ultima.daemon.base.errors import InvalidArgument, ResourceExhausted
from ultima.daemon.trainers import memory
from ultima.daemon.trainers.attach import may_attach, parse_hello
from ultima.daemon.trainers.memory import whole_pages

SO_PASSRIGHTS = 83
HELLO = {"v": 4, "arena_bytes": 10000, "pid": 7}


def open_fds() -> set[tuple[str, str]]:
    """Each with what it is of: another one that has its number is another one."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


async def none_stays(before: set[tuple[str, str]]) -> None:
    """What tests before this one have left behind may be closed meanwhile."""
    try:
        await eventually(lambda: open_fds() <= before, "no descriptor stays behind", 30.0)  # gRPC closes at leisure
    except AssertionError:
        raise AssertionError(f"these stay behind: {sorted(open_fds() - before)}") from None


async def test_attach__gives_sealed_memory_and_a_ticket(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon, 10000)
    reply, fds = trainer.answer.reply, trainer.answer.fds
    assert reply["v"] == 4 and reply["version"] == "1.2.3"
    assert len(reply["ticket"]) == 32 and int(reply["ticket"], 16) >= 0
    assert reply["arena_bytes"] == 3 * mmap.PAGESIZE
    # Arena, completion bell, then of the lane: submissions, completions, submission bell.
    memfds, (complete_fd, submit_fd) = [fds[2], fds[3], fds[0]], (fds[1], fds[4])
    sizes = [os.fstat(fd).st_size for fd in memfds]
    assert sizes == [reply["submission_bytes"], reply["completion_bytes"], reply["arena_bytes"]]
    size_seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert [fcntl.fcntl(fd, fcntl.F_GET_SEALS) & size_seals for fd in memfds] == [size_seals] * 3
    access = [fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE for fd in memfds]
    assert access == [os.O_RDWR, os.O_RDONLY, os.O_RDWR]
    assert os.readlink(f"/proc/self/fd/{submit_fd}") == "anon_inode:[eventfd]"
    assert stat.S_ISSOCK(os.fstat(complete_fd).st_mode)
    for fd in (complete_fd, submit_fd):
        with pytest.raises(BlockingIOError):
            os.read(fd, 8)


async def test_attach__trainer_cannot_resize_nor_forge(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    for fd in (trainer.answer.fds[at] for at in (0, 2, 3)):
        for size in (0, 1 << 30):
            with pytest.raises(OSError, match=r"Operation not permitted|Invalid argument"):
                os.ftruncate(fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    completions = trainer.answer.fds[3]
    size = trainer.answer.reply["completion_bytes"]
    with pytest.raises(PermissionError):
        mmap.mmap(completions, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(completions, b"x", 0)
    assert os.fstat(completions).st_mode & 0o777 == 0o400
    mmap.mmap(completions, size, mmap.MAP_SHARED, mmap.PROT_READ).close()


REOPENS = """
import os, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
try:
    os.open(f"/proc/self/fd/{sys.argv[1]}", os.O_RDWR)
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
async def test_attach__another_user_cannot_open_completions_for_writing(house: House) -> None:
    """/proc gives a way round a descriptor for reading alone, for those who may open the file."""
    daemon = await house.daemon()
    completions = (await house.trainer(daemon)).answer.fds[3]
    command = [sys.executable, "-c", REOPENS, str(completions)]
    told = await asyncio.to_thread(subprocess.run, command, pass_fds=[completions], capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("refused\n", "")


async def test_attach__both_sides_see_the_same_memory(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    await trainer.join()
    memory = engine(daemon).sessions[0].memory
    arena = mmap.mmap(trainer.answer.fds[0], memory.arena.size)
    arena[:5] = b"hello"
    assert memory.arena.address[:5] == b"hello"
    memory.completions.address[8:12] = b"told"
    completions = mmap.mmap(trainer.answer.fds[3], memory.completions.size, mmap.MAP_SHARED, mmap.PROT_READ)
    assert completions[8:12] == b"told"
    os.eventfd_write(trainer.answer.fds[4], 5)
    assert os.eventfd_read(memory.submit_fd) == 5
    os.write(memory.complete_fd, b"6")
    assert os.read(trainer.answer.fds[1], 9) == b"6"
    arena.close()
    completions.close()


async def test_attach__bell_takes_nothing_from_the_trainer(house: House) -> None:
    """Neither bytes nor descriptors: what lay in our end would be dropped when that is closed, and this can block."""
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    with socket.socket(fileno=os.dup(trainer.answer.fds[1])) as bell:
        for flags in (0, socket.MSG_OOB):
            with pytest.raises(BrokenPipeError):
                socket.send_fds(bell, [b"x"], [bell.fileno()], flags | socket.MSG_NOSIGNAL)


async def test_attach__bell_that_is_not_heard_is_full_soon(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    await trainer.join()
    rung = 0
    with socket.socket(fileno=os.dup(engine(daemon).sessions[0].memory.complete_fd)) as bell:
        with pytest.raises(BlockingIOError):
            while rung < 1000:
                rung += bell.send(b"x", socket.MSG_DONTWAIT)
        assert 1 <= rung <= 64
        assert len(os.read(trainer.answer.fds[1], 64)) == rung
        assert bell.send(b"x", socket.MSG_DONTWAIT) == 1


HELLOS = [
    (b"", {}),
    (b"\xff\xfe", {"error": "INVALID_ARGUMENT"}),
    (b"[1]", {"error": "INVALID_ARGUMENT"}),
    (b"[" * 4000, {"error": "INVALID_ARGUMENT"}),
    (b" " * 4097, {"error": "INVALID_ARGUMENT"}),
    (b'{"v":4}', {"error": "INVALID_ARGUMENT", "names": "arena_bytes = None"}),
    (b'{"v":1,"arena_bytes":1}', {"error": "INVALID_ARGUMENT", "names": "v = 1"}),
    (b'{"v":4,"arena_bytes":0}', {"error": "INVALID_ARGUMENT", "names": "arena_bytes = 0"}),
    (b'{"v":4,"arena_bytes":-5}', {"error": "INVALID_ARGUMENT", "names": "arena_bytes = -5"}),
    (b'{"v":4,"arena_bytes":1.5}', {"error": "INVALID_ARGUMENT", "names": "arena_bytes = 1.5"}),
    (b'{"v":4,"arena_bytes":true}', {"error": "INVALID_ARGUMENT", "names": "arena_bytes = True"}),
    (b'{"v":4,"who":1}', {"error": "INVALID_ARGUMENT", "names": "who = 1: allowed: true"}),
    (b'{"v":4,"arena_bytes":"9"}', {"error": "INVALID_ARGUMENT", "names": "arena_bytes = '9'"}),
    (b'{"v":4,"arena_bytes":%d}' % 2**80, {"error": "RESOURCE_EXHAUSTED", "names": "limits.arena_bytes"}),
]


@pytest.mark.parametrize(("hello", "expected"), HELLOS, ids=range(len(HELLOS)))
async def test_attach__bad_hello_is_refused(house: House, hello: bytes, expected: dict[str, str]) -> None:
    daemon = await house.daemon()
    if not hello:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(daemon.config.attach_socket))
        connection.close()
    else:
        connection, answer = await attach(daemon.config.attach_socket, hello)
        assert answer.reply["error"] == expected["error"] and not answer.fds
        assert expected.get("names", "") in answer.reply["message"]
        assert connection.recv(1) == b""
        connection.close()
    await eventually(lambda: daemon.attach.trainers == 0, "nobody is attached")
    assert not engine(daemon).regions


async def test_attach__silence_is_hung_up_on(house: House) -> None:
    (house.folder / "c.toml").write_text("[limits]\nhello_seconds = 0.2\n")
    daemon = await house.daemon(config=str(house.folder / "c.toml"))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    connection.connect(str(daemon.config.attach_socket))
    assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 1), 5) == b""
    connection.close()


async def test_attach__descriptors_of_the_trainer_are_not_taken(house: House) -> None:
    """Nor, where the kernel can, even sent: to drop the last of a lingering socket holds the whole daemon up."""
    daemon = await house.daemon()
    before = open_fds()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(daemon.config.attach_socket))
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        connection.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
    except OSError:  # before Linux 6.16
        socket.send_fds(connection, [json.dumps(HELLO).encode()], [null] * 20)
    else:
        with pytest.raises(PermissionError):
            socket.send_fds(connection, [json.dumps(HELLO).encode()], [null] * 20)
        connection.send(json.dumps(HELLO).encode())
    await eventually(lambda: daemon.attach.trainers == 1, "attached")
    held = len(engine(daemon).regions)
    assert held == 3
    connection.close()
    os.close(null)
    await none_stays(before)


async def test_attach__unused_ticket_expires(house: House) -> None:
    (house.folder / "c.toml").write_text("[limits]\nticket_seconds = 0.2\n")
    daemon = await house.daemon(config=str(house.folder / "c.toml"))
    trainer = await house.trainer(daemon)
    assert await trainer.line_is_dead()
    await eventually(lambda: daemon.attach.trainers == 0, "forgotten")
    assert not engine(daemon).regions


async def test_attach__used_ticket_does_not_expire(house: House) -> None:
    (house.folder / "c.toml").write_text("[limits]\nticket_seconds = 2.0\n")
    daemon = await house.daemon(config=str(house.folder / "c.toml"))
    trainer = await house.trainer(daemon)
    await trainer.join()
    await asyncio.sleep(2.3)
    assert daemon.attach.trainers == 1 and engine(daemon).sessions


async def test_attach__speaking_twice_ends_it(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    await trainer.join()
    trainer.connection.send(b"again")
    await eventually(lambda: not engine(daemon).sessions, "the session is gone")
    assert await trainer.line_is_dead()


async def test_attach__nothing_stays_behind(house: House) -> None:
    daemon = await house.daemon()
    warm = await house.trainer(daemon)
    warm.hang_up()
    await eventually(lambda: daemon.attach.trainers == 0, "forgotten")
    before = open_fds()
    for _ in range(20):
        trainer = await house.trainer(daemon)
        trainer.hang_up()
        await eventually(lambda: daemon.attach.trainers == 0, "forgotten")
    await none_stays(before)
    assert not engine(daemon).regions


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EMFILE, r"this host's daemon has all the \d+ descriptors open that it may have \(LimitNOFILE="),
        (errno.ENFILE, r"this host has as many files open as it may have"),
        (errno.ENOMEM, r"this host's daemon gets no shared memory: Cannot allocate memory"),
    ],
)
async def test_attach__whose_limit_it_is_that_leaves_no_memory(
    house: House, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    daemon = await house.daemon()

    def fails(name: str, size: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(memory, "create_memfd", fails)
    connection, answer = await attach(daemon.config.attach_socket, HELLO)
    assert answer.reply["error"] == "UNAVAILABLE" and re.match(said, answer.reply["message"]), answer.reply
    connection.close()
    await eventually(lambda: not engine(daemon).regions, "nothing is held")


async def test_attach__budgets_are_kept_and_given_back(house: House) -> None:
    (house.folder / "c.toml").write_text('[limits]\nmemory_bytes_per_uid = "2M"\n')
    daemon = await house.daemon(config=str(house.folder / "c.toml"))
    first = await house.trainer(daemon, 1 << 20)
    connection, answer = await attach(daemon.config.attach_socket, {"v": 4, "arena_bytes": 1 << 20})
    assert answer.reply["error"] == "RESOURCE_EXHAUSTED"
    assert "limits.memory_bytes_per_uid = 2097152" in answer.reply["message"]
    connection.close()
    first.hang_up()
    await eventually(lambda: daemon.attach.trainers == 0, "forgotten")
    await house.trainer(daemon, 1 << 20)


async def test_attach__limit_of_idle_processes(house: House) -> None:
    (house.folder / "c.toml").write_text("[limits]\nattaching = 2\n")
    daemon = await house.daemon(config=str(house.folder / "c.toml"))
    trainers = [await house.trainer(daemon) for _ in range(2)]
    connection, answer = await attach(daemon.config.attach_socket, HELLO)
    assert answer.reply["error"] == "RESOURCE_EXHAUSTED" and "limits.attaching = 2" in answer.reply["message"]
    connection.close()
    await trainers[0].join()
    await house.trainer(daemon)  # one that is in a job does not count


ORPHAN = """
import json, os, socket, sys, time
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(sys.argv[1])
line.send(json.dumps({"v": 4, "arena_bytes": 4096}).encode())
line.recv(4096)
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print("up", flush=True)
time.sleep(60)
"""


async def test_attach__death_is_seen_although_a_child_holds_the_line(house: House) -> None:
    daemon = await house.daemon()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ORPHAN, str(daemon.config.attach_socket)),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 20) == b"up\n"
        assert daemon.attach.trainers == 1
        os.kill(process.pid, signal.SIGKILL)
        took = await eventually(lambda: daemon.attach.trainers == 0, "the dead trainer is forgotten", 5)
        assert took < 1.0
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
async def test_attach__other_users_are_refused(house: House) -> None:
    daemon = await house.daemon()
    os.chmod(house.folder, 0o755)
    os.chmod(daemon.config.runtime_dir, 0o755)
    os.chmod(daemon.config.attach_socket, 0o666)  # the file's mode is one fence, the check another: test the second
    script = (
        "import os,socket,sys;os.setgid(65534);os.setuid(65534);"
        "s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);s.connect(sys.argv[1]);"
        's.send(b\'{"v":4,"arena_bytes":4096}\');print(s.recv(4096).decode())'
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(daemon.config.attach_socket), stdout=subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    reply = json.loads(out)
    assert reply["error"] == "PERMISSION_DENIED" and "uid 65534" in reply["message"]


def test_may_attach__table(house_config: object, folder: Path) -> None:
    from tests.daemon.helpers import config

    rows = [
        (0, 0, {}, True),
        (os.geteuid(), 12345, {}, True),
        (54321, 54321, {}, False),
        (54321, 54321, {"allow_uids": [54321]}, True),
        (54321, 0, {"allow_group": "root"}, True),
        (54321, 54321, {"allow_group": "root"}, False),
    ]
    for uid, gid, options, expected in rows:
        assert may_attach(uid, gid, config(folder, **options)) is expected, (uid, gid, options)


@pytest.fixture
def house_config() -> None:
    return None


async def test_sockets__are_for_owner_and_group_only(house: House) -> None:
    daemon = await house.daemon()
    for path in (daemon.config.socket, daemon.config.attach_socket):
        assert path.stat().st_mode & 0o777 == 0o660, path


def test_parse_hello__rounds_up_to_pages() -> None:
    assert parse_hello(b'{"v":4,"arena_bytes":1,"pid":3,"more":1}', 1 << 20) == mmap.PAGESIZE
    assert parse_hello(b'{"v":4,"arena_bytes":1048576}', 1 << 20) == 1 << 20
    assert [whole_pages(n) for n in (1, 4096, 4097)] == [4096, 4096, 8192]
    with pytest.raises(ResourceExhausted):
        parse_hello(b'{"v":4,"arena_bytes":1048577}', 1 << 20)
    with pytest.raises(InvalidArgument):
        parse_hello(b"null", 1 << 20)
