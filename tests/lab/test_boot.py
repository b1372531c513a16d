# SPDX-License-Identifier: Apache-2.0
"""A host that boots: its address comes after its daemon."""

import socket
import subprocess
from pathlib import Path

import pytest

from tests.lab.cluster import BIN, PORT
from tests.lab.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]

LATE = "10.43.0.77"


def test_boot__waits_for_its_address_under_a_service_manager(tmp_path: Path) -> None:
    """Then it starts, without a restart; a hand at a terminal is told at once instead."""
    command = [str(BIN / "ultimad"), "--bind", LATE, "--port", str(PORT), "--insecure", "--runtime-dir"]
    with Lab(1) as lab, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        host = lab.host(0)
        done = host.run([*command, str(tmp_path / "a")])
        assert done.returncode == 1 and "this host does not have that address" in done.stderr, done
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        daemon = host.popen(
            [*command, str(tmp_path / "b")], {"NOTIFY_SOCKET": str(tmp_path / "notify")}, stderr=subprocess.PIPE
        )
        heard = manager.recv(4096).decode()
        assert heard.splitlines() == [f"STATUS=waiting for the address {LATE}", "EXTEND_TIMEOUT_USEC=30000000"]
        assert daemon.poll() is None
        host.run(["ip", "addr", "add", f"{LATE}/24", "dev", "eth0"])
        while heard != "READY=1":
            heard = manager.recv(4096).decode()
        daemon.terminate()
        _, said = daemon.communicate(timeout=20)
        assert daemon.returncode == 0 and f"address missing bind={LATE}" in said.decode()
