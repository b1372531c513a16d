# SPDX-License-Identifier: Apache-2.0
"""Two fresh hosts train by the commands of docs/recipes.md, and somebody listens on the wire between them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.lab.cluster import BIN, PORT
from tests.lab.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(150)]

JOB = "the-name-of-this-job"
TELLTALE = np.float32(1234.5625)  # a gradient that nobody takes for anything else
STEPS, COUNT = 5, 100_000

# As README shows it: rank, world and master from the environment.
TRAIN = f"""
import numpy as np, ultima
weights = np.zeros({COUNT}, np.float32)
with ultima.connect() as job:
    for step in range({STEPS}):
        gradient = np.full({COUNT}, {float(TELLTALE)!r}, np.float32)
        receipt = job.allreduce(gradient, op="avg", deadline="20s")
        assert receipt.complete and (gradient == {float(TELLTALE)!r}).all(), receipt
        weights -= 0.125 * gradient
print("trained to", float(weights[0]))
"""

# All that passes the host's cable, whole, each after its length.
LISTEN = """
import socket, struct, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
wire.bind(("eth0", 0))
with open(sys.argv[1], "wb", buffering=0) as out:
    print("listening", flush=True)
    while True:
        packet = wire.recv(65536)
        out.write(struct.pack("<I", len(packet)) + packet)
"""


def certificates(folder: Path, nodes: list[str]) -> None:
    """`ultima ca init` and `ultima ca issue`, as the recipe has them."""
    ultima = [str(BIN / "ultima"), "ca"]
    subprocess.run([*ultima, "init", "--cluster", "lab"], cwd=folder, check=True, capture_output=True, timeout=60)
    for node in nodes:
        subprocess.run([*ultima, "issue", node], cwd=folder, check=True, capture_output=True, timeout=60)


def captured(path: Path) -> list[bytes]:
    data, at, packets = path.read_bytes(), 0, []
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        packets.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return packets


def train(lab: Lab, folder: Path, secure: bool) -> list[bytes]:
    """Daemons and trainers on both hosts; what the cable of host 0 carried meanwhile."""
    nodes = ["n0", "n1"]
    if secure:
        certificates(folder, nodes)
    daemons, pipes = [], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    capture = folder / "capture"
    listener = lab.host(0).popen([sys.executable, "-c", LISTEN, str(capture)], **pipes)
    try:
        assert listener.stdout is not None and listener.stdout.readline() == "listening\n"
        for host, node in zip(lab.hosts, nodes, strict=True):
            lines = [f'bind = "{host.address}"', f"port = {PORT}", f'runtime_dir = "{folder / node}-run"']
            tls = (("certificate", f"{node}.crt"), ("key", f"{node}.key"), ("authority", "ca.crt"))
            lines += ["[tls]", *(f'{name} = "{folder / file}"' for name, file in tls)] if secure else []
            config = folder / f"{node}.toml"
            config.write_text("\n".join(lines) + "\n")
            command = [str(BIN / "ultimad"), "--config", str(config), *([] if secure else ["--insecure"])]
            daemons.append(host.popen(command, **pipes))
        sockets = [folder / f"{node}-run" / "ultimad.sock" for node in nodes]
        limit = time.monotonic() + 60
        while not all(path.exists() for path in sockets):
            assert time.monotonic() < limit and all(each.poll() is None for each in daemons), [
                each.communicate(timeout=5)[0] for each in daemons if each.poll() is not None
            ]
            time.sleep(0.05)
        ranks = [
            host.popen(
                [sys.executable, "-c", TRAIN],
                {
                    **{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": lab.host(0).address},
                    **{"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"},
                    **{"ULTIMA_JOB": JOB, "ULTIMA_SOCKET": str(sockets[rank]), "ULTIMA_PORT": str(PORT)},
                },
                **pipes,
            )
            for rank, host in enumerate(lab.hosts)
        ]
        said = [rank.communicate(timeout=90)[0] for rank in ranks]
        assert all(f"trained to {float(-0.125 * STEPS * TELLTALE)}" in each for each in said), said
        time.sleep(0.2)
    finally:
        for child in (*daemons, listener):
            child.terminate()
        for child in (*daemons, listener):
            child.communicate(timeout=20)
    return captured(capture)


def shows(packets: list[bytes], what: bytes) -> int:
    """In how many packets it stands."""
    return sum(what in packet for packet in packets)


def test_capture__shows_no_gradient_and_no_name_of_a_job(tmp_path: Path) -> None:
    """Every byte between the two hosts is Ultima's. Insecure daemons show both: the search finds what is there."""
    with Lab(2) as lab:
        for secure in (True, False):
            folder = tmp_path / f"secure-{secure}"
            folder.mkdir()
            packets = train(lab, folder, secure)
            assert sum(map(len, packets)) > 2 * STEPS * COUNT * 4 * 0.5, "the listener has missed most of it"
            for what in (TELLTALE.tobytes() * 4, (-TELLTALE).tobytes() * 4, JOB.encode()):
                found = shows(packets, what)
                assert not (secure and found), f"{what!r} stands in {found} packets"
            if not secure:
                assert shows(packets, TELLTALE.tobytes() * 4) > STEPS and shows(packets, JOB.encode()) > 0
