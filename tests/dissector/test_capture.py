# SPDX-License-Identifier: Apache-2.0
"""Real packets of two daemons on loopback, every one of them read by the dissector.

What the golden packets cannot show is whether the engine sends only what PROTOCOL.md describes. Here all datagrams of
a small job are captured as the kernel passes them; each must be of a known kind, with its checksum right, nothing in
it that the page forbids, and on the port that the page says.
"""

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dissector.ultima_scapy import UltimaData, UltimaFeedback, UltimaGrant, dissect, problems

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="capturing on loopback needs root"),
    pytest.mark.timeout(120),
]

BIN = Path(sys.executable).parent
ELEMENTS = 20_000
OPS = 4
# One rank of two: averages its own number with the other's, and leaves with status 0 only if the average is right.
RANK = f"""
import numpy as np, os, ultima
rank = int(os.environ["RANK"])
with ultima.connect(options=ultima.Options(split="always")) as job:
    for op in range({OPS}):
        values = np.full({ELEMENTS}, float(rank + op), dtype=np.float32)
        receipt = job.allreduce(values, op="avg", deadline=20)
        assert (values == op + 0.5).all(), (op, values[:4], receipt)
"""
ETH_P_ALL, ETH_P_IP, ETH_HEADER = 0x0003, 0x0800, 14
# Loopback would show each datagram twice, on its way out and in.
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23


def _free_port() -> int:
    """A port with four free ones after it, TCP and UDP: the daemon takes all five."""
    first = 20000 + os.getpid() % 500 * 16  # tests that run beside this one look elsewhere
    for start in range(first, first + 4000, 8):
        held = []
        try:
            for port in range(start, start + 5):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    held.append(socket.socket(socket.AF_INET, kind))
                    held[-1].bind(("127.0.0.1", port))
            return start
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise AssertionError("no three free ports in a row on loopback")


@pytest.fixture
def daemons() -> Iterator[list[tuple[Path, int]]]:
    """Two daemons on loopback: (gRPC socket, port) of each."""
    folder = Path(tempfile.mkdtemp(prefix="ultima-capture-"))
    running: list[subprocess.Popen[bytes]] = []
    places = []
    try:
        for index in range(2):
            port = _free_port()
            directory = folder / f"host{index}"
            directory.mkdir(mode=0o700)
            command = [str(BIN / "ultimad"), "--runtime-dir", str(directory), "--bind", "127.0.0.1"]
            command += ["--port", str(port), "--insecure"]
            with (folder / f"host{index}.log").open("wb") as log:
                running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            places.append((directory / "ultimad.sock", port))
            _wait_for(directory / "ultimad.sock", running[-1], folder / f"host{index}.log")
        yield places
    finally:
        for daemon in running:
            daemon.send_signal(signal.SIGTERM)
        for daemon in running:
            try:
                daemon.wait(timeout=15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(path: Path, daemon: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + 30
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        assert daemon.poll() is None and time.monotonic() < limit, log.read_text(errors="replace")
        time.sleep(0.05)


def _udp(frame: bytes) -> tuple[int, int, bytes] | None:
    """Source port, destination port and payload of a frame with UDP over IPv4 in it, else None."""
    if len(frame) < ETH_HEADER + 28 or struct.unpack_from("!H", frame, 12)[0] != ETH_P_IP:
        return None
    header = ETH_HEADER + 4 * (frame[ETH_HEADER] & 0x0F)
    if frame[ETH_HEADER + 9] != socket.IPPROTO_UDP:
        return None
    source, destination, length = struct.unpack_from("!HHH", frame, header)
    return source, destination, frame[header + 8 : header + length]


def _segments(payload: bytes) -> list[bytes]:
    """The datagrams of one captured buffer: loopback carries a segmentation burst as one, without its segment size.

    A burst holds packets of one path, equally long but for the last, and each begins with the same byte and connection
    id. The stride is the distance to the next such beginning that splits the whole consistently.
    """
    if problems(payload) == []:
        return [payload]
    mark = payload[:1], payload[4:8]
    for stride in range(33, len(payload)):
        cut = [payload[at : at + stride] for at in range(0, len(payload), stride)]
        if (cut[1][:1], cut[1][4:8]) == mark and problems(cut[0]) == []:
            return cut
    return [payload]


def test_capture__every_datagram_is_as_the_page_says(daemons: list[tuple[Path, int]]) -> None:
    data_ports = {port + lane for _, port in daemons for lane in (1, 3)}
    feedback_ports = {port + lane for _, port in daemons for lane in (2, 4)}
    ours = data_ports | feedback_ports
    captured: list[tuple[int, int, bytes]] = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
        tap.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        tap.bind(("lo", 0))
        ranks = [_start_rank(rank, daemons) for rank in range(2)]
        limit = time.monotonic() + 60
        while any(rank.poll() is None for rank in ranks):
            assert time.monotonic() < limit, "the ranks do not end"
            _drain(tap, ours, captured, 0.05)
        _drain(tap, ours, captured, 0.2)
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    sent = [(source, to, data) for source, to, burst in captured for data in _segments(burst)]
    wrong = [f"{source} -> {to}: {problems(data)}" for source, to, data in sent if problems(data)]
    assert wrong == [], f"{len(wrong)} of {len(sent)} datagrams: {wrong[:5]}"
    packets = [(source, to, dissect(data)) for source, to, data in sent]
    for source, to, packet in packets:
        assert isinstance(packet, (UltimaData, UltimaFeedback, UltimaGrant)), packet.summary()
        alone = not isinstance(packet, UltimaData) and {source, to} <= feedback_ports
        assert alone or {source, to} <= data_ports, f"{packet.summary()} on ports {source} and {to}"
    # Ops take turns on two lanes, each with ports and op numbers of its own.
    lane_of = {port + more: (more - 1) // 2 for _, port in daemons for more in (1, 2, 3, 4)}
    assert all(lane_of[source] == lane_of[to] for source, to, _ in packets), "a packet went from one lane to another"
    for lane in (0, 1):
        _check_story([packet for source, _, packet in packets if lane_of[source] == lane], OPS // 2)


def _start_rank(rank: int, daemons: list[tuple[Path, int]]) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "ULTIMA_RENDEZVOUS": f"127.0.0.1:{daemons[0][1]}",
        "ULTIMA_SOCKET": str(daemons[rank][0]),
    }
    command = [sys.executable, "-c", RANK]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _drain(tap: socket.socket, ports: set[int], captured: list[tuple[int, int, bytes]], silence_s: float) -> None:
    """Takes all frames until |silence_s| seconds bring none."""
    while select.select([tap], [], [], silence_s)[0]:
        found = _udp(tap.recv(1 << 17))
        if found is not None and {found[0], found[1]} & ports:
            captured.append(found)


def _check_story(packets: list[UltimaData | UltimaFeedback | UltimaGrant], ops: int) -> None:
    """Beyond each packet for itself: together those of one lane tell of the |ops| that it ran."""
    data = [packet for packet in packets if isinstance(packet, UltimaData)]
    records = [record for packet in packets if isinstance(packet, UltimaFeedback) for record in packet.records]
    assert {packet.op_seq() for packet in data} == set(range(ops))
    assert {packet.stage for packet in data} == {0, 1}
    assert {record.op_seq for record in records} == set(range(ops))
    assert {(record.count, record.dtype, record.reduction) for record in records} == {(ELEMENTS, 1, 2)}
    # Two hosts, two stages, half of the bucket each: what was sent once covers every op exactly.
    for op in range(ops):
        sent = {}
        for packet in data:
            if packet.op_seq() == op:
                sent[packet.connection, packet.stage, packet.offset] = len(bytes(packet.payload))
        assert sum(sent.values()) == 2 * ELEMENTS * 4
    # A packet number is used once on its path, even for a repair.
    numbers = [(packet.connection, packet.number) for packet in data]
    assert len(numbers) == len(set(numbers))
