# SPDX-License-Identifier: Apache-2.0
"""Codes: how the children of one parent share its data, so that the parent needs only some of them (docs/papers.md,
section 4.1).

The data of a parent is cut into n parts, as many as it has children. With g_k the gradient of part k, child i sends
m_i = sum over k of B[i, k] g_k. The parent looks for coefficients a, zero for the s children that are late, such that
a B = (1, ..., 1): then the sum of a_i m_i is the gradient of all parts. Each child holds s + 1 of the parts.

* `groups` (fractional repetition) where s + 1 divides n. The children of a group hold the same parts, and the parent
  takes one child of each group. There is nothing to multiply, so nothing is lost in rounding.
* `linear` for any other n and s. B has the support (i, i + 1, ..., i + s) in row i, modulo n, and its rows are
  orthogonal to those of a matrix H of s rows; a vector of ones, too, is orthogonal to H, so it is a combination of any
  n - s rows of B. The combination can be a difference of large numbers: the *amplification* is the largest
  sum over i of |a_i| |B[i, k]| over all parts k and all sets of s late children, and that is how much the rounding of
  what travels is enlarged. A random H gives thousands where the one of `_cyclic` gives tens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import cache
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

KINDS = ("groups", "linear")
SETS_MAX = 50_000
"""Sets of late children that are looked at. A linear code with more has an unknown amplification: it counts as inf."""
GIVE_UP_ABOVE = 1e6
"""An amplification with which nothing is left of a float32, nor of the search's patience."""
_CHUNK = 512  # sets solved at once
_EXACT = 1e-9  # of a B - 1 in double; a larger residual means that the code does not hold
# The paper's own example, rows and signs as printed there.
_PAPER_3_1 = ((0.5, 1.0, 0.0), (0.0, 1.0, -1.0), (0.5, 0.0, 1.0))


class Code:
    """One code for n children of which any |stragglers| may be late.

    encoding: B, float64 of shape (n, n), read-only; row i is child i, column k part k. amplification: see above; 1 for
    groups, inf where it cannot be vouched for.
    """

    def __init__(self, kind: str, stragglers: int, encoding: Matrix) -> None:
        encoding.flags.writeable = False
        self.kind = kind
        self.stragglers = stragglers
        self.encoding = encoding
        self.children = len(encoding)
        # All solutions of a B = 1 are one of them plus a combination of the s vectors y with y B = 0. The combination
        # that makes the late children's coefficients zero is a system of s unknowns, not of n - s.
        ones = np.ones(self.children)
        self._one = np.linalg.lstsq(encoding.T, ones, rcond=None)[0]
        self._null = np.linalg.svd(encoding.T)[2][self.children - stragglers :].T
        self.amplification = 1.0 if kind == "groups" else self._worst()

    def decoding(self, came: Collection[int]) -> Matrix | None:
        """The coefficients a of all children, float64 of shape (n,), with zeros for those that are not in |came|; None
        if too many are late: of groups all of one, of a linear code more than |stragglers|. Of a group the first child
        that came is taken.
        """
        a = np.zeros(self.children)
        if self.kind == "groups":
            size = self.stragglers + 1
            first = {child // size: child for child in sorted(came, reverse=True)}
            a[list(first.values())] = 1.0
            return a if len(first) == self.children // size else None
        late = sorted(set(range(self.children)) - set(came))
        if len(late) > self.stragglers:
            return None
        a += self._one - self._null @ np.linalg.lstsq(self._null[late], self._one[late], rcond=None)[0]
        a[late] = 0.0
        return a

    def _worst(self) -> float:
        """The amplification, or what has been found of it once that is more than GIVE_UP_ABOVE."""
        if math.comb(self.children, self.stragglers) > SETS_MAX:
            return math.inf
        worst, sizes, sets = 0.0, np.abs(self.encoding), _late_sets(self.children, self.stragglers)
        while chunk := list(islice(sets, _CHUNK)):
            late = np.array(chunk, dtype=np.intp).reshape(len(chunk), self.stragglers)
            try:
                mixed = np.linalg.solve(self._null[late], self._one[late][..., None])[..., 0]
            except np.linalg.LinAlgError:
                return math.inf
            a = self._one - mixed @ self._null.T
            np.put_along_axis(a, late, 0.0, axis=1)
            if not np.abs(a @ self.encoding - 1).max() < _EXACT:
                return math.inf
            worst = max(worst, float((np.abs(a) @ sizes).max()))
            if worst > GIVE_UP_ABOVE:
                break
        return worst


def _late_sets(children: int, late: int) -> Iterator[tuple[int, ...]]:
    """All sets of |late| children. Neighbours come first: they are hard on a cyclic code, so a bad one shows soon."""
    for first in range(children if late else 0):
        yield tuple(sorted((first + more) % children for more in range(late)))
    yield from combinations(range(children), late)


@cache
def groups(children: int, stragglers: int) -> Code:
    """Fractional repetition. |stragglers| + 1 must divide |children|."""
    size = stragglers + 1
    assert children % size == 0
    encoding = np.zeros((children, children))
    for first in range(0, children, size):
        encoding[first : first + size, first : first + size] = 1.0
    return Code("groups", stragglers, encoding)


@cache
def linear(children: int, stragglers: int) -> Code:
    """A linear code: the paper's own for (3, 1), else the cyclic one."""
    if stragglers == 0:
        return Code("linear", 0, np.eye(children))
    paper = (children, stragglers) == (3, 1)
    return Code("linear", stragglers, np.array(_PAPER_3_1) if paper else _cyclic(children, stragglers))


def _orthogonal(h: Matrix) -> Matrix:
    """B with ones on its diagonal, s + 1 entries a row, and rows orthogonal to those of |h|, of shape (s, n) (Tandon's
    Algorithm 2; docs/papers.md, section 4.1).
    """
    late, children = h.shape
    encoding = np.zeros((children, children))
    for child in range(children):
        rest = (child + 1 + np.arange(late)) % children
        encoding[child, child] = 1.0
        encoding[child, rest] = -np.linalg.solve(h[:, rest], h[:, child])
    return encoding


def _cyclic(children: int, stragglers: int) -> Matrix:
    """B from consecutive real frequencies of a Fourier matrix as the rows of H, which makes all columns of H equally
    hard to tell apart.

    The constant vector must be orthogonal to H. Where it can be, H holds the frequencies around n / 2. With both
    numbers odd, or both even, no choice of s real rows leaves it out. There another vector v without a zero is
    orthogonal to H, and column k of B is divided by v_k, which turns v into ones. Entries of v that differ in size
    enlarge the rounding, so v is the projection of alternating signs on all that is orthogonal to H. (With one wave of
    the highest frequency the amplification is 2 to 8 times larger.)
    """
    n, s, at = children, stragglers, np.arange(children)
    pairs, single = divmod(s, 2)
    around_half = (n + s) % 2 == 1
    away = [(1 + single) / 2 + offset for offset in range(pairs)]
    frequencies = [n / 2 - each for each in away] if around_half else away
    h = [np.cos(np.pi * at) if around_half else np.ones(n)] * single
    h += [wave(2 * np.pi * frequency * at / n) for frequency in frequencies for wave in (np.cos, np.sin)]
    encoding = _orthogonal(np.array(h))
    if around_half:
        return encoding
    # Frequencies of halves change their sign from one turn to the next; the phase keeps the wave from being zero.
    signs = np.sign(np.cos(np.pi * (n - 1) * at / n + (0.0 if single else np.pi / (2 * n))))
    free = np.linalg.svd(np.array(h))[2][s:]
    flat: Matrix = free.T @ (free @ signs)
    return encoding / flat
