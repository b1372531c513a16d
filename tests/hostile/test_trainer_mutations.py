# SPDX-License-Identifier: Apache-2.0
"""Submissions of random bytes, and the entries of sparse ones, changed while they are read."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from tests.e2e.hosts import DaemonProcess, new_job_name, running
from tests.hostile.bystander import Bystander
from tests.hostile.trainer import RING_ENTRIES, HostileTrainer, Lane, join_all, refused
from ultima._native import ffi, lib
from ultima.base.words import RETURN

ATTACK_S, LONG_ATTACK_S = 1.5, 10.0
ARENA = 1 << 16
ENTRY, HEADER = ffi.sizeof("ut_submission"), ffi.offsetof("ut_submission_ring", "entries")
FIELDS = dict(ffi.typeof("ut_submission").fields)
EDGES = [0, 1, 2, 3, 7, 63, 64, 65, 255, ARENA - 1, ARENA, ARENA + 1, 2**31, 2**32 - 1, 2**63, 2**64 - 64, 2**64 - 1]


def mutation(draw: random.Random, next_seq: int) -> dict[str, Any]:
    """A good request with some fields replaced: by edges, by random numbers, by small ones that mean something."""
    fields: dict[str, Any] = {
        "op_seq": next_seq,
        "count": draw.randrange(ARENA // 8),
        "dst": draw.choice((0, ARENA // 2)),
        "deadline_ns": time.monotonic_ns() + draw.randrange(50_000_000),
        "mode": draw.choice((lib.UT_BOUNDED, lib.UT_BEST_EFFORT, lib.UT_RELIABLE)),
    }
    for name in draw.sample(sorted(FIELDS), draw.choice((0, 0, 1, 1, 2, 4, len(FIELDS)))):
        value = draw.choice((draw.choice(EDGES), draw.getrandbits(64), draw.randrange(10)))
        value %= 2 ** (8 * ffi.sizeof(FIELDS[name].type))
        fields[name] = {"all": value} if FIELDS[name].type.kind == "union" else value
    return fields


def flip(lane: Lane, seed: int, over: threading.Event) -> None:
    """Changes entries under the engine's eyes; now and then the head, too, and what is said to be taken."""
    draw, ring = random.Random(seed), ffi.buffer(lane.submissions)
    while not over.wait(0):
        ring[HEADER + draw.randrange(RING_ENTRIES * ENTRY)] = bytes((draw.getrandbits(8),))
        if draw.random() < 0.001:
            lane.submissions.head = draw.choice((draw.getrandbits(64), lane.completions.head + draw.randrange(100)))
        if draw.random() < 0.001:
            lane.submissions.completions_taken = draw.choice((draw.getrandbits(64), lane.completions.head))


@contextmanager
def flipping(lanes: list[Lane], draw: random.Random) -> Iterator[None]:
    """Meanwhile a thread per lane changes what lies in it."""
    over = threading.Event()
    threads = [threading.Thread(target=flip, args=(lane, draw.getrandbits(32), over)) for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def write_for(seconds: float, lanes: list[Lane], draw: random.Random) -> None:
    """Mutated requests in all lanes."""
    next_seq, limit = [0] * len(lanes), time.monotonic() + seconds
    while time.monotonic() < limit:
        at = draw.randrange(len(lanes))
        lanes[at].submit(**mutation(draw, next_seq[at]))
        next_seq[at] += 1
        for receipt in lanes[at].receipts():
            if receipt.error == lib.UT_ERR_SEQUENCE:  # that one has used no number
                next_seq[at] = max(0, next_seq[at] - 1)


NONE, SOLO = 1, 3


@pytest.mark.parametrize(
    ("world", "policy", "seconds"),
    [
        *((world, policy, ATTACK_S) for world, policy in ((1, NONE), (2, SOLO))),
        *(
            pytest.param(world, policy, LONG_ATTACK_S, marks=pytest.mark.check)
            for world in (1, 2)
            for policy in (NONE, SOLO)
        ),
    ],
)
def test_mutations__hurt_nobody_else(host: DaemonProcess, world: int, policy: int, seconds: float) -> None:
    """Ranks of a job write requests of which some fields are absurd; then others change them while the engine reads."""
    draw = random.Random(seed := random.randrange(2**32))
    print("seed", seed)
    with Bystander(host) as bystander, ExitStack() as attached:
        trainers = [attached.enter_context(HostileTrainer(host.socket, ARENA)) for _ in range(world)]
        joined = join_all(trainers, new_job_name(), options={"policy": policy})
        assert not refused(joined), joined
        lanes = [lane for each in trainers for lane in each.lanes[: joined[0].lanes]]
        write_for(seconds / 2, lanes, draw)
        with flipping(lanes, draw):
            write_for(seconds / 2, lanes, draw)
        for each in trainers:
            each.hang_up()
        ops = bystander.ops
    assert ops > 10


# ---- the entries of sparse ops ----

UNITS, ENTRIES, SPARSE_ARENA = 1 << 17, 1 << 16, 1 << 21
"""So many entries that those of a chunk are more than a packet has room for."""


def flip_entries(trainer: HostileTrainer, seed: int, over: threading.Event) -> None:
    """Changes indices for a moment: past the end, to those of others, and to any number; now and then a value."""
    draw, words = random.Random(seed), np.frombuffer(trainer.arena, np.uint32)
    while not over.wait(0):
        for _ in range(200):
            at = draw.choice((0, draw.randrange(64), draw.randrange(ENTRIES)))
            good = words[at]
            words[at] = draw.choice((2**32 - 1, 2**32 - 1, draw.randrange(UNITS), draw.getrandbits(32)))
            words[ENTRIES + at] = draw.getrandbits(32)
            words[at] = good


def give_entries(lane: Lane, op_seq: int, form: int) -> None:
    """A sparse op with a deadline so short that some blocks do not come; what the result lacks is returned."""
    flags = RETURN if op_seq % 2 else 0
    deadline_ns = time.monotonic_ns() + (30 + 40 * (op_seq % 3)) * 10**6
    alike = {"sparse": {"group": 1, "form": form}}
    shape = {"count": UNITS, "entries": ENTRIES, "alike": alike, "dst": SPARSE_ARENA // 2}
    lane.submit(
        collective=lib.UT_ALLREDUCE_SPARSE,
        op_seq=op_seq,
        deadline_ns=deadline_ns,
        flags=flags,
        redop=lib.UT_SUM,
        **shape,
    )


@pytest.mark.check
@pytest.mark.parametrize("form", [0, 3], ids=["float32", "float8"])
def test_entries__that_change_hurt_nobody_else(form: int) -> None:
    """A rank of two changes its indices while its host makes blocks of them; the other is honest, and is answered."""
    draw = random.Random(seed := random.randrange(2**32))
    print("seed", seed)
    with running(2) as hosts, Bystander(hosts[0]) as bystander, ExitStack() as attached:
        trainers = [attached.enter_context(HostileTrainer(host.socket, SPARSE_ARENA)) for host in hosts]
        joined = join_all(trainers, new_job_name(), hosts[0].rendezvous)
        assert not refused(joined), joined
        for each in trainers:
            np.frombuffer(each.arena, np.uint32)[:ENTRIES] = np.arange(0, UNITS, 2)
            np.frombuffer(each.arena, np.float32)[ENTRIES : 2 * ENTRIES] = 1
        over = threading.Event()
        thread = threading.Thread(target=flip_entries, args=(trainers[0], draw.getrandbits(32), over))
        thread.start()
        answered, limit, op_seq = 0, time.monotonic() + LONG_ATTACK_S / 2, 0
        try:
            while time.monotonic() < limit:
                for each in trainers:
                    give_entries(each.lanes[0], op_seq, form)
                answered += len(trainers[1].lanes[0].wait(1))
                trainers[0].lanes[0].wait(1)
                op_seq += 1
        finally:
            over.set()
            thread.join()
        assert answered == op_seq > 10
        for each in trainers:
            each.hang_up()
        assert bystander.ops > 10
        for host in hosts:
            host.wait_until_ready()  # it still answers
