# SPDX-License-Identifier: Apache-2.0
"""Attacks through the bells, and through what the kernel does with descriptors that come along (A6)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import socket
import stat
import struct
import threading
import time
from contextlib import ExitStack

import pytest

from tests.e2e.hosts import DaemonProcess, new_job_name
from tests.hostile.bystander import Bystander
from tests.hostile.trainer import HostileTrainer
from ultima.admin.calls import get_status

ATTACK_S = 4.0
LINGER_S = 3
SO_PASSRIGHTS = 83
HELD_S = 1.0
"""What an attacker holds on for once it has the daemon; a bystander must not notice."""


def lingering() -> tuple[socket.socket, socket.socket]:
    """A connection with bytes that nobody takes: who drops the last descriptor of the first end waits for `HELD_S`. The
    second is to be kept meanwhile.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = socket.create_connection(listener.getsockname())
        burden, _ = listener.accept()
    burden.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            burden.send(bytes(65536))
    burden.setblocking(True)
    burden.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    return burden, kept


class Trap:
    """The completion bell, blocking, and a thread that fills it when told; where that would wait, the thread waits."""

    FULL = struct.pack("Q", 2**64 - 2)

    def __init__(self, bell: int) -> None:
        self._bell = bell
        self._now = threading.Semaphore(0)
        self._over = False
        fcntl.fcntl(bell, fcntl.F_SETFL, fcntl.fcntl(bell, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._fill, name="trap")
        self._thread.start()

    def _fill(self) -> None:
        while self._now.acquire() and not self._over:
            with contextlib.suppress(OSError):  # a socket that is shut takes nothing
                os.write(self._bell, self.FULL)

    def close_in(self, spins: int) -> None:
        """Fills the bell after a moment."""
        for _ in range(spins):
            pass
        self._now.release()

    def empty(self) -> None:
        """Takes out what is there, of the trap and of the engine."""
        while select.select([self._bell], [], [], 0.0002)[0]:
            os.read(self._bell, 4096)

    def __enter__(self) -> Trap:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._now.release()
        while self._thread.is_alive():
            self.empty()


def test_bell__filled_and_blocking_holds_nobody_up(host: DaemonProcess) -> None:
    """The trainer shares its completion bell's file: it makes it blocking, and fills it just when the engine means to
    ring; when a bystander stands still it holds on."""
    draw = random.Random(seed := random.randrange(2**32))
    print("seed", seed)
    with HostileTrainer(host.socket) as attacker, Bystander(host) as bystander:
        attacker.join(new_job_name())
        lane, seq, limit = attacker.lanes[0], 0, time.monotonic() + ATTACK_S
        with Trap(attacker.bell) as trap:
            while time.monotonic() < limit:
                lane.submit(op_seq=seq, count=16)
                seq += 1
                trap.close_in(draw.randrange(1500))
                before, since = bystander.ops, time.monotonic()
                while bystander.ops == before and time.monotonic() - since < HELD_S:
                    time.sleep(0)
                trap.empty()
                for _ in lane.receipts():
                    pass
        worst = bystander.worst_s
    assert seq > 100
    assert worst < HELD_S * 0.9, f"an op of 64 bytes took {worst:.3f} s, of {seq} tries"


def offer_burden(fd: int, kept: ExitStack) -> None:
    """Sends a socket that lingers into `fd`, if it takes such a thing, and leaves the last descriptor of it there."""
    burden, far = lingering()
    kept.enter_context(far)
    with socket.socket(fileno=os.dup(fd)) as line, burden:
        try:
            socket.send_fds(line, [b"x"], [burden.fileno()], socket.MSG_NOSIGNAL)
        except OSError:
            burden.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))


def status_takes(host: DaemonProcess) -> float:
    start = time.monotonic()
    get_status(str(host.socket), timeout_s=20.0)
    return time.monotonic() - start


def test_bell__takes_no_descriptors(host: DaemonProcess) -> None:
    """The trainer sends sockets into its bells that linger for seconds when they are dropped; then it rings and hangs
    up."""
    with ExitStack() as kept, Bystander(host) as bystander:
        attacker = kept.enter_context(HostileTrainer(host.socket))
        attacker.join(new_job_name())
        for fd in (attacker.bell, *(lane.bell for lane in attacker.lanes)):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                offer_burden(fd, kept)
        attacker.lanes[0].submit(op_seq=0, count=16)
        assert attacker.lanes[0].wait(1)
        took = status_takes(host)
        attacker.hang_up()
        time.sleep(0.2)
        took = max(took, status_takes(host))
        worst = bystander.worst_s
    assert max(worst, took) < LINGER_S * 0.9, f"an op of 64 bytes took {worst:.3f} s, status {took:.3f} s"


def test_attach_line__takes_no_descriptors(host: DaemonProcess) -> None:
    """The trainer sends such a socket along with its second word on the attach socket: to drop it is to wait."""
    with ExitStack() as kept, HostileTrainer(host.socket) as attacker:
        try:
            attacker.line.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
        except OSError:
            pytest.skip("this kernel lets nobody refuse descriptors: Linux 6.16 does")
        offer_burden(attacker.line.fileno(), kept)
        time.sleep(0.2)
        took = status_takes(host)
    assert took < LINGER_S * 0.9, f"status took {took:.3f} s"
