# SPDX-License-Identifier: Apache-2.0
"""`ultima run`: what the ranks are told, how the run ends, and that it leaves nothing behind however it ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from tests.nursery import COMMANDS, Process, nursery_of
from ultima.admin.calls import get_status
from ultima.base.errors import InvalidArgument
from ultima.cli import main, run
from ultima.demo.cluster import Cluster
from ultima.launch import launcher, private_daemon, signals
from ultima.launch.private_daemon import PrivateDaemon
from ultima.launch.processes import free_port
from ultima.launch.run_plan import Plan, rank_environment
from ultima.launch.signals import Signals

runner = CliRunner()
# Shell that says it is up and then waits, ready for a trap: the shortest rank that there is.
WAITING = 'echo "up $RANK"; while :; do sleep 0.05; done'
# The same in one process that stays, for tests that look at the processes.
STAYING = 'echo "up $RANK"; exec sleep 600'
AVERAGES = """
import os, numpy, ultima
with ultima.connect() as job:
    data = numpy.full(1000, job.rank + 1, "float32")
    job.allreduce(data, "sum")
    said = f"{job.rank} {job.world_size} {data.min()} {data.max()} {os.environ['ULTIMA_SOCKET']}\\n"
    os.write(1, said.encode())  # in one piece, for two ranks write to one pipe
"""


def without_daemon() -> dict[str, str]:
    """This environment, but for what would name a daemon or a rank."""
    gone = ("ULTIMA", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "GROUP_RANK")
    return {name: value for name, value in os.environ.items() if not name.startswith(gone)}


def ultima(*arguments: str, environment: Mapping[str, str] | None = None) -> Process:
    """The command, in a process of its own that has its imports done; its daemon and its ranks begin with nothing."""
    variables = without_daemon() | dict(environment or {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return nursery_of(COMMANDS).start("ultima.cli.__main__", arguments, variables, **pipes)


def run_it(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    started = ultima("run", *arguments, environment=environment)
    try:
        output, errors = started.communicate(timeout=90)
    finally:
        started.kill()
    assert started.returncode is not None
    return subprocess.CompletedProcess(arguments, started.returncode, output, errors)


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, str]]:
    """Variables that name a daemon on this host, for runs that need not start one."""
    with Cluster() as cluster:
        cluster.start_daemons(1)
        yield {"ULTIMA_SOCKET": str(cluster.sockets[0])}
        cluster._check()  # they have left it running


@contextmanager
def running(
    ranks: int,
    script: str,
    environment: Mapping[str, str] | None = None,
    up: str = "up",
    options: Sequence[str] = (),
) -> Iterator[tuple[Process, list[psutil.Process]]]:
    """`ultima run` of a shell script whose ranks have all said |up|, and every process that it has started by then."""
    command = ("run", "--nproc-per-node", str(ranks), *options, "--", "bash", "-c", script)
    started = ultima(*command, environment=environment)
    family: list[psutil.Process] = []
    try:
        assert started.stdout is not None
        for _ in range(ranks):
            line = started.stdout.readline().decode()
            assert line.startswith("up"), f"{line!r}: {started.communicate(timeout=30)[1]}"
        family = psutil.Process(started.pid).children(recursive=True)
        yield started, family
    finally:
        for process in (started, *family):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        started.communicate(timeout=30)


def assert_gone(family: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []


def test_environment__is_that_of_torchrun() -> None:
    plan = Plan(["x"], per_node=3, nodes=2, node_rank=1, master="10.0.0.1", port=1234)
    found = rank_environment(plan, 2, "/s/ultimad.sock", {"HOME": "/home/me", "RANK": "99", "OMP_NUM_THREADS": "7"})
    assert found == {
        "RANK": "5", "LOCAL_RANK": "2", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234", "ULTIMA_SOCKET": "/s/ultimad.sock",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "HOME": "/home/me", "OMP_NUM_THREADS": "7",
        "TORCH_CPP_LOG_LEVEL": "FATAL",  # a wrong --master is one sentence, not twenty frames a try
    }  # fmt: skip
    assert rank_environment(plan, 0, "/s", {})["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in rank_environment(Plan(["x"], nodes=2), 0, "/s", {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node-0", ("node-0", 29500)),
        ("10.0.0.1:77", ("10.0.0.1", 77)),
        ("fd75::1", ("fd75::1", 29500)),
        ("[fd75::1]", ("fd75::1", 29500)),
        ("[fd75::1]:77", ("fd75::1", 77)),
    ],
)
def test_master__host_and_port(text: str, found: tuple[str, int]) -> None:
    assert run._master(text) == found


@pytest.mark.parametrize("text", ["", ":77", "a b", "host:", "host:0", "host:65536", "host:x", "[host", "[]:7"])
def test_master__wrong_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--master"):
        run._master(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nnodes", "2", "x"], "--master is None; allowed: HOST"),
        (["--nnodes", "2", "--node-rank", "2", "--master", "h", "x"], "--node-rank is 2; allowed: 0 to 1"),
        (["--nproc-per-node", "0", "x"], "--nproc-per-node"),
        ([], "Missing argument"),
    ],
)
def test_usage__is_told(arguments: list[str], said: str) -> None:
    result = runner.invoke(main.build(), ["run", *arguments])
    assert result.exit_code == 2
    assert said in result.output + result.stderr


def test_run__ranks_average_through_a_private_daemon_that_goes_with_them() -> None:
    """The program's own flags, some of them ours too, are left to it; with and without the two dashes."""
    done = run_it("--nproc-per-node", "2", "--", sys.executable, "-c", AVERAGES, "--help", "--nnodes", "7")
    assert done.returncode == 0, done.stderr
    rows = sorted(line.split() for line in done.stdout.splitlines())
    assert [row[:4] for row in rows] == [["0", "2", "3.0", "3.0"], ["1", "2", "3.0", "3.0"]]
    assert rows[0][4] == rows[1][4] and not Path(rows[0][4]).parent.exists()
    assert done.stderr == "ultima: no daemon runs on this host: a private one serves this run\n"


def test_run__takes_the_daemon_that_is_there(served: dict[str, str]) -> None:
    done = run_it("--nproc-per-node", "2", sys.executable, "-c", AVERAGES, environment=served)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and done.stdout.count(f"3.0 3.0 {served['ULTIMA_SOCKET']}\n") == 2


def test_run__a_daemon_that_was_named_must_be_there(tmp_path: Path) -> None:
    done = run_it("true", environment={"ULTIMA_SOCKET": str(tmp_path / "none.sock")})
    assert done.returncode == 3
    assert done.stderr.startswith(f"ultima: no daemon answers on {tmp_path}/none.sock, which ULTIMA_SOCKET names")


def test_run__a_daemon_that_cannot_start_ends_the_run() -> None:
    done = run_it("true", environment={"ULTIMAD_LIMITS_JOBS": "many"})
    assert done.returncode == 1
    assert "many" in done.stderr, "the daemon's own word"
    assert done.stderr.endswith("ultima: the private daemon ended with status 2; see above\n")


def test_run__a_program_that_is_not_there_is_named(served: dict[str, str]) -> None:
    done = run_it("--nproc-per-node", "2", "/no/such/program", environment=served)
    assert done.returncode == 1
    assert "ultima: '/no/such/program' cannot be started: No such file or directory" in done.stderr


@pytest.mark.parametrize("tmpdir", [None, "/no/such/folder"])
def test_run__no_folder_can_be_made_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmpdir: str | None) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    if tmpdir:
        monkeypatch.setenv("TMPDIR", tmpdir)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/no/such/folder", "/proc"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    done = runner.invoke(main.build(), ["run", "true"], env=dict.fromkeys(("ULTIMA_SOCKET", "RANK")))
    told = f"TMPDIR={tmpdir!r}" if tmpdir else "TMPDIR is not set"
    assert done.exit_code == 1 and "Traceback" not in done.stderr
    assert re.fullmatch(
        rf"ultima: no folder for the run's own files: .*; {told}; allowed: a folder in which .*\n", done.stderr
    ), done.stderr


@pytest.mark.parametrize(("ending", "status"), [("exit 7", 7), ("kill -KILL $$", 128 + 9)])
def test_run__the_first_failure_ends_the_others_and_is_passed_on(
    served: dict[str, str], tmp_path: Path, ending: str, status: int
) -> None:
    """Rank 1 fails once the two others have said who they are."""
    there = f"while [ ! -e {tmp_path}/0 ] || [ ! -e {tmp_path}/2 ]; do sleep 0.05; done"
    script = f'if [ $RANK = 1 ]; then {there}; {ending}; fi; echo "pid $$"; touch {tmp_path}/$RANK; {WAITING}'
    done = run_it("--nproc-per-node", "3", "bash", "-c", script, environment=served)
    assert done.returncode == status
    assert "local rank 1 ended" in done.stderr
    ranks = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("pid")]
    assert len(ranks) == 2 and not any(psutil.pid_exists(pid) for pid in ranks)


@pytest.mark.parametrize(
    "how", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.check), signal.SIGKILL]
)
def test_run__leaves_no_process_behind(how: signal.Signals) -> None:
    """Two ranks and a daemon; a SIGKILL cannot be caught, so there the kernel sees to them."""
    with running(2, STAYING) as (started, family):
        assert len(family) >= 3
        started.send_signal(how)
        _, errors = started.communicate(timeout=30)
        assert started.returncode == (-9 if how == signal.SIGKILL else 128 + how)
        assert "Traceback" not in errors
        assert_gone(family)


def test_run__a_rank_that_will_not_end_is_made_to_with_all_that_it_started() -> None:
    """It ignores all that can be ignored, and so does its child."""
    script = f"trap '' INT TERM HUP; ( {STAYING} ) & wait"
    with running(2, script) as (started, family):
        assert sum(process.name() in ("bash", "sleep") for process in family) == 4
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=30)
        assert started.returncode == 130
        assert_gone(family)


def test_grace__keeps_a_ctrl_c_below_two_seconds() -> None:
    """The longest that ranks and daemon may take together, one after the other."""
    assert signals.INTERRUPT_GRACE_S + 3 * private_daemon.DAEMON_STOP_S < 2


def test_run__a_rank_that_is_told_to_end_may_finish_its_work(served: dict[str, str], tmp_path: Path) -> None:
    script = f"trap 'sleep 1.2; echo saved > {tmp_path}/$RANK; exit 0' TERM; {WAITING}"
    with running(2, script, served) as (started, _):
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=30)
        assert started.returncode == 143
    assert [(tmp_path / name).read_text() for name in "01"] == ["saved\n", "saved\n"]


def test_run__signals_of_the_user_are_passed_on_and_end_nothing(served: dict[str, str]) -> None:
    script = f"trap 'echo got one; exit 5' USR1; {WAITING}"
    with running(1, script, served) as (started, _):
        started.send_signal(signal.SIGUSR1)
        output, _ = started.communicate(timeout=30)
        assert started.returncode == 5
        assert output == "got one\n"


def test_run__a_private_daemon_that_dies_ends_the_run() -> None:
    with running(1, WAITING) as (started, family):
        (daemon,) = (process for process in family if "ultima.daemon.process.main" in " ".join(process.cmdline()))
        daemon.kill()
        _, errors = started.communicate(timeout=30)
        assert started.returncode == 1
        assert "the private daemon ended with status -9" in errors
        assert_gone(family)


def test_signals__interrupt_nothing_and_come_in_order() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD)}
    with Signals() as waiting:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGUSR1)
        found = [waiting.next(5), waiting.next(5), waiting.next(0)]
        child = subprocess.Popen(["true"])
        started = time.monotonic()
        woken = waiting.next(60)
        assert time.monotonic() - started < 50, "the end of a child wakes it"
        child.wait()
    assert found == [signal.SIGINT, signal.SIGUSR1, None] and woken is None
    after: dict[Any, Any] = {number: signal.getsignal(number) for number in before}
    assert after == before


def test_secret__is_in_no_file_and_in_no_environment() -> None:
    """A run that is killed clears nothing away, so there is nothing to clear."""
    secret = "5e" * 32
    plan = Plan(["true"], nodes=2, node_rank=0, master="127.0.0.1")
    environment = {**without_daemon(), "ULTIMA_JOB_SECRET": secret, "ULTIMA_PORT": str(free_port())}
    with Signals() as waiting, PrivateDaemon(plan, environment, waiting) as daemon:
        assert get_status(daemon.socket).security.mode == "job secret"
        folder, process = Path(daemon.socket).parent, daemon._process
        assert process is not None
        held = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        shown = [Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
    assert held and not [text for text in held + shown if secret.encode() in text or bytes.fromhex(secret) in text]


def test_interrupt__while_the_daemon_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing was started yet but the daemon, and that is gone afterwards."""
    mute = tmp_path / "python"
    mute.write_text("#!/bin/sh\nexec sleep 60\n")
    mute.chmod(0o755)
    monkeypatch.setattr(private_daemon.sys, "executable", str(mute))
    monkeypatch.setattr(launcher, "DEFAULT_SOCKET", str(tmp_path / "none.sock"))

    def interrupted(path: Path) -> bool:
        if path.parent != tmp_path:
            signal.raise_signal(signal.SIGINT)
        return False

    for module in (launcher, private_daemon):
        monkeypatch.setattr(module, "answers", interrupted)
    assert launcher.launch(Plan(["touch", str(tmp_path / "ran")]), without_daemon(), print) == 130
    assert not (tmp_path / "ran").exists()
    assert not [
        each for each in psutil.process_iter(["ppid", "name"]) if each.info == {"ppid": os.getpid(), "name": "sleep"}
    ]
