# SPDX-License-Identifier: Apache-2.0
"""What a session leaves to the next one when its daemon was told to stop: which ops, under which numbers, and what
becomes of those whose time is over."""

from __future__ import annotations

import json
import socket
import time

import numpy as np
import pytest

from ultima.base.errors import DaemonUnavailable, DeadlineExceeded
from ultima.base.receipt import Host, Status
from ultima.base.words import DTYPE_BY_CODE, MODES
from ultima.session.away import Away
from ultima.session.notes import Heard, hear
from ultima.session.op import Op, OpState

HOSTS = (Host(0, "10.0.0.1", (0,), 1), Host(1, "10.0.0.2", (1,), 1))
FLOAT32 = next(kind for kind in DTYPE_BY_CODE.values() if kind.name == "float32")
SOON_NS = 60_000_000_000


def op(seq: int, mode: str = "bounded", left_ns: int = SOON_NS) -> Op:
    data = np.full(4, float(seq), np.float32)
    ends = time.monotonic_ns() + left_ns
    made = Op(data, data, data, FLOAT32, 1, MODES[mode], times=(ends, ends))
    made.seq = seq
    return made


def away(*ops: Op, next_seq: int = 9, seconds: float = 10.0) -> Away:
    return Away(time.monotonic_ns() + int(seconds * 1e9), ops, next_seq, HOSTS, 1)


def test_resume__is_the_oldest_op_that_has_not_ended() -> None:
    assert away().resume == 9
    left = away(op(8), op(7, "reliable"))
    assert left.resume == 7 and [each.seq for each in left.take()] == [7, 8], "in their order"
    assert left.resume == 9


def test_expire__ends_bounded_ops_alone_and_none_behind_a_reliable_one() -> None:
    over = [op(5, left_ns=0), op(6, left_ns=0), op(7, "reliable", 0), op(8, left_ns=0)]
    left = away(*over)
    left.expire(time.monotonic_ns())
    assert [each.state for each in over] == [OpState.DONE, OpState.DONE, OpState.BACK, OpState.BACK]
    for each in over[:2]:
        assert each.receipt is not None and each.receipt.status is Status.INSUFFICIENT
        assert each.receipt.op_seq == each.seq and each.receipt.contributors == (1,)
        assert each.receipt.members == (0, 1) and each.receipt.missing_ranks == (0,)
        assert (each.target == each.seq).all()
    assert left.resume == 7
    taken = left.take()
    assert taken == over[2:] and taken[1].expires_ns > time.monotonic_ns(), "its number must be used in turn"


def test_answer__numbers_what_is_called_meanwhile() -> None:
    left = away()
    first, second = op(-1), op(-1)
    second.portions = 2
    assert left.answer(first) and left.answer(second)
    assert (first.seq, second.seq, left.resume) == (9, 10, 12)
    assert not left.answer(op(-1, "reliable")), "it has to be whole"
    assert not away(op(8, "reliable")).answer(op(-1)), "an earlier one comes first"
    assert not away(seconds=-1).answer(op(-1)), "the daemon is not back in time"


def test_fail__ends_all_that_was_called_after_it_and_the_rank_joins_as_any_other() -> None:
    first, second, third = op(6), op(7, "reliable"), op(8)
    left = away(first, second, third)
    left.fail(second, DaemonUnavailable("nobody"), late=True)
    assert isinstance(second.failure, DeadlineExceeded) and isinstance(third.failure, DaemonUnavailable)
    assert first.failure is None and left.resume is None


@pytest.mark.parametrize(
    ("cut", "in_place", "spoilt"), [(False, True, False), (True, True, True), (True, False, False)]
)
def test_spoilt__only_what_the_engine_had_begun_in_place(cut: bool, in_place: bool, spoilt: bool) -> None:
    data, other = np.ones(4, np.float32), np.ones(4, np.float32)
    made = Op(data, data if in_place else other, data, FLOAT32, 1, MODES["reliable"], times=(0, 0))
    made.cut = cut
    assert made.spoilt is spoilt


@pytest.mark.parametrize(("said", "heard"), [(10_000, 10.0), (10**9, 600.0), (-1, 0.0), ("soon", 0.0), (None, 0.0)])
def test_hear__a_daemon_that_comes_back(said: object, heard: float) -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        far.send(json.dumps({"back_within_ms": said}).encode())
        assert hear(near) == Heard([], False, heard, [])
        far.send(json.dumps({"note": "udp blocked", "text": "open it"}).encode())
        far.close()
        assert hear(near) == Heard(["open it"], True, 0.0, [])
