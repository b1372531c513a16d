# SPDX-License-Identifier: Apache-2.0
"""The outer step, beside the same formula in float64, written the other way round, and bit by bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import ultima


def _oracle(deltas: list[np.ndarray], lr: float, mu: float) -> np.ndarray:
    """theta after all steps from 0, as one sum: step k moves theta by lr mu^(j-k) in step j, and by lr once more."""
    theta = np.zeros_like(deltas[0], np.float64)
    for k, delta in enumerate(deltas):
        for j in range(k, len(deltas)):
            theta -= lr * mu ** (j - k + 1) * delta.astype(np.float64)
        theta -= lr * delta.astype(np.float64)
    return theta


@pytest.mark.parametrize(("lr", "mu"), [(0.7, 0.9), (1.0, 0.0), (0.4, 0.5)])
def test_step__is_nesterovs_momentum(lr: float, mu: float) -> None:
    random = np.random.default_rng(1)
    deltas = [random.standard_normal(70_001).astype(np.float32) for _ in range(6)]
    theta, momentum = np.zeros(70_001, np.float32), np.zeros(70_001, np.float32)
    for delta in deltas:
        before = delta.copy()
        ultima.Nesterov(lr, mu).step(theta, momentum, delta)
        assert (delta == before).all()
    assert np.allclose(theta, _oracle(deltas, lr, mu), rtol=1e-5, atol=1e-5)


def test_step__has_these_bits_on_every_cpu() -> None:
    """A product and a sum that are rounded once (FMA) give other bits: this hash is that of one rounding an
    operation."""
    whole = np.arange(1, 100_001, dtype=np.float64)
    theta, momentum = (np.sin(whole * scale).astype(np.float32) for scale in (1, 2))
    theta, momentum = (np.round(each * 4096).astype(np.float32) / np.float32(12345) for each in (theta, momentum))
    wide_theta, wide_momentum = theta.astype(np.float64), momentum.astype(np.float64)
    delta = np.float32(1) / np.arange(1, 100_001, dtype=np.float32)
    ultima.Nesterov().step(theta, momentum, delta)

    def once(values: np.ndarray) -> np.ndarray:
        return values.astype(np.float32).astype(np.float64)  # float64 holds a product of two float32 exactly

    lr, mu = float(np.float32(0.7)), float(np.float32(0.9))
    wide_momentum = once(once(wide_momentum * mu) + delta)
    wide_theta = once(wide_theta - once(once(once(wide_momentum * mu) + delta) * lr))
    assert (theta == wide_theta).all()
    assert (momentum == wide_momentum).all()
    fused = once(once(once(wide_momentum * mu + delta) * lr) * -1 + wide_theta)
    assert hashlib.blake2b(theta).digest() != hashlib.blake2b(fused.astype(np.float32)).digest()


def test_nesterov__refuses_rates_that_are_none() -> None:
    with pytest.raises(ultima.InvalidArgument, match="momentum"):
        ultima.Nesterov(0.7, 1.5)
