# SPDX-License-Identifier: Apache-2.0
"""The codes of one parent: the paper's matrices, that any n - s children give the sum, and what is lost in float32."""

import random
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from tests.seeds import seeds
from ultima.coded import codes
from ultima.coded.codes import Code

LINEAR = [(n, s) for n in range(3, 14) for s in range(1, n) if n % (s + 1)]
GROUPS = [(n, s) for n in range(1, 14) for s in range(n) if n % (s + 1) == 0]


def code_of(kind: str, children: int, stragglers: int) -> Code:
    return (codes.groups if kind == "groups" else codes.linear)(children, stragglers)


def can_be_had(code: Code, came: tuple[int, ...]) -> bool:
    """Whether ones are a combination of the rows of those that came, by least squares."""
    rows = code.encoding[list(came)]
    a = np.linalg.lstsq(rows.T, np.ones(code.children), rcond=None)[0]
    return bool(np.abs(a @ rows - 1).max() < 1e-9) if came else False


def test_linear__of_three_is_the_paper_s() -> None:
    """docs/papers.md, section 4.6: A and B, and each row of A is what the parent finds when that child is late."""
    a, b = np.array([[0, 1, 2], [1, 0, 1], [2, -1, 0]]), np.array([[0.5, 1, 0], [0, 1, -1], [0.5, 0, 1]])
    code = codes.linear(3, 1)
    assert np.array_equal(code.encoding, b)
    assert np.array_equal(a @ b, np.ones((3, 3)))
    for late in range(3):
        found = code.decoding([child for child in range(3) if child != late])
        assert found == pytest.approx(a[late], abs=1e-14)


def test_orthogonal__follows_tandon_s_algorithm() -> None:
    """B and the coefficients of H = [1, 1, -2]."""
    encoding = codes._orthogonal(np.array([[1.0, 1.0, -2.0]]))
    assert np.array_equal(encoding, [[1, -1, 0], [0, 1, 0.5], [2, 0, 1]])
    code = Code("linear", 1, encoding)
    for late, wanted in enumerate(([0, 1, 0.5], [-1, 0, 1], [1, 2, 0])):
        assert code.decoding({0, 1, 2} - {late}) == pytest.approx(wanted, abs=1e-14)


@pytest.mark.parametrize("kind, children, stragglers", [("linear", *each) for each in LINEAR] +
                         [("groups", *each) for each in GROUPS])  # fmt: skip
def test_encoding__every_child_holds_one_part_more_than_may_be_late(kind: str, children: int, stragglers: int) -> None:
    """So the load is as small as it can be, and each part is with as many."""
    encoding = code_of(kind, children, stragglers).encoding
    held = np.count_nonzero(encoding, axis=1), np.count_nonzero(encoding, axis=0)
    if (kind, children, stragglers) == ("linear", 3, 1):
        assert held[1].tolist() == [2, 2, 2]
    assert [each.tolist() for each in held] == [[stragglers + 1] * children] * 2
    assert not encoding.flags.writeable


@pytest.mark.parametrize("kind, children, stragglers", [("linear", *each) for each in LINEAR if each[0] < 9] +
                         [("groups", *each) for each in GROUPS if each[0] < 9])  # fmt: skip
def test_decoding__is_found_wherever_a_parent_may_go_on(kind: str, children: int, stragglers: int) -> None:
    """For every set of children: none is claimed that is not, and with no more late ones than may be none is missed.
    (Of groups none is missed at all. A few sets of a linear code would do though one more is late; no parent tries.)
    """
    code = code_of(kind, children, stragglers)
    for count in range(children + 1):
        for came in combinations(range(children), count):
            a = code.decoding(came)
            assert a is None or can_be_had(code, came), came
            assert (a is not None) == (can_be_had(code, came) if kind == "groups" else count >= children - stragglers)
            if a is not None:
                assert a @ code.encoding == pytest.approx(np.ones(children), abs=1e-10), came
                assert set(np.flatnonzero(a)) <= set(came)


def test_groups__take_one_of_each_with_nothing_to_multiply() -> None:
    code = codes.groups(6, 2)
    assert code.decoding([1, 2, 4, 5]).tolist() == [0, 1, 0, 0, 1, 0]  # type: ignore[union-attr]
    assert code.decoding([2, 5]).tolist() == [0, 0, 1, 0, 0, 1]  # type: ignore[union-attr]
    assert code.decoding([0, 1, 2]) is None
    assert code.amplification == 1


def worst(code: Code) -> float:
    """The amplification by its definition, one set of late children after the other."""
    found = 0.0
    for late in combinations(range(code.children), code.stragglers):
        rows = np.delete(code.encoding, late, axis=0)
        a = np.linalg.lstsq(rows.T, np.ones(code.children), rcond=None)[0]
        found = max(found, float((np.abs(a) @ np.abs(rows)).max()))
    return found


@pytest.mark.parametrize("children, stragglers", [each for each in LINEAR if each[0] < 9])
def test_amplification__is_the_largest_over_all_sets(children: int, stragglers: int) -> None:
    code = codes.linear(children, stragglers)
    assert code.amplification == pytest.approx(worst(code), rel=1e-9)


@pytest.mark.parametrize("children, stragglers, wanted", [(3, 1, 3), (5, 2, 3), (7, 2, 4.2), (9, 4, 22.6), (10, 3, 18),
                                                          (11, 2, 6.9), (13, 4, 82), (16, 5, 366)])  # fmt: skip
def test_amplification__is_that_of_the_specification(children: int, stragglers: int, wanted: float) -> None:
    """What the cyclic code is known to have."""
    assert codes.linear(children, stragglers).amplification == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("children, stragglers, spec", [(9, 1, 6.8), (7, 3, 36), (14, 4, 922), (20, 6, 2.9e4)])
def test_amplification__is_smaller_where_columns_are_scaled(children: int, stragglers: int, spec: float) -> None:
    """A simpler code scales by one wave, whose entries differ in size."""
    assert codes.linear(children, stragglers).amplification < spec / 2


def test_amplification__is_infinite_where_nobody_looked_at_all_sets() -> None:
    assert codes.linear(40, 20).amplification == float("inf")


def test_amplification__of_a_code_that_does_not_hold_is_infinite() -> None:
    """Two children that hold the same cannot stand in for a third."""
    assert Code("linear", 1, np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])).amplification == float("inf")


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("children, stragglers", LINEAR)
def test_wire__loses_less_than_four_millionths(children: int, stragglers: int, seed: int) -> None:
    """What travels is float32, what decodes is double, and the gradients of the parts have nothing to do with each
    other, which is worse than gradients that are alike. Up to 13 children; 100 sets of late ones each, neighbours too.
    """
    code, draw = codes.linear(children, stragglers), random.Random(seed)
    parts = np.random.default_rng(seed).standard_normal((children, 500))
    sent = (code.encoding @ parts).astype(np.float32).astype(np.float64)
    whole = parts.sum(axis=0)
    for turn in range(100):
        first = draw.randrange(children)
        late = {(first + more) % children for more in range(stragglers)}
        if turn >= 20:
            late = set(draw.sample(range(children), stragglers))
        a = code.decoding(set(range(children)) - late)
        assert a is not None
        assert np.linalg.norm(a @ sent - whole) < 4e-6 * np.linalg.norm(whole), (seed, late)


def test_decoding__of_small_fractions_is_exact_in_rationals() -> None:
    """C2's arithmetic without any rounding: with B in fractions, the paper's A gives ones to the last digit."""
    b = [[Fraction(1, 2), 1, 0], [0, 1, -1], [Fraction(1, 2), 0, 1]]
    for row in ([0, 1, 2], [1, 0, 1], [2, -1, 0]):
        assert [sum(a * b[child][part] for child, a in enumerate(row)) for part in range(3)] == [1, 1, 1]
