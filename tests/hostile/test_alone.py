# SPDX-License-Identifier: Apache-2.0
"""A daemon without peers (A3): nothing listens, jobs of one host work as ever, and others are refused at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import ultima
from tests.e2e.hosts import DaemonProcess, running, started
from ultima.admin.calls import get_status
from ultima.daemon.hosts.meeting import ALONE
from ultima.launch.reach import daemon_reach


class Lonely(DaemonProcess):
    """One with no flags that a person did not have to give."""

    def flags(self) -> list[str]:
        return []


@contextmanager
def alone(count: int = 1) -> Iterator[list[Lonely]]:
    with tempfile.TemporaryDirectory(prefix="ultima-e2e-") as folder:
        hosts = [Lonely(Path(folder) / f"host{index}") for index in range(count)]
        with started(hosts):
            yield hosts


@pytest.fixture(scope="module")
def lonely() -> Iterator[Lonely]:
    with alone() as hosts:
        yield hosts[0]


def join(host: DaemonProcess, ranks: int, **where: Any) -> list[ultima.Job]:
    def one(rank: int) -> ultima.Job:
        name = f"alone-{sorted(where.items())}"[:100]
        return ultima.connect(name, rank, ranks, host.socket, timeout=20, arena="4M", **where)

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(one, range(ranks)))


def average(jobs: Sequence[ultima.Job]) -> None:
    data = [np.full(5000, rank + 1, np.float32) for rank in range(len(jobs))]
    with ThreadPoolExecutor(len(jobs)) as threads:
        receipts = list(threads.map(lambda rank: jobs[rank].allreduce(data[rank]), range(len(jobs))))
    assert all(receipt.complete for receipt in receipts)
    assert all((values == (len(jobs) + 1) / 2).all() for values in data)


def test_listens__to_nothing_but_its_own_folder(lonely: Lonely) -> None:
    """Default options: no TCP port, no UDP socket."""
    families = {socket.AF_INET, socket.AF_INET6}
    assert [c for c in psutil.Process(lonely.pid).net_connections(kind="all") if c.family in families] == []
    status = get_status(str(lonely.socket))
    assert (status.address, status.grpc_port, status.engine.data_port) == ("", 0, 0) and not status.insecure
    assert daemon_reach(str(lonely.socket)).address == ""


@pytest.mark.parametrize(
    "where",
    [
        {"rendezvous": ""},
        {"rendezvous": "127.0.0.1:{port}"},
        {"rendezvous": "localhost:{port}"},
        {"rendezvous": "[::1]:{port}"},
        {"rendezvous": f"{socket.gethostname()}:{{port}}"},
        {"rendezvous": "127.0.0.1:1"},  # where nobody listens
        {"rank_addresses": ["127.0.0.1:{port}"] * 3},
    ],
    ids=str,
)
def test_job__of_one_host_however_it_is_named(lonely: Lonely, where: dict[str, Any]) -> None:
    def fill(value: Any) -> Any:
        return [fill(item) for item in value] if isinstance(value, list) else value.format(port=lonely.port)

    jobs = join(lonely, 3, **{name: fill(value) for name, value in where.items()})
    try:
        average(jobs)
        beside = [job.hosts for job in jobs]
        assert all(len(hosts) == 1 and hosts[0].ranks == (0, 1, 2) for hosts in beside)
    finally:
        for job in jobs:
            job.close()


@pytest.mark.parametrize(
    "where",
    [
        {"rendezvous": "192.0.2.1:29520"},
        {"rank_addresses": ["127.0.0.1:29520", "192.0.2.1:29520"]},
        {"rendezvous": "no-such-host.invalid:29520"},
    ],
    ids=str,
)
def test_job__of_several_hosts_is_refused_at_once(lonely: Lonely, where: dict[str, Any]) -> None:
    """The sentence names what was said, and what to start the daemon with."""
    with pytest.raises(ultima.JoinRefused) as caught:
        ultima.connect("two", 0, 2, lonely.socket, timeout=60, **where)
    assert ALONE in str(caught.value) and ("192.0.2.1" in str(caught.value) or "no-such-host" in str(caught.value))


def test_job__of_another_daemon_on_this_host_is_refused_at_once(lonely: Lonely) -> None:
    with running(1) as others, pytest.raises(ultima.JoinRefused, match="not this host"):
        ultima.connect("two", 0, 2, lonely.socket, others[0].rendezvous, timeout=60)


def test_job__whose_other_ranks_do_not_come_is_told_why(lonely: Lonely) -> None:
    """Rank 0 cannot know where the others are; when they have not come, it hears of `bind` too."""
    with pytest.raises(ultima.JoinTimeout, match=r"ranks 1 of world_size 2 have not joined; this daemon has no `bind`"):
        ultima.connect("two", 0, 2, lonely.socket, f"127.0.0.1:{lonely.port}", timeout=1)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0"])
def test_start__any_address_needs_a_word_of_permission(tmp_path: Path, address: str) -> None:
    """On loopback too: every user of the machine can reach it."""
    command = [sys.executable, "-m", "ultima.daemon.process.main", "--runtime-dir", str(tmp_path), "--bind", address]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ULTIMA")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"bind = '{address}': peers must be authenticated: set tls.certificate" in done.stderr
