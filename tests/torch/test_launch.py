# SPDX-License-Identifier: Apache-2.0
"""The plain script of `examples/` under `ultima run` and torchrun: on one host, on two, and after a rank has died."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.lab.cluster import BIN
from tests.lab.cluster import Cluster as LabCluster
from tests.lab.lab import Lab
from tests.torch.ranks import start_ranks
from ultima.admin.calls import get_status
from ultima.demo.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "examples/ddp.py")
TORCHRUN = [str(BIN / "torchrun")]
RUN = [sys.executable, "-m", "ultima.cli", "run"]
pytestmark = pytest.mark.timeout(150)


def quiet(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("ULTIMA")}
    return cleared | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} | dict(environment or {})


def loss_of(output: str) -> float:
    found = re.search(r"^loss ([0-9.]+) after", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])


def run_it(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, env=quiet(environment), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def gloo_loss() -> float:
    """What the script comes to without Ultima: two ranks, hence the same for every way to start them.

    A thread of Gloo's may outlive Python under torch's own group, and abort the process once all is done and said, or
    hold it up for ever. So it is asked for its loss, not for its end.
    """
    ranks = start_ranks("--backend=gloo", 2, [""], {"PYTHONUNBUFFERED": "1"}, module="examples.ddp")
    try:
        assert ranks[0].stdout is not None
        said = ""
        for line in ranks[0].stdout:
            said += line.decode()
            if said.splitlines()[-1].startswith("loss"):
                break
        return loss_of(said)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


# `make test` has it without torch in test_cli_run.py.
@pytest.mark.check
def test_ultima_run__on_one_host_without_a_daemon(gloo_loss: float) -> None:
    output = run_it([*RUN, "--nproc-per-node", "2", "--", sys.executable, SCRIPT])
    assert "rank 0 of 2" in output and "rank 1 of 2" in output
    assert loss_of(output) == pytest.approx(gloo_loss, rel=0.02)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(2) as running:
        yield running


def on_both(lab: Lab, commands: list[list[str]], environments: list[Mapping[str, str]]) -> list[str]:
    """Runs a command on each of two hosts, as two people would; returns what each printed."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    children = [
        host.popen(command, {"OMP_NUM_THREADS": "1", **environment}, **pipes)
        for host, command, environment in zip(lab.hosts, commands, environments, strict=True)
    ]
    outputs = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    return outputs


# `make test` has ranks with torchrun's variables on two daemons in tests/torch/backend, where DDP trains as with
# Gloo, and ranks that a launcher starts on two hosts below.
@pytest.mark.check
@pytest.mark.root
def test_torchrun__on_two_hosts(lab: Lab, gloo_loss: float) -> None:
    flags = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", lab.host(0).address, "--master-port", "29511"]
    with LabCluster(lab) as daemons:
        environments = [{"ULTIMA_SOCKET": str(daemons.socket(index))} for index in (0, 1)]
        commands = [[*TORCHRUN, *flags, "--node-rank", str(index), SCRIPT] for index in (0, 1)]
        first, second = on_both(lab, commands, environments)
    assert "rank 0 of 2" in first and "rank 1 of 2" in second
    assert loss_of(first) == pytest.approx(gloo_loss, rel=0.02)
    found = re.search(r"^(\d+) all-reduces, (\d+) of them complete", first, re.MULTILINE)
    assert found is not None and int(found[1]) == int(found[2]) >= 200


@pytest.mark.root
def test_ultima_run__on_two_hosts_with_numpy(lab: Lab, tmp_path: Path) -> None:
    """As below with a job's secret, and with a script that starts at once."""
    flags = ["--nnodes", "2", "--master", f"{lab.host(0).address}:29513"]
    command = [sys.executable, str(ROOT / "examples/eager_sgd.py"), "--policy", "none", "--slow", "0"]
    refused = lab.host(0).run([*RUN, *flags, "--node-rank", "0", *command], env=quiet())
    assert refused.returncode == 2 and "--job-secret is None; allowed: a file that" in refused.stderr
    file = tmp_path / "job.secret"
    run_it([sys.executable, "-m", "ultima.cli", "ca", "secret", str(file)])
    commands = [[*RUN, *flags, "--job-secret", str(file), "--node-rank", str(index), *command] for index in (0, 1)]
    first, second = on_both(lab, commands, [{}, {}])
    assert f"a private one serves this run on {lab.host(0).address}" in first
    assert f"a private one serves this run on {lab.host(1).address}" in second
    error = re.search(r"^none: 60 steps in [0-9.]+ s, error ([0-9.]+)$", first, re.MULTILINE)
    assert error is not None and float(error[1]) < 0.1
    assert "2.00 of 2 ranks in a step on average" in first


@pytest.mark.check
@pytest.mark.root
def test_ultima_run__on_two_hosts_without_daemons(lab: Lab, gloo_loss: float) -> None:
    """Each host gets a private daemon on its own address, towards host 0."""
    flags = ["--nnodes", "2", "--master", f"{lab.host(0).address}:29512"]
    command = [sys.executable, SCRIPT]
    commands = [[*RUN, *flags, "--insecure", "--node-rank", str(index), *command] for index in (0, 1)]
    first, second = on_both(lab, commands, [{}, {}])
    assert f"a private one serves this run on {lab.host(0).address}" in first
    assert f"a private one serves this run on {lab.host(1).address}" in second
    assert "rank 1 of 2" in second
    assert loss_of(first) == pytest.approx(gloo_loss, rel=0.02)


NAMED = 'file=$1 name=$2; shift 2; mount --bind "$file" /etc/hosts; hostname "$name"; exec "$@"'


@pytest.mark.check
@pytest.mark.root
def test_ultima_run__on_hosts_whose_own_names_lead_nowhere(lab: Lab, tmp_path: Path) -> None:
    """One maps its name to 127.0.1.1, as Debian does; the other has the longest of names, and nobody knows it. Gloo
    listens where the daemons know that the host is, for the collectives that are its.
    """
    script, commands = tmp_path / "reduce.py", []
    script.write_text(
        "import datetime, torch, torch.distributed as dist, ultima.torch\n"
        "dist.init_process_group('ultima', timeout=datetime.timedelta(seconds=40))\n"
        "one = torch.ones(3); dist.all_reduce(one); dist.reduce(one, 1)\n"
        "print(dist.get_rank(), one.tolist()); dist.destroy_process_group()\n"
    )
    for index, name in enumerate(("debian", "n" * 64)):
        file = tmp_path / f"hosts{index}"
        file.write_text("127.0.0.1 localhost\n" + "127.0.1.1 debian\n" * (not index))
        flags = ["--nnodes", "2", "--node-rank", str(index), "--master", f"{lab.host(0).address}:29517", "--insecure"]
        enter = ["unshare", "--mount", "--uts", "sh", "-ec", NAMED, "-", str(file), name]
        commands.append([*enter, *RUN, *flags, "--", sys.executable, str(script)])
    assert "1 [4.0, 4.0, 4.0]" in on_both(lab, commands, [{}, {}])[1]


@pytest.mark.check
@pytest.mark.root
def test_torchrun__on_two_hosts_without_daemons(lab: Lab, gloo_loss: float, tmp_path: Path) -> None:
    """`ultima run` in front of torchrun: each host gets a private daemon, and the two know each other by the secret."""
    file, address = tmp_path / "job.secret", lab.host(0).address
    run_it([sys.executable, "-m", "ultima.cli", "ca", "secret", str(file)])
    outer = ["--nnodes", "2", "--master", f"{address}:29514", "--job-secret", str(file)]
    flags = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", address, "--master-port", "29515"]
    commands = [
        [*RUN, *outer, "--node-rank", str(index), "--", *TORCHRUN, *flags, "--node-rank", str(index), SCRIPT]
        for index in (0, 1)
    ]
    first, second = on_both(lab, commands, [{}, {}])
    assert "rank 0 of 2" in first and "rank 1 of 2" in second
    assert loss_of(first) == pytest.approx(gloo_loss, rel=0.02)


# `make test` has a killed rank that comes back, without torch, in tests/e2e/test_trouble.py, and the rendezvous over a
# store that still holds its earlier life in test_rendezvous.py.
@pytest.mark.check
def test_torchrun__a_killed_rank_is_started_again_beside_the_same_daemons(cluster: Cluster, tmp_path: Path) -> None:
    """It goes on from the checkpoint; the daemons are the same processes, and hold nothing of the first life."""
    path, steps = tmp_path / "state", 800
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", SCRIPT]
    command += ["--steps", str(steps), "--checkpoint", str(path)]
    socket = str(cluster.sockets[0])
    daemons = [child.process.pid for child in cluster._daemons]
    with (tmp_path / "out").open("wb") as out:
        started = subprocess.Popen(command, env=quiet({"ULTIMA_SOCKET": socket}), stdout=out, stderr=out)
    try:
        limit = time.monotonic() + 90
        while not path.exists():
            assert started.poll() is None and time.monotonic() < limit, (tmp_path / "out").read_text()
            time.sleep(0.02)
        found = re.search(r"rank 1 of 2, process (\d+), from step 0", (tmp_path / "out").read_text())
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        started.wait(timeout=100)
    finally:
        for process in (
            [*psutil.Process(started.pid).children(recursive=True), started] if started.poll() is None else ()
        ):
            process.kill()
        started.wait()
    output = (tmp_path / "out").read_text()
    assert started.returncode == 0, output
    starts = [int(step) for step in re.findall(r"rank 1 of 2, process \d+, from step (\d+)", output)]
    assert len(starts) == 2 and 0 < starts[1] < steps, output
    assert loss_of(output) < 0.05
    cluster._check()
    assert [child.process.pid for child in cluster._daemons] == daemons
    limit = time.monotonic() + 20
    while list(get_status(socket).jobs):
        assert time.monotonic() < limit, "the daemon holds a job of ranks that have ended"
        time.sleep(0.05)
