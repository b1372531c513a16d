# SPDX-License-Identifier: Apache-2.0
"""`ultima run --elastic`: what the rank of a host that comes and goes is told, and how it comes back and leaves."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.client.cli.test_cli_run import WAITING, run_it, running
from ultima.base.errors import InvalidArgument
from ultima.cli import main
from ultima.launch.private_daemon import PrivateDaemon
from ultima.launch.processes import free_port
from ultima.launch.run_plan import Plan, rank_environment
from ultima.launch.signals import Signals

runner = CliRunner()
VARIABLES = "ULTIMA_WORLD ULTIMA_LEAST ULTIMA_MOST ULTIMA_MEET ULTIMA_JOB LOCAL_RANK LOCAL_WORLD_SIZE".split()


def test_environment__says_where_hosts_meet_and_no_rank() -> None:
    plan = Plan(["x"], least=2, most=8, meet="10.0.0.1:29520")
    stale = {"RANK": "3", "MASTER_ADDR": "h", "ULTIMA_RENDEZVOUS": "h:1", "ULTIMA_RANK_ADDRESSES": "a:1"}
    found = rank_environment(plan, 0, "/s", stale, restart=1)
    told = [found[name] for name in VARIABLES]
    assert told == ["elastic", "2", "8", "10.0.0.1:29520", "elastic-10.0.0.1:29520", "0", "1"]
    assert not {"WORLD_SIZE", "GROUP_RANK", "MASTER_PORT", *stale} & set(found)
    assert found["TORCHELASTIC_RESTART_COUNT"] == "1"
    several = Plan(["x"], per_node=4, least=2, most=8, meet="10.0.0.1:29520")
    found = rank_environment(several, 3, "/s", {})
    assert [found[f"{name}LOCAL_{what}"] for name in ("", "ULTIMA_") for what in ("RANK", "WORLD_SIZE")] == [
        "3",
        "4",
    ] * 2
    assert rank_environment(plan, 0, "/s", {"ULTIMA_JOB": "mine"})["ULTIMA_JOB"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--elastic", "8:2", "--meet", "h"], "--elastic is '8:2'; allowed: MIN:MAX, 1 to 64, the first not above"),
        (["--elastic", "0:2", "--meet", "h"], "--elastic is '0:2'"),
        (["--elastic", "2:65", "--meet", "h"], "--elastic is '2:65'"),
        (["--elastic", "x", "--meet", "h"], "--elastic is 'x'"),
        (["--elastic", "2:8"], "--meet is None; allowed: HOST or HOST:PORT of the daemon where"),
        (["--meet", "h"], "--meet is 'h'; allowed: none without --elastic"),
        (["--elastic", "2:8", "--meet", "h:99999"], "--meet is 'h:99999'; allowed: a port from"),
        (["--elastic", "2:8", "--meet", "h,g:0"], "--meet is 'g:0'; allowed: a port from"),
        (["--elastic", "2:8", "--meet", ",".join("h" * 9)], "allowed: up to 8 daemons"),
        (
            ["--elastic", "2:8", "--meet", "h", "--nproc-per-node", "2", "--restart", "one"],
            "--restart is 'one'; allowed",
        ),
        (
            ["--elastic", "2:8", "--meet", "h", "--nnodes", "2", "--master", "m"],
            "--nnodes is 2; allowed: 1 with --elastic",
        ),
        (["--elastic", "2:8", "--meet", "h", "--master", "m"], "--master is 'm'; allowed: none with --elastic"),
    ],
)
def test_usage__is_told(arguments: list[str], said: str) -> None:
    result = runner.invoke(main.build(), ["run", *arguments, "true"])
    assert result.exit_code == 2
    assert said in result.output + result.stderr


def test_private_daemon__listens_where_hosts_meet_if_that_is_here_and_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Signals() as signals:
        port = taken.getsockname()[1]
        for meet, found in (
            (f"127.0.0.1:{port}", "0"),
            ("127.0.0.1:9", "9"),
            (f"127.0.0.1:{port},127.0.0.1:9", "9"),
            ("192.0.2.1:9", "0"),
        ):
            plan = Plan(["x"], least=1, most=2, meet=meet, insecure=True)
            try:
                daemon = PrivateDaemon(plan, {}, signals)
            except InvalidArgument as error:  # no network here to reach another host by
                assert error.field == "--meet" and meet.startswith("192.")
                continue
            with daemon._turn():
                assert daemon._port == found and daemon.bind
            daemon._stop()


def test_run__several_of_one_host_begin_at_the_same_time() -> None:
    """One of them serves the place where hosts meet; which one is not known before."""
    meet = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "ultima", "run", "--elastic", "1:3", "--meet", meet, "--insecure", "--", "true"]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [(each.communicate(timeout=60)[1], each.returncode) for each in started]
    assert [status for _, status in ended] == [0, 0, 0], ended


@pytest.mark.check
def test_run__a_rank_that_dies_is_started_again_and_the_daemon_listens_where_hosts_meet(tmp_path: Path) -> None:
    meet = f"127.0.0.1:{free_port()}"
    script = (
        f'echo "$TORCHELASTIC_RESTART_COUNT $ULTIMA_MEET" >> {tmp_path}/said\n'
        f"(exec 3<>/dev/tcp/{meet.replace(':', '/')}) && echo listens >> {tmp_path}/said\n"
        "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || kill -KILL $$"
    )
    options = ("--elastic", "1:2", "--meet", meet, "--insecure", "--max-restarts", "2")
    done = run_it(*options, "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "said").read_text().splitlines()
    assert lines == [line for life in range(3) for line in (f"{life} {meet}", "listens")]
    assert "local rank 0 ended by SIGKILL; starting it again, restart 2 of 2\n" in done.stderr


@pytest.mark.check
@pytest.mark.parametrize(("ending", "status"), [("exit 0", 0), ("exit 3", 143)])
def test_run__told_to_end_lets_the_rank_leave(tmp_path: Path, ending: str, status: int) -> None:
    """A host that left in good order has not failed. One that did not leave so has."""
    script = f"trap 'sleep 0.5; echo left > {tmp_path}/said; {ending}' TERM; {WAITING}"
    meet = f"127.0.0.1:{free_port()}"
    options = ("--elastic", "1:2", "--meet", meet, "--insecure", "--max-restarts", "5")
    with running(1, script, options=options) as (started, _):
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=30)
    assert started.returncode == status and "again" not in errors
    assert (tmp_path / "said").read_text() == "left\n"
