# SPDX-License-Identifier: Apache-2.0
"""Garbage at a steady rate: `python -m tests.lab.flood ADDRESS PER_SECOND SECONDS PORT ...` prints how many it sent.

Half of the datagrams are noise from the first byte on, the others look like Ultima's up to the connection id. Bursts of
UDP_SEGMENT cost the sender next to nothing, so what a flood costs is seen at the receiver.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[2]

UDP_SEGMENT = 103
EACH, BURST = 40, 16  # bytes of a datagram, datagrams of a burst


def _burst(rng: random.Random) -> bytes:
    heads = (b"\x11", b"\x12", b"\x13", b"")
    return b"".join((rng.choice(heads) + rng.randbytes(EACH))[:EACH] for _ in range(BURST))


class Garbage:
    """A flood from one host of |lab| at |ports| of another, while the context lasts."""

    def __init__(self, lab: Lab, source: int, target: int, ports: Sequence[int], per_second: float) -> None:
        self._lab, self._source = lab, source
        self._command = [sys.executable, "-m", "tests.lab.flood", lab.host(target).address, str(per_second), "86400"]
        self._command += [str(port) for port in ports]

    def __enter__(self) -> Garbage:
        host = self._lab.host(self._source)
        self._process = host.popen(self._command, stdout=subprocess.DEVNULL, cwd=ROOT)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    address, per_second, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    ports = [int(port) for port in sys.argv[4:]]
    rng = random.Random(7)
    bursts = [_burst(rng) for _ in range(256)]
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, EACH)
    start, sent = time.monotonic(), 0
    while (now := time.monotonic() - start) < seconds:
        if sent >= now * per_second:
            time.sleep(0.0005)
            continue
        out.sendto(bursts[sent // BURST % len(bursts)], (address, ports[sent // BURST % len(ports)]))
        sent += BURST
    print(sent)


if __name__ == "__main__":
    main()
