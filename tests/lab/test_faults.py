# SPDX-License-Identifier: Apache-2.0
"""Twelve faults are planted without telling the tools: each must be named, once, and no cause that is not there.

What counts is what an operator sees: `ultima doctor` on host 0, with the address of the other host, and for a daemon
that does not start, its own last line.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import everywhere
from tests.lab.cluster import BIN, PORT, Cluster
from tests.lab.lab import Host, Lab
from tests.lab.test_trouble import ranks

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(600)]

Found = dict[str, str]
"""What was named, by its name, and in which words."""

SKEWED = """
import sys
from ultima.v1 import limits
limits.WIRE_VERSION += 1
from ultima.daemon.process.main import main
sys.exit(main(sys.argv[1:]))
"""


def doctor(host: Host, socket: str | Path, peer: str) -> Found:
    """All that is not well, as `ultima doctor` on |host| says."""
    command = [str(BIN / "ultima"), "doctor", "--json", "--peer", peer, "--socket", str(socket)]
    done = host.run(command, timeout=60)
    assert done.returncode in (0, 1), done
    told = json.loads(done.stdout)
    wrong = [row for row in told["checks"] if row["verdict"] in ("warning", "failure")]
    assert (done.returncode == 1) is any(row["verdict"] == "failure" for row in wrong) is not told["well"]
    assert all(row["remedy"] for row in wrong), "each with something to do"
    assert len({row["name"] for row in wrong}) == len(wrong), "one cause, one finding"
    return {row["name"]: f"{row['finding']} / {row['remedy']}" for row in wrong}


def examined(cluster: Cluster) -> Found:
    return doctor(cluster.lab.host(0), cluster.socket(0), cluster.addresses[1])


@contextmanager
def daemon(
    host: Host, folder: Path, *before: str, program: tuple[str, ...] = (str(BIN / "ultimad"),)
) -> Iterator[Path]:
    """A daemon that is started by a command of its own; its socket."""
    folder.mkdir(mode=0o700)
    flags = ["--runtime-dir", str(folder), "--bind", host.address, "--port", str(PORT), "--insecure"]
    process = host.popen([*before, *program, *flags], stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 30
    while not (folder / "attach.sock").exists():
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.05)
    try:
        yield folder / "ultimad.sock"
    finally:
        process.terminate()
        process.wait(30)


def ops(jobs: list[ultima.Job], count: int, elements: int, late: float = 0.0) -> None:
    """Rank 1 calls each op |late| seconds after rank 0."""

    def one(rank: int, job: ultima.Job) -> None:
        data = np.ones(elements, np.float32)
        for _ in range(count):
            time.sleep(late if rank == 1 else 0)
            with suppress(ultima.UltimaError):
                job.allreduce(data, "sum", deadline=2.0)

    everywhere(jobs, one)


def nothing(lab: Lab, folder: Path) -> Found:
    with Cluster(lab) as cluster, ranks(cluster) as jobs:
        ops(jobs, 20, 100_000)
        return examined(cluster)


def udp_blocked(lab: Lab, folder: Path) -> Found:
    with Cluster(lab) as cluster:
        lab.set_one_way([(0, 1)], protocol="udp")
        return examined(cluster)


def tcp_blocked(lab: Lab, folder: Path) -> Found:
    with Cluster(lab) as cluster:
        lab.set_one_way([(0, 1)], protocol="tcp")
        return examined(cluster)


def mtu(lab: Lab, folder: Path) -> Found:
    with Cluster(lab) as cluster:
        lab.host(1).set_mtu(1300)
        return examined(cluster)


def loss(lab: Lab, folder: Path) -> Found:
    with Cluster(lab) as cluster, ranks(cluster) as jobs:
        lab.set_loss(1.0)
        ops(jobs, 10, 1_000_000)
        lab.set_loss(0)
        return examined(cluster)


def slow_rank(lab: Lab, folder: Path) -> Found:
    with Cluster(lab) as cluster, ranks(cluster) as jobs:
        ops(jobs, 12, 10_000, late=0.2)
        return examined(cluster)


def dead_peer(lab: Lab, folder: Path) -> Found:
    with Cluster(lab) as cluster, ranks(cluster) as jobs:
        ops(jobs, 2, 10_000)
        cluster.daemons[1].kill()
        cluster.daemons[1].wait()
        time.sleep(3)
        return examined(cluster)


def small_buffer(lab: Lab, folder: Path) -> Found:
    without = [shutil.which("setpriv") or "setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
    with daemon(lab.host(0), folder / "a", *without) as socket, daemon(lab.host(1), folder / "b"):
        return doctor(lab.host(0), socket, lab.host(1).address)


def port_taken(lab: Lab, folder: Path) -> Found:
    flags = ["--runtime-dir", str(folder / "b"), "--bind", lab.host(0).address, "--port", str(PORT), "--insecure"]
    with daemon(lab.host(0), folder / "a"):
        done = lab.host(0).run([str(BIN / "ultimad"), *flags])
        said = done.stderr.strip().splitlines()[-1]
        return {"port taken": said} if done.returncode == 1 and f"listens on TCP port {PORT}" in said else {"?": said}


def wrong_master(lab: Lab, folder: Path) -> Found:
    """Rank 1 believes that its own host is that of rank 0."""
    with Cluster(lab) as cluster:
        running = []
        for rank in range(2):
            environment = {**cluster.environment(rank), "MASTER_ADDR": cluster.addresses[rank], "ULTIMA_JOB": "wrong"}
            command = [sys.executable, "-W", "ignore", "-c", "import ultima; ultima.connect(timeout=100)"]
            running.append(lab.host(rank).popen(command, environment))
        time.sleep(8)
        found = examined(cluster)
        for process in running:
            process.terminate()
            process.wait(30)
        return found


def version_skew(lab: Lab, folder: Path) -> Found:
    skewed = (sys.executable, "-c", SKEWED)
    with daemon(lab.host(0), folder / "a") as socket, daemon(lab.host(1), folder / "b", program=skewed):
        return doctor(lab.host(0), socket, lab.host(1).address)


def stalled_daemon(lab: Lab, folder: Path) -> Found:
    """The other host's daemon is stopped by a signal, as a hung one: its kernel still takes connections."""
    with daemon(lab.host(0), folder / "a") as socket, daemon(lab.host(1), folder / "b"):
        pid = lab.host(1)._children[-1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            return doctor(lab.host(0), socket, lab.host(1).address)
        finally:
            os.kill(pid, signal.SIGCONT)


def full_disk(lab: Lab, folder: Path) -> Found:
    """The disk of the history is a full one of a few pages."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)], check=True)
    try:
        with suppress(OSError), (disk / "full").open("wb", 0) as file:
            while True:
                file.write(bytes(4096))
        state = ("env", f"ULTIMAD_STATE_DIR={disk}")
        with daemon(lab.host(0), folder / "a", *state) as socket, daemon(lab.host(1), folder / "b"):
            time.sleep(1)
            return doctor(lab.host(0), socket, lab.host(1).address)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


FAULTS: list[tuple[Callable[[Lab, Path], Found], set[str], set[str]]] = [
    # What is planted, what it must be called, and what is true besides.
    (udp_blocked, {"udp", "udp data port", "udp blocked"}, {"udp feedback port"}),
    (tcp_blocked, {"tcp port"}, set()),
    (mtu, {"mtu"}, set()),
    (loss, {"loss"}, set()),
    (slow_rank, {"slow rank", "slow host"}, set()),
    (dead_peer, {"peer"}, set()),
    (small_buffer, {"socket buffers"}, set()),
    (port_taken, {"port taken"}, set()),
    (wrong_master, {"forming"}, set()),
    (version_skew, {"versions"}, set()),
    (stalled_daemon, {"daemon"}, set()),
    (full_disk, {"history"}, set()),
]


def test_faults__each_is_named_once_and_none_wrongly(tmp_path: Path) -> None:
    named, wrong, told = [], [], []
    for number, (plant, names, besides) in enumerate(FAULTS):
        (tmp_path / str(number)).mkdir()
        with Lab(2, unit="packet") as lab:
            found = plant(lab, tmp_path / str(number))
        told.append(f"{plant.__name__}: {found}")
        print(told[-1])
        if found.keys() & names:
            named.append(plant.__name__)
        if found.keys() - names - besides:
            wrong.append(told[-1])
    assert not wrong, wrong
    assert len(named) >= len(FAULTS) - 1, told


def test_no_fault__nothing_is_named(tmp_path: Path) -> None:
    with Lab(2) as lab:
        assert nothing(lab, tmp_path) == {}
