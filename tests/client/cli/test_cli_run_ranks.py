# SPDX-License-Identifier: Apache-2.0
"""`ultima run`: ranks that are started again, their files and prefixes, the job's name, and standard input for one."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.client.cli.test_cli_run import WAITING, run_it, running, without_daemon
from ultima.cli import main
from ultima.launch.launcher import Variables
from ultima.launch.run_plan import Plan, rank_environment

runner = CliRunner()
# Says which rank it is and in which life. In the lives before the one that $1 names, rank 1 fails, after rank 0 has
# spoken.
LIVES = """
said="life $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS"
echo "rank $RANK $said" >> $0/said
[ $TORCHELASTIC_RESTART_COUNT -lt $1 ] || exit 0
[ $RANK = 1 ] || sleep 600
for look in $(seq 600); do ! grep -q "rank 0 $said" $0/said || exit 7; sleep .05; done
"""
# Rank 1 dies after an op of both. Rank 0 goes on without it, until both are in the sum again.
ALONE = """
import os, time, numpy, ultima
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with ultima.connect(deadline="2s") as job:
    seen = []
    for _ in range(3000):
        time.sleep(0.01)
        data = numpy.full(1000, job.rank + 1, "float32")
        job.allreduce(data, "sum", mode="best_effort")
        assert data.min() == data.max()
        seen += [] if seen[-1:] == [data[0]] else [float(data[0])]
        if job.rank == 1 and life == 0 and seen[-1] == 3:
            os._exit(9)
        if seen[-1] == 3 and (life == 1 or 1.0 in seen):
            break
    os.write(1, f"{job.name} {job.rank} {seen[0 if job.rank == 0 else -1:]}\\n".encode())
"""


def test_variables__a_restart_together_has_a_port_of_its_own_and_one_alone_keeps_it() -> None:
    def ports(plan: Plan) -> list[str]:
        found = Variables(plan, "/s", {})
        return [found.of(local, restart)["MASTER_PORT"] for restart in (0, 1) for local in (0, 1)]

    together, alone = ports(Plan(["x"], 2, port=0)), ports(Plan(["x"], 2, port=0, alone=True))
    assert together[0] == together[1] != together[2] == together[3]
    assert len(set(alone)) == 1
    assert set(ports(Plan(["x"], 2, nodes=2, port=77))) == {"77"}


def test_variables__name_the_job_and_the_restart() -> None:
    found = rank_environment(Plan(["x"], max_restarts=3, name="bert"), 0, "/s", {"ULTIMA_JOB": "old"}, restart=2)
    assert [found[name] for name in ("ULTIMA_JOB", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")] == [
        "bert",
        "2",
        "3",
    ]
    assert "ULTIMA_JOB" not in rank_environment(Plan(["x"]), 0, "/s", {})


def test_restarts__all_ranks_of_the_host_begin_again(tmp_path: Path) -> None:
    done = run_it("--nproc-per-node", "2", "--max-restarts", "3", "bash", "-c", LIVES, str(tmp_path), "1")
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "said").read_text().splitlines()) == [
        "rank 0 life 0 of 3", "rank 0 life 1 of 3", "rank 1 life 0 of 3", "rank 1 life 1 of 3",
    ]  # fmt: skip
    assert "ultima: local rank 1 ended with status 7; starting all ranks again, restart 1 of 3\n" in done.stderr


@pytest.mark.check
def test_restarts__when_they_are_spent_the_run_fails(tmp_path: Path) -> None:
    done = run_it("--nproc-per-node", "2", "--max-restarts", "2", "bash", "-c", LIVES, str(tmp_path), "9")
    assert done.returncode == 7
    assert (tmp_path / "said").read_text().count("rank 1") == 3
    assert "local rank 1 ended with status 7 after 2 of 2 restarts; stopping the others\n" in done.stderr


@pytest.mark.check
def test_restarts__one_rank_comes_back_into_its_job() -> None:
    """The sums say who was in them: both, rank 0 alone, and both again."""
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--restart", "one", "--name", "pair")
    done = run_it(*options, sys.executable, "-c", ALONE)
    assert done.returncode == 0, done.stderr
    assert "local rank 1 ended with status 9; starting it again, restart 1 of 1\n" in done.stderr
    assert sorted(done.stdout.splitlines()) == ["pair 0 [3.0, 1.0, 3.0]", "pair 1 [3.0]"]


@pytest.mark.check
def test_restarts__not_after_the_run_was_told_to_end(tmp_path: Path) -> None:
    script = f"trap 'echo $TORCHELASTIC_RESTART_COUNT >> {tmp_path}/ended; exit 1' TERM; {WAITING}"
    with running(2, script, options=("--max-restarts", "5")) as (started, _):
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=30)
        assert started.returncode == 143 and "again" not in errors
    assert (tmp_path / "ended").read_text() == "0\n0\n"


def test_streams__a_file_for_each_and_the_pipe_gets_the_same_bytes(tmp_path: Path) -> None:
    script = 'echo "out $RANK"; echo "error $RANK" >&2; printf "%s" "$PYTHONUNBUFFERED"'
    done = run_it("--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"), "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert found == {f"rank{rank}.{name}.log": f"{said} {rank}\n" + ("1" if name == "out" else "")
                     for rank in (0, 1) for name, said in (("out", "out"), ("err", "error"))}  # fmt: skip
    assert sorted(done.stdout) == sorted("out 0\n1out 1\n1") and "[rank" not in done.stdout


@pytest.mark.check
@pytest.mark.parametrize(("option", "shown"), [("--prefix", "[rank 0] up 0\r\n[rank 0] "), ("--no-prefix", "up 0\r\n")])
def test_streams__on_a_terminal(option: str, shown: str) -> None:
    """And the terminal is the standard input of rank 0, which answers what it is given."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ultima.cli", "run", option, "--stdin", "0", "--", "bash", "-c",
               'echo "up $RANK"; read x; echo "got $x"']  # fmt: skip
    started = subprocess.Popen(command, env=without_daemon(), stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    found = b""
    try:
        while b"up 0\r\n" not in found:
            found += os.read(ours, 1000)
        os.write(ours, b"word\n")
        while b"got word\r\n" not in found:
            found += os.read(ours, 1000)
        assert started.wait(30) == 0
    finally:
        started.kill()
        started.communicate()
        os.close(ours)
    assert found.decode().replace("word\r\n", "", 1).startswith(shown)


@pytest.mark.check
def test_stdin__a_pipe_is_read_by_one_rank() -> None:
    command = [sys.executable, "-m", "ultima.cli", "run", "--nproc-per-node", "2", "--stdin", "1", "--", "bash", "-c"]
    done = subprocess.run(
        [*command, 'echo "$RANK: $(cat)"'], env=without_daemon(), input="a\nb\n", capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == ["0: ", "1: a", "b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stdin", "2", "--nproc-per-node", "2"], "--stdin is 2; allowed: a rank of this host, 0 to 1"),
        (
            ["--stdin", "0", "--nnodes", "2", "--node-rank", "1", "--master", "h"],
            "--stdin is 0; allowed: 1, the rank of",
        ),
        (["--name", ""], "--name is ''; allowed: 1 to"),
        (["--log-dir", "/proc/none"], "--log-dir is '/proc/none'; allowed: a folder in which"),
        (["--max-restarts", "-1"], "--max-restarts"),
        (["--restart", "some"], "--restart"),
        (["--max-restarts", "1", "--nnodes", "2", "--master", "h"], "--max-restarts is 1; allowed: 0 with --nnodes 2"),
    ],
)
def test_usage__is_told(arguments: list[str], said: str) -> None:
    result = runner.invoke(main.build(), ["run", *arguments, "true"])
    assert result.exit_code == 2
    assert said in result.output + result.stderr
