# SPDX-License-Identifier: Apache-2.0
"""Marks in few bits: they arrive whatever ranks give beside them, they cost little, and nothing is lost for them."""

from __future__ import annotations

import numpy as np
import pytest

import ultima
from tests.client.local.net import Net, outers
from tests.seeds import seeds
from ultima.local.marks import of_round
from ultima.local.vector import HEAD, Vector
from ultima.quant import FORMS, Draws, rounded, wire_bytes

PLAIN = ultima.Nesterov(lr=1.0, momentum=0.0)


@pytest.mark.parametrize("wire", FORMS)
@pytest.mark.parametrize("ranks", [1, 4, 64])
@pytest.mark.parametrize("seed", seeds(1))
def test_marks__arrive_beside_the_most_that_all_ranks_may_give(seed: int, ranks: int, wire: str) -> None:
    """Wherever blocks and packets begin. Usual sizes of neighbouring ranges differ by a factor of 10,000. Fails with
    three times the bound, and without the least size of a mark."""
    random = np.random.default_rng(seed)
    size = 9000
    vector = Vector(size, ranks, wire)
    momentum = np.repeat(10.0 ** random.uniform(-4, 0, vector.ranges), vector.range)[:size].astype(np.float32)
    sizes = of_round(vector, wire, np.zeros(size, np.float32), momentum, 0.9, ranks, False)
    assert sizes.marks.min() >= sizes.marks.max() / 256
    giving = range(0, ranks, max(1, ranks // 8))
    total = np.zeros(vector.count, np.float32)
    for rank in giving:
        told = np.zeros(vector.count, np.float32)
        share = ranks / len(giving)
        theta, sent = np.full(size, 1e30, np.float32), np.zeros(size, np.float32)
        vector.rows(told).give_bounded(theta, sent, 1.0, sizes.near, vector.near, sizes.far)
        assert sent.all(), "not all of any element is given"
        vector.mark(told, rank, sizes.marks)
        phase = int(random.integers(0, 64))
        came = rounded(told[phase:], wire, Draws(seed % 1000, rank % 64))
        given = vector.holds(np.concatenate([told[:phase], came]))
        assert given[:, rank].all() and given.sum() == vector.ranges, "one rank's own"
        body = np.concatenate([told[:phase], came])
        marks = np.zeros_like(body)
        vector.mark(marks, rank)
        total += np.where(marks > 0, body, body * np.float32(share))
    phase = int(random.integers(0, 64))
    answer = rounded(total[phase:], "int8" if wire == "int4" else wire, Draws(7, 0, 0, True))
    holds = vector.holds(np.concatenate([total[:phase], answer]))
    assert holds[:, list(giving)].all()
    assert holds.sum() == vector.ranges * len(giving)


@pytest.mark.parametrize("wire", FORMS)
@pytest.mark.parametrize("seed", seeds(1))
def test_rounds__are_whole_and_keep_what_is_beyond_a_bound_for_later(seed: int, wire: str) -> None:
    """Four ranks; each pushes a few elements a thousand times as far as the rest, in one round and never again. What
    all did is in the outer model or with the rank that did it, but for rounding. Fails if what is beyond a bound is
    dropped."""
    random = np.random.default_rng(seed)
    size, ranks = 6000, 4
    net = Net(ranks, wire=wire)
    models, made = outers(net, size, outer=PLAIN, wire=wire, feedback=False, every=1, delay=0)
    done = np.zeros(size)
    for step in range(12):
        for model in models:
            moved = (random.standard_normal(size) * 1e-2).astype(np.float32)
            if step == 5:
                moved[random.integers(0, size, 40)] += 10.0
            model += moved
            done += moved
        for outer in made:  # an op has its result when the first rank asks: all have given before
            outer._summary.steps += 1
            outer._send()
        for outer in made:
            outer._take(wait=True)
        for outer in made:
            assert outer.last is not None and outer.last.outcome == "stepped", outer.last
            assert outer.last.inside == (0, 1, 2, 3) and not outer.last.ranges_missed, outer.last
    theta = made[0].theta
    for outer in made:
        assert (outer.theta == theta).all()
    kept = np.sum([model - theta for model in models], axis=0)
    off = np.abs(ranks * theta + kept - done)
    steps = {"int16": 1e-2, "int8": 2.0, "int4": 25.0}[wire]
    assert off.max() < steps, off.max()
    calm = {"int16": 1e-4, "int8": 2e-2, "int4": 0.25}[wire]
    assert np.median(off) < calm, np.median(off)
    assert abs((ranks * theta + kept - done).mean()) < calm / 4


def test_rank_behind__takes_the_state_in_few_bits() -> None:
    """The pieces of the state and the heads share packets; all hold the same bits afterwards."""
    net = Net(4, wire="int8")
    random = np.random.default_rng(3)
    models, made = outers(net, 6000, outer=ultima.Nesterov(), wire="int8", every=1, delay=0)
    net.deaf[2] = {3}
    before = np.zeros(0)
    for step in range(30):
        for model in models:
            model += (random.standard_normal(6000) * 1e-2).astype(np.float32)
        if step == 3:
            before = made[0].theta
        for outer in made:
            outer._summary.steps += 1
            outer._send()
        for outer in made:
            outer._take(wait=True)
    assert made[3].summary().learned == 1 and not made[3].behind
    assert all((outer.theta == made[0].theta).all() for outer in made)
    assert before.size and np.isfinite(made[0].theta).all()
    assert len({outer.state_dict()["turn"] for outer in made}) == 1


@pytest.mark.parametrize(("wire", "most"), [("float32", 1.016), ("int16", 1.01), ("int8", 1.005), ("int4", 1.003)])
def test_marks__cost_little(wire: str, most: float) -> None:
    """100 MB, four ranks: bytes of a round to those of the model alone in that form, and in int8 to float32."""
    size = 25_000_000
    count = Vector(size, 4, wire).count
    if wire == "float32":
        assert count / size < most
        return
    cost = wire_bytes(count, wire, hosts=4) / wire_bytes(size, wire, hosts=4)
    assert cost < most
    if wire == "int8":
        assert wire_bytes(count, wire, hosts=4) / wire_bytes(size, "float32", hosts=4) < 0.27


def test_head__has_room_for_a_block_of_zeros() -> None:
    from ultima.local.vector import Head

    bits = Head(True, True, 2**16 - 1, 2**16 - 1, 2**32 - 1, 1.5, 2**32 - 1, 2**24 - 1).bits()
    assert bits.size == HEAD and not bits[HEAD - 63 :].any() and bits[HEAD - 80 : HEAD - 63].any()
