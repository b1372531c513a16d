# SPDX-License-Identifier: Apache-2.0
"""The switch of a lab with distance, before anything is believed that was measured across it."""

import sys
import time

import pytest

from tests.lab.distance import Far
from tests.lab.lab import Lab
from tests.lab.test_lab import _heard, _numbers

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(60)]

# Listens, says at which port, and sends back what comes until it has come to its end.
ECHO = """
import socket
s = socket.create_server(("", 0)); print(s.getsockname()[1], flush=True)
c, _ = s.accept()
while data := c.recv(65536): c.sendall(data)
"""
# Seconds that connecting takes, and then whether |count| bytes come back as they went.
CALL = """
import socket, sys, time
began = time.monotonic()
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20); took = time.monotonic() - began
sent = bytes(i * i % 251 for i in range(int(sys.argv[3]))); s.sendall(sent); s.shutdown(socket.SHUT_WR)
came = b""
while data := s.recv(65536): came += data
print(took, came == sent)
"""


def test_distance__delays_what_it_forwards_and_changes_nothing() -> None:
    with Lab(3, far=Far(80)) as lab:
        echo = lab.host(1).popen([sys.executable, "-c", ECHO], stdout=-1, text=True)
        assert echo.stdout is not None
        port = echo.stdout.readline().strip()
        call = [sys.executable, "-c", CALL, lab.host(1).address, port, "50000"]
        took, same = lab.host(0).run(call, timeout=20).stdout.split()
        assert 0.08 <= float(took) < 2 and same == "True"
        assert echo.wait(20) == 0
        assert _heard(lab, 2, lab.host(2).address6) == 50
        assert lab.distance.counts().lost == lab.distance.counts().crowded == 0


def test_distance__loses_and_bounds_as_it_is_told_and_keeps_the_order() -> None:
    with Lab(2, far=Far(10)) as lab:
        assert _heard(lab, 1, lab.host(1).address) == 50, "and the hosts know each other"
        lab.distance.set(Far(10, loss_pct=30))
        came = _numbers(lab, 1, lab.host(1).address, 1000)
        assert came == sorted(came)
        assert 600 <= len(came) <= 800 and 200 <= lab.distance.counts().lost <= 400
        # 1000 bytes and their headers at 1 Mbit/s take 8 ms each, and the queue holds ten of them.
        lab.distance.set(Far(10, rate_mbit=1, queue_ms=80))
        assert 5 <= _heard(lab, 1, lab.host(1).address, 100) <= 40
        assert lab.distance.counts().crowded >= 60
        lab.distance.set(Far(10, loss_pct=100))
        began = time.monotonic()
        assert _heard(lab, 1, lab.host(1).address) == 0
        assert time.monotonic() - began < 20


def test_far__is_held_to_its_range() -> None:
    with pytest.raises(ValueError, match="loss_pct is 2, must be 0 where hosts are far"):
        Lab(2, loss_pct=2, far=Far(10))
    with Lab(2, far=Far(10)) as lab, pytest.raises(ValueError, match="no loss more than 100 %"):
        lab.distance.set(Far(10, loss_pct=101))
