# SPDX-License-Identifier: Apache-2.0
"""`ultima bench-cluster` across the hosts of a lab, reached by a shell that enters their namespaces as ssh would."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.lab.cluster import BIN, Cluster
from tests.lab.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(180)]


def test_bench_cluster__finds_the_host_with_the_slow_link(tmp_path: Path) -> None:
    with Lab(3, rate_mbit=1000) as lab, Cluster(lab) as cluster:
        lab.host(1).set_rate(50)
        lines = ["#!/bin/sh", 'case "$1" in']
        for host in lab.hosts:
            enter = f"ip netns exec {host.namespace} env ULTIMA_SOCKET={cluster.socket(host.index)} PATH={BIN}:$PATH"
            lines.append(f'{host.address}) exec {enter} sh -c "$2";;')
        script = tmp_path / "shell"
        script.write_text("\n".join([*lines, "esac", "exit 9", ""]))
        script.chmod(0o755)
        addresses = [host.address for host in lab.hosts]
        command = [
            str(BIN / "ultima"),
            "bench-cluster",
            *addresses,
            "--via",
            f"{script} {{host}}",
            "-b",
            "1M",
            "-n",
            "5",
        ]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=150, env=os.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
    times = {(pair["a"], pair["b"]): pair["p50_s"] for pair in found["pairs"]}
    slow, fast = [us for pair, us in times.items() if addresses[1] in pair], times[addresses[0], addresses[2]]
    assert len(times) == 3 and min(slow) > 3 * fast, times
    assert addresses[1] in (found["worst"]["a"], found["worst"]["b"])
    assert not [pair for pair in found["pairs"] if pair["error"]]
