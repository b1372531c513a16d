# SPDX-License-Identifier: Apache-2.0
"""Curves through sorted values: the knot of docs/papers.md, section 5.9, and how near they come."""

import numpy as np
import pytest

from ultima.sparse import fit

BENT = np.array([10, 5, 3, 2, 1.5, 1.2, 1.1, 1])


def test_knot__is_farthest_from_the_chord() -> None:
    at, away = fit.knot(BENT)
    assert (at, round(away, 4)) == (2, 19.6122)
    assert fit.knot(np.array([2.0, 1.0])) == (0, 0.0) and fit.knot(np.array([3.0, 2.0, 1.0]))[1] == 0


def test_pieces__the_papers_heuristic() -> None:
    assert fit.pieces_wanted(BENT) == 5
    assert fit.pieces_wanted(BENT * 1e-3) == 1, "why it needs values of one scale"
    assert fit.pieces_wanted(np.array([1.0])) == 1


def test_cut__pieces_are_long_enough_and_whole() -> None:
    rng = np.random.default_rng(1)
    for count in (0, 1, 5, 6, 11, 12, 13, 100, 1000):
        y = np.sort(rng.laplace(size=count))[::-1]
        for segments in (1, 2, 4, 8):
            pieces = fit.cut(y, segments, 5)
            assert sum(pieces) == count and len(pieces) <= segments
            assert len(pieces) == 1 or min(pieces, default=6) >= 6
    assert len(fit.cut(np.exp(-np.linspace(0, 9, 1000)), 4, 5)) == 4


@pytest.mark.parametrize(("points", "near"), [(1001, 1e-5), (101, 1e-3)])
def test_dexp__finds_both_exponents(points: int, near: float) -> None:
    x = np.linspace(0, 1, points)
    found = fit.dexp_fit(x, 2 * np.exp(-3 * x) + 0.5 * np.exp(-0.4 * x))
    assert found is not None
    a, b, c, d = found
    terms = sorted([(b, a), (d, c)])
    assert np.allclose(terms, [(-3, 2), (-0.4, 0.5)], atol=near)


def test_dexp__what_swings_is_left_to_polynomials() -> None:
    x = np.linspace(0, 1, 200)
    assert fit.dexp_fit(x, np.cos(12 * x)) is None
    assert fit.dexp_fit(x[:5], x[:5]) is None, "five points are too few for four coefficients"


@pytest.mark.parametrize("shape", ["laplace", "normal"])
def test_fit__error_of_a_gradients_values(shape: str) -> None:
    """Claim D5's error. The largest 368 of 36,864 values."""
    rng = np.random.default_rng(4)
    whole = getattr(rng, shape)(size=36864)
    y = np.sort(whole[np.argsort(-np.abs(whole))[:368]])[::-1].astype(np.float32)
    poly = fit.poly_decode(*fit.poly_encode(y), 368)
    packed = fit.dexp_encode(y)
    assert packed is not None
    dexp = fit.dexp_decode(*packed, 368)
    assert packed[1].size == 32, "eight coefficients"
    for found, most in ((poly, 0.01), (dexp, 0.03)):
        assert np.linalg.norm(found - y) / np.linalg.norm(y) < most


def test_fit__one_sign_alone_and_nothing() -> None:
    for y in (np.empty(0), np.linspace(5, 1, 50), np.linspace(-1, -5, 50), np.zeros(20), np.array([1.0])):
        given = y.astype(np.float32)
        assert np.allclose(fit.poly_decode(*fit.poly_encode(given), given.size), given, atol=1e-5)
        packed = fit.dexp_encode(given)
        if packed is not None:
            assert np.allclose(fit.dexp_decode(*packed, given.size), given, atol=0.05)
