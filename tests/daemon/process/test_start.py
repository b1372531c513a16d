# SPDX-License-Identifier: Apache-2.0
"""Starting and stopping as a process: one line and status 2 when it cannot start, and a clean end when told to."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.daemon.helpers import House, eventually, status
from tests.nursery import DAEMON, nursery_of


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a daemon that should not come up."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = nursery_of(DAEMON).start("tests.daemon.run_fake", flags, os.environ | environment, **pipes)
    said = process.communicate(60)
    return subprocess.CompletedProcess(process.args, process.wait(), *said)


def one_line(result: subprocess.CompletedProcess[str], status: int = 2) -> str:
    """The line with which a daemon says why it does not start: 2 is for what is wrong as it is configured, 1 for what
    may mend itself."""
    assert result.returncode == status, result
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("ultimad: "), result.stderr
    return lines[0]


def test_start__bad_toml(folder: Path) -> None:
    (folder / "c.toml").write_text("port = = 3\n")
    line = one_line(run("--config", str(folder / "c.toml")))
    assert f"{folder / 'c.toml'}: not TOML: Invalid value (at line 1, column 8)" in line


def test_start__wrong_value(folder: Path) -> None:
    (folder / "c.toml").write_text('prot = 3\nlog_level = "x"\n')
    line = one_line(run("--config", str(folder / "c.toml"), "--port", "1"))
    assert "prot: unknown key" in line and "log_level = 'x'" in line


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--nonsense",), "unrecognized arguments: --nonsense"),
        (("--port",), "argument --port: expected one argument"),
        (("--port", "x"), "--port: port = 'x'"),
        (("--log-level", "loud"), "--log-level: log_level = 'loud'"),
        (("--bind", "192.0.2.1"), "peers must be authenticated: set tls.certificate"),
        (("--bind", "0.0.0.0"), "--insecure does without"),
        (("--bind", "127.0.0.1"), "--insecure does without"),
        (("--config", "/nonexistent.toml"), "/nonexistent.toml: No such file"),
    ],
)
def test_start__wrong_flags(folder: Path, flags: tuple[str, ...], names: str) -> None:
    assert names in one_line(run("--runtime-dir", str(folder / "d"), *flags))


def test_start__unwritable_directory(folder: Path) -> None:
    (folder / "file").write_text("")
    for path in (folder / "file", folder / "file" / "below", Path("/proc/nowhere"), Path("/proc/self")):
        line = one_line(run("--runtime-dir", str(path), "--port", "0"))
        assert f"runtime_dir = '{path}': cannot be used: " in line
    if os.geteuid() != 0:
        (folder / "mine").mkdir(mode=0o500)
        line = one_line(run("--runtime-dir", str(folder / "mine"), "--port", "0"))
        assert "Permission denied" in line


def test_start__path_too_long_for_a_socket(folder: Path) -> None:
    line = one_line(run("--runtime-dir", str(folder / ("x" * 100)), "--port", "0"))
    assert "allowed: 107" in line


async def test_start__second_daemon_on_the_same_directory(house: House) -> None:
    child = await house.child("d", 0)
    line = one_line(await asyncio.to_thread(run, "--runtime-dir", str(house.folder / "d"), "--port", "0"), 1)
    assert f"in use by another ultimad (pid {child.process.pid})" in line
    trainer = await house.trainer(child)  # and the first one did not mind
    await trainer.join()


def test_start__port_in_use(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ("--bind", "127.0.0.1", "--insecure", "--port", str(port))
        line = one_line(run("--runtime-dir", str(folder / "d"), *flags), 1)
    assert f"bind = '127.0.0.1', port = {port}: Address already in use" in line


def test_start__address_of_another_machine(folder: Path) -> None:
    line = one_line(run("--runtime-dir", str(folder / "d"), "--bind", "192.0.2.1", "--port", "0", "--insecure"), 1)
    assert "bind = '192.0.2.1', port = 0: Cannot assign requested address" in line


async def test_start__stale_sockets_are_cleared_away(house: House) -> None:
    child = await house.child("d", 0)
    await child.kill()
    left = [house.folder / "d" / name for name in ("ultimad.sock", "attach.sock")]
    assert all(path.is_socket() for path in left)
    again = await house.child("d", 0)
    await (await house.trainer(again)).join()


def test_start__what_is_in_the_way_is_not_removed(folder: Path) -> None:
    (folder / "d").mkdir()
    for name in ("ultimad.sock", "attach.sock"):
        path = folder / "d" / name
        path.write_text("precious")
        assert f"{path}: in the way, and not a socket" in one_line(
            run("--runtime-dir", str(folder / "d"), "--port", "0")
        )
        assert path.read_text() == "precious"
        path.unlink()


def test_start__socket_of_somebody_else(folder: Path) -> None:
    (folder / "d").mkdir()
    for name, kind in (("ultimad.sock", socket.SOCK_STREAM), ("attach.sock", socket.SOCK_SEQPACKET)):
        path = folder / "d" / name
        with socket.socket(socket.AF_UNIX, kind) as other:
            other.bind(str(path))
            other.listen()
            line = one_line(run("--runtime-dir", str(folder / "d"), "--port", "0"), 1)
            assert f"{path}: another process listens there" in line
            assert path.is_socket()
        path.unlink()


def test_start__silences_grpc_before_it_is_imported() -> None:
    """It looks at the environment then and never again; a peer that asks who answers here would leave two lines."""
    look = """
import os, sys
class Look:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print("verbosity", os.environ.get("GRPC_VERBOSITY"), flush=True)
sys.meta_path.insert(0, Look())
import ultima.daemon.process.main
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "verbosity NONE\n", done


def test_version_and_help() -> None:
    """As it is installed."""

    def shipped(flag: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "ultimad"), flag]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    result = shipped("--version")
    assert result.returncode == 0 and re.fullmatch(r"ultimad \S+\n", result.stdout) and not result.stderr
    result = shipped("--help")
    assert result.returncode == 0
    for flag in ("--config", "--runtime-dir", "--bind", "--port", "--insecure", "--log-level"):
        assert flag in result.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stop__ends_with_0_and_leaves_no_sockets(house: House, number: int) -> None:
    child = await house.child("d", 0)
    trainer = await house.trainer(child)
    await trainer.join()
    assert await child.kill(number) == 0
    assert json.loads(trainer.connection.recv(4096)) == {"back_within_ms": 10_000}, (
        "it says for how long to wait for it"
    )
    assert await trainer.line_is_dead()
    assert sorted(path.name for path in (house.folder / "d").iterdir()) == ["ultimad.lock"]


async def test_reload__takes_over_log_level_and_limits_and_names_the_rest(house: House) -> None:
    file = house.folder / "c.toml"
    file.write_text("[engine]\nrate_bytes_per_s = 10000000\n[limits]\narena_bytes = 131072\n")
    child = await house.child("d", 0, "--config", str(file))
    assert "sends at most 10000000 bytes/s" in child.log.read_text()
    trainer = await house.trainer(child)
    await trainer.join()
    engine = '[engine]\nrate_bytes_per_s = "1M"\nlanes = 1\n'
    file.write_text(f'log_level = "debug"\nallow_uids = [4242]\n{engine}[limits]\narena_bytes = 4096\n')
    child.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "reloaded changed=" in child.log.read_text(), "it reloads")
    said = child.log.read_text()
    assert "log_level=debug engine.rate_bytes_per_s=1048576 limits.arena_bytes=4096" in said
    await eventually(lambda: "sends at most 1048576 bytes/s" in child.log.read_text(), "the engine is told")
    assert "reload incomplete keys=allow_uids,engine.lanes: these change with a restart alone" in said
    found = await status(child)
    assert found.limits["engine.rate_bytes_per_s"] == 1048576
    assert found.limits["limits.arena_bytes"] == 4096 and len(found.jobs) == 1, "and nobody was thrown out"


async def test_reload__of_a_wrong_file_changes_nothing(house: House) -> None:
    file = house.folder / "c.toml"
    file.write_text("[limits]\narena_bytes = 131072\n")
    child = await house.child("d", 0, "--config", str(file))
    file.write_text("[engine]\nrate_bytes_per_s = 80\n[limits]\narena_bytes = 1\njobs = 3\n")
    for _ in range(2):
        child.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "reload refused reason=" in child.log.read_text(), "it says why")
    assert f"{file}: limits.arena_bytes = 1: " in child.log.read_text()
    assert "engine.rate_bytes_per_s = 80: allowed: 0, or 65536 or more" in child.log.read_text()
    assert (await status(child)).limits["engine.rate_bytes_per_s"] == 0
    assert (await status(child)).limits["limits.arena_bytes"] == 131072
    assert await child.kill(signal.SIGTERM) == 0


async def test_stop__waits_for_open_ops_but_not_for_ever(house: House) -> None:
    (house.folder / "c.toml").write_text("[limits]\ndrain_seconds = 1.0\n")
    child = await house.child("d", 0, "--config", str(house.folder / "c.toml"), ULTIMA_FAKE_OPEN_NS=str(10**12))
    began = time.monotonic()
    assert await child.kill(signal.SIGTERM) == 0
    assert 0.9 < time.monotonic() - began < 20


async def test_stop__second_signal_does_not_wait(house: House) -> None:
    (house.folder / "c.toml").write_text("[limits]\ndrain_seconds = 600\n")
    child = await house.child("d", 0, "--config", str(house.folder / "c.toml"), ULTIMA_FAKE_OPEN_NS=str(10**12))
    child.process.send_signal(signal.SIGTERM)
    await eventually(lambda: "draining" in child.log.read_text(), "it drains")
    await asyncio.sleep(0.5)
    assert child.process.poll() is None
    assert await child.kill(signal.SIGTERM) == 0


async def notifications(listener: socket.socket, wanted: str, seconds: float = 20) -> list[str]:
    """All that systemd would hear, up to and with `wanted`."""
    loop, heard = asyncio.get_running_loop(), [""]
    while heard[-1] != wanted:
        heard.append((await asyncio.wait_for(loop.sock_recv(listener, 4096), seconds)).decode())
    return heard[1:]


@pytest.mark.parametrize("abstract", [False, True])
async def test_systemd__ready_watchdog_stopping(house: House, abstract: bool) -> None:
    name = f"{house.folder}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        listener.bind("\0" + name if abstract else name)
        child = await house.child("d", 0, NOTIFY_SOCKET=("@" + name) if abstract else name, WATCHDOG_USEC="400000")
        heard = await notifications(listener, "READY=1")
        assert set(heard) <= {"READY=1", "WATCHDOG=1"}
        for _ in range(3):
            await notifications(listener, "WATCHDOG=1")
        await child.kill(signal.SIGTERM)
        await notifications(listener, "STOPPING=1")


async def test_systemd__no_food_without_progress(house: House) -> None:
    name = f"{house.folder}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        listener.bind(name)
        # An op is open, its deadline was 10 s before the start: the engine's thread hangs.
        child = await house.child(
            "d", 0, NOTIFY_SOCKET=name, WATCHDOG_USEC="200000", ULTIMA_FAKE_OPEN_NS=str(-(10**10))
        )
        await notifications(listener, "READY=1")
        with pytest.raises(TimeoutError):
            await notifications(listener, "WATCHDOG=1", 1.0)
        await child.kill()


async def test_idle__costs_little(house: House) -> None:
    """A ceiling, not a benchmark: an idle daemon must not poll. One that does would in each of three tries; what else
    the machine has to do, such as the daemon's own start, is over in one of them.
    """
    child = await house.child("d", 0, anew=True)
    fields = Path(f"/proc/{child.process.pid}/stat")

    def cpu_seconds() -> float:
        parts = fields.read_text().rsplit(") ", 1)[1].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    for _ in range(3):
        await asyncio.sleep(0.5)
        before = cpu_seconds()
        await asyncio.sleep(2.5)
        used = cpu_seconds() - before
        if used <= 0.05:
            break
    status = Path(f"/proc/{child.process.pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])  # type: ignore[index]
    print(json.dumps({"cpu_share": used / 2.5, "rss_mb": resident / 1024}))
    assert used <= 0.05, "2 % of a core, where 0.5 % is the goal"
    assert resident < 80 * 1024
