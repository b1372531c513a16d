# SPDX-License-Identifier: Apache-2.0
"""Real daemons with certificates: ops run, certificates change under load, and what is wrong is said at the start."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ultima
from tests.daemon.trust.papers import Authority, papers
from tests.e2e.hosts import ADDRESS, DaemonProcess, connect_all, everywhere, ranks, started
from ultima.admin.calls import get_status

CHANGES = 100


class SecureDaemon(DaemonProcess):
    """One with certificates, or whatever its environment says."""

    def flags(self) -> list[str]:
        return ["--bind", ADDRESS]


@contextmanager
def secure_hosts(count: int, authority: Authority, keep: bool = False, **flags: str) -> Iterator[list[SecureDaemon]]:
    """`keep`: each has a folder for its history, as an installed daemon has, and else keeps it in memory."""
    with tempfile.TemporaryDirectory(prefix="ultima-e2e-") as folder:
        hosts = [SecureDaemon(Path(folder) / f"host{index}") for index in range(count)]
        for index, host in enumerate(hosts):
            host.environment |= papers(Path(folder), f"n{index}", authority).environment | flags
            if keep:
                (host.folder / "state").mkdir(mode=0o700)
                host.environment["ULTIMAD_STATE_DIR"] = str(host.folder / "state")
        with started(hosts):
            yield hosts


def test_allreduce__among_daemons_with_certificates() -> None:
    with secure_hosts(2, Authority()) as hosts, ranks(hosts) as jobs:
        for step in range(3):
            buffers = [np.full(10_000, rank + step, np.float32) for rank in range(2)]
            receipts = everywhere(jobs, lambda rank, job, b=buffers: job.allreduce(b[rank], op="sum"))
            assert [receipt.status.name for receipt in receipts] == ["COMPLETE"] * 2, receipts
            assert all((buffer == 1 + 2 * step).all() for buffer in buffers)
        told = get_status(str(hosts[0].socket))
        assert (told.security.mode, told.security.node, told.insecure) == ("certificates", "n0", False)


@pytest.mark.check
@pytest.mark.timeout(300)
def test_rotation__a_hundred_changes_under_load_and_no_op_fails() -> None:
    """Leaves by the old and by a new authority, in turns; a rank leaves and joins again in the middle. Meanwhile the
    packets get a fresh secret every second."""
    old, new = Authority(), Authority()
    with secure_hosts(2, old, ULTIMAD_ENGINE_NEW_SECRET_SECONDS="1") as hosts:
        files = [papers(host.folder.parent, f"n{i}", old) for i, host in enumerate(hosts)]
        believed, stop, counts = (old, new), threading.Event(), [0, 0]
        jobs = connect_all(hosts)

        def train(rank: int, job: ultima.Job) -> int:
            """Ops until the other thread says stop, which both ranks hear of in the same op."""
            while True:
                said = np.array([stop.is_set() if rank == 0 else 0], np.float32)
                assert job.allreduce(said, op="sum", mode="reliable", deadline=30).status.name == "COMPLETE"
                if said[0]:
                    return counts[rank]
                value = np.full(50_000, rank + 1, np.float32)
                receipt = job.allreduce(value, op="sum", deadline=30)
                assert receipt.status.name == "COMPLETE", receipt
                assert (value == 3).all()
                counts[rank] += 1

        def rotate() -> None:
            for change in range(CHANGES):
                signer = (old, new)[change // 10 % 2]
                for index, one in enumerate(files):
                    one.write(signer.issue(f"n{index}"), believed)
                time.sleep(0.3)
            stop.set()

        thread = threading.Thread(target=rotate)
        thread.start()
        done = everywhere(jobs, train)
        thread.join()
        assert done == counts and counts[0] == counts[1] > 0, done
        for host in hosts:
            text = host.log()
            assert text.count("new certificate node=") >= 5, text
            assert "host absent" not in text and "peer daemon lost" not in text, text
            assert text.count("secret renewed job=") >= 10, text
            assert get_status(str(host.socket)).engine.counters["bad_checksum"] == 0
        print(f"{CHANGES} changes of certificates, {counts[0]} ops, none failed")
        for job in jobs:
            job.close()
        with ranks(hosts) as again:
            receipts = everywhere(again, lambda rank, job: job.allreduce(np.ones(10, np.float32)))
            assert [receipt.status.name for receipt in receipts] == ["COMPLETE"] * 2


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("expired", "expired on"),
        ("readable", "has mode 0644, so that others can read or change it"),
        ("missing", "needs tls.authority as well"),
    ],
)
def test_start__half_secure_is_not_started(tmp_path: Path, spoil: str, words: str) -> None:
    files = papers(tmp_path, "n0", Authority(), days=(-9, -1) if spoil == "expired" else (-1, 9))
    environment = files.environment
    if spoil == "readable":
        files.key.chmod(0o644)
    if spoil == "missing":
        del environment["ULTIMAD_TLS_AUTHORITY"]
    command = [sys.executable, "-m", "ultima.daemon.process.main", "--runtime-dir", str(tmp_path / "r")]
    done = subprocess.run([*command, "--bind", ADDRESS], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line and "tls." in line


def test_insecure__shows_in_the_status(tmp_path: Path) -> None:
    host = DaemonProcess(tmp_path / "host")
    try:
        host.launch()
        host.wait_until_ready()
        command = [sys.executable, "-m", "ultima.cli", "status", "--json", "--socket", str(host.socket)]
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
        assert told["insecure"] is True and told["security"]["mode"] == "insecure"
        assert "insecure: peers are not authenticated" in host.log()
    finally:
        host.signal(signal.SIGCONT)
        host.kill()
