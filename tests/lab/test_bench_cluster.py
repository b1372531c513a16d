# SPDX-License-Identifier: Apache-2.0
"""`ultima bench-cluster` across the hosts of a lab, reached by a shell that enters their namespaces as ssh would."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cluster import BIN, Cluster
from tests.lab.distance import Far
from tests.lab.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(180)]


def bench(cluster: Cluster, folder: Path, *arguments: str) -> dict[str, Any]:
    """What it prints as JSON of all hosts of a lab."""
    lines = ["#!/bin/sh", 'case "$1" in']
    for host in cluster.lab.hosts:
        enter = f"ip netns exec {host.namespace} env ULTIMA_SOCKET={cluster.socket(host.index)} PATH={BIN}:$PATH"
        lines.append(f'{host.address}) exec {enter} sh -c "$2";;')
    script = folder / "shell"
    script.write_text("\n".join([*lines, "esac", "exit 9", ""]))
    script.chmod(0o755)
    addresses = [host.address for host in cluster.lab.hosts]
    command = [str(BIN / "ultima"), "bench-cluster", *addresses, "--via", f"{script} {{host}}", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not [pair for pair in found["pairs"] if pair["error"]]
    return found


def test_bench_cluster__finds_the_host_with_the_slow_link(tmp_path: Path) -> None:
    with Lab(3, rate_mbit=1000) as lab, Cluster(lab) as cluster:
        lab.host(1).set_rate(50)
        addresses = [host.address for host in lab.hosts]
        found = bench(cluster, tmp_path, "-b", "1M", "-n", "5")
    times = {(pair["a"], pair["b"]): pair["p50_s"] for pair in found["pairs"]}
    slow, fast = [us for pair, us in times.items() if addresses[1] in pair], times[addresses[0], addresses[2]]
    assert len(times) == 3 and min(slow) > 3 * fast, times
    assert addresses[1] in (found["worst"]["a"], found["worst"]["b"])


def test_bench_cluster__measures_how_far_hosts_are_apart(tmp_path: Path) -> None:
    """The rate is said: a switch that is a process lets frames go in trains, which come faster than its links are."""
    far = Far(60, loss_pct=1, rate_mbit=100)
    with Lab(2, far=far) as lab, Cluster(lab) as cluster:
        (pair,) = bench(cluster, tmp_path, "-b", "1M", "-n", "4", "--rate", "100Mbit")["pairs"]
    assert pair["round_trip_s"] >= 0.06 and pair["path_mbit"] == 100 and 0.002 < pair["lost_share"] < 0.05
    assert pair["goal_s"] == pytest.approx(2 * pair["round_trip_s"] + (1 << 20) * 1472 / 1440 / 12.5e6)
    assert pair["to_goal"] == pytest.approx(pair["p50_s"] / pair["goal_s"])
