# SPDX-License-Identifier: Apache-2.0
"""The logic behind DeepReduce's reproduced claims: verdicts, the crossover, a leg of training, a short run of it."""

import math

import numpy as np
import pytest

from tests.reproduce.deepreduce import filters, fits, learning, transfer, volume
from tests.reproduce.deepreduce.filters import Found
from tests.reproduce.deepreduce.transfer import Way


def _found(p0: float) -> Found:
    zeros = {"p0": 0.0, "p1": 0.0, "p2": 0.0}
    return Found(0.45, {**zeros, "p0": p0}, zeros, zeros, 0.7)


def test_volume__the_papers_model_has_its_parameters() -> None:
    assert sum(math.prod(shape) for shape in volume.MATRICES) + sum(volume.VECTORS) == 4_053_428
    assert sum(volume.VECTORS) == 15_460


def test_volume__verdicts() -> None:
    found = {codec.name: codec.paper or 0.1 for codec in volume.CODECS}
    rows = {row.claim: row for row in volume.judge(found, 0.2063, 72)}
    assert rows["D1: volume of BF-P0 at 10 %"].verdict == rows['D2: "320 % less data"'].verdict == "pass"
    assert rows["D1: volume of delta at 10 %"].verdict == "not tested"
    worse = {**found, "BF-P0 and QSGD": 0.0648}
    rows = {row.claim: row for row in volume.judge(worse, 0.2105, 80)}
    failed = {claim for claim, row in rows.items() if row.holds is False}
    assert failed == {"D1: volume of BF-P0 and QSGD at 10 %", 'D2: "320 % less data"',
                      "D3: volume of NCF's gradients, BF-P0 and QSGD", "D10: payload of Figure 1's tensor"}  # fmt: skip
    assert volume.figure_1_bits() == 72


def test_filters__crossover_lies_between() -> None:
    found = {0.004: _found(0.9), 0.01: _found(1.2)}
    assert filters.crossover(found) == pytest.approx(0.006)
    assert math.isnan(filters.crossover({0.004: _found(0.9), 0.01: _found(0.95)}))
    real = filters.measure(0.004, seeds=2)
    assert real.wrong["p0"] == 0 and real.true["p2"] > real.true["p1"] + 0.05
    assert filters.naive_error() > 0.5


def test_fits__verdicts() -> None:
    good = {("fit-dexp", "laplace"): (0.51, 0.02, 0), ("fit-poly", "laplace"): (0.57, 0.005, 0)}
    assert [row.verdict for row in fits.judge(good, 3.5)] == ["pass"] * 4 + ["not tested"]
    bad = {("fit-dexp", "laplace"): (0.52, 0.04, 0), ("fit-poly", "laplace"): (0.61, 0.04, 0)}
    assert [row.verdict for row in fits.judge(bad, 3.5)] == ["FAIL"] * 4 + ["not tested"]


def test_learning__a_leg_loses_nothing() -> None:
    """What arrives and what is remembered are all that was given, whatever the codec does to it."""
    rng = np.random.default_rng(3)
    for name, options in learning.CODECS.items():
        leg, given, arrived = learning.Leg(3000, options), np.zeros(3000), np.zeros(3000)
        for number in range(5):
            update = rng.laplace(size=3000).astype(np.float32)
            given += update
            arrived += leg.send(update, number)
        assert np.allclose(arrived + leg._memory.residual, given, atol=1e-4), name
        assert leg.bytes <= 5 * 4 * 3000


def test_learning__learns() -> None:
    accuracy, _ = learning.train(learning.CODECS["BF-P2 and Fit-Poly"], seed=1, rounds=12)
    assert accuracy > 50
    rows = learning.judge({"no compression": 95.0, "Top-r": 94.0, "BF-P1": 92.9, "BF-P2": 93.1})
    assert [row.verdict for row in rows] == ["FAIL", "pass", "not tested"]


def test_transfer__verdicts() -> None:
    found = {name: Way(0.5, 0.5, 0.1, 0.2, 5e6) for name in transfer.WAYS}
    found["dense"] = Way(2.0, 2.0, 0.0, 0.1, 25e6)
    assert [row.verdict for row in transfer.judge(found)] == ["pass", "pass", "pass", "not tested"]
    found["BF-P0 and QSGD"] = Way(1.1, 0.6, 0.5, 0.2, 5e6)
    assert [row.verdict for row in transfer.judge(found)] == ["FAIL", "FAIL", "pass", "not tested"]
    assert transfer.summed(found).verdict == "not tested"
    for step, verdict in ((0.2, "pass"), (0.4, "FAIL")):
        own = {"dense": Way(0.7, 0.7, 0, 0, 2e7), transfer.SUMMED: Way(step, step, 0, 0, 0)}
        assert transfer.summed(own).verdict == verdict
    assert transfer._way([[{"step": 1.0}, {"step": 5.0}], [{"step": 2.0}, {"step": 3.0}]]).step == 3.5
