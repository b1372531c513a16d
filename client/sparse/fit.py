# SPDX-License-Identifier: Apache-2.0
"""Values as curves (DeepReduce, section 5): sorted in descending order, gradients lie near a smooth curve, and its
coefficients are sent in the place of the values. What is lost is the order, which a reorder map keeps.

    Fit-Poly  positive and negative values apart, each cut at up to three knots into segments, and a polynomial of
              degree 5 on each
    Fit-DExp  y = a e^(bx) + c e^(dx) for each sign, x from 0 to 1; four coefficients, found without iteration

Curves are kept to the sign that they stand for. The numbers here are float64; coefficients travel as float32.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from ultima.sparse.container import refused
from ultima.sparse.kernels import Bytes, Floats
from ultima.sparse.value_codecs import raw_decode, raw_encode

Curve = npt.NDArray[np.float64]

DEGREE, SEGMENTS = 5, 4
DEGREE_MAX, SEGMENTS_MAX = 15, 255
DEXP_POINTS_MIN = 8
_POLY = struct.Struct("<BB")  # degree, segments of which values are positive; then each segment's length as u32
_DEXP = struct.Struct("<II")  # values that are not negative, and those that are
_LIMIT = float(np.finfo(np.float32).max)


def knot(y: Curve) -> tuple[int, float]:
    """The place that lies farthest from the chord through the first and last value, and its distance squared."""
    if y.size < 3:
        return 0, 0.0
    away = (np.linspace(y[0], y[-1], y.size) - y) ** 2
    at = int(np.argmax(away))
    return at, float(away[at])


def pieces_wanted(y: Curve) -> int:
    """The paper's heuristic (from its lemma 2): ceil(2 sqrt(M)), where M is how much the slope changes. It depends on
    the scale of the values: divide by the largest magnitude first."""
    if y.size < 2:
        return 1
    return max(1, math.ceil(2 * math.sqrt(abs((y[0] - y[1]) - (y[-2] - y[-1])))))


def cut(y: Curve, segments: int, degree: int) -> list[int]:
    """Lengths of up to `segments` pieces: again and again the piece that bends most is cut where it does. Both sides of
    a cut have degree + 1 points or more."""
    pieces = [(0, y.size)]

    def bend(piece: tuple[int, int]) -> tuple[float, int]:
        low, high = piece
        if high - low < 2 * (degree + 1):
            return 0.0, 0
        at, away = knot(y[low:high])
        return away, min(max(low + at, low + degree + 1), high - degree - 1)

    while len(pieces) < segments:
        bends = [bend(piece) for piece in pieces]
        worst = max(range(len(pieces)), key=lambda number: bends[number][0])
        away, at = bends[worst]
        if away == 0:
            break
        low, high = pieces[worst]
        pieces[worst : worst + 1] = [(low, at), (at, high)]
    return [high - low for low, high in pieces if high > low]


def _scaled(count: int) -> Curve:
    """`count` places from -1 to 1, where Chebyshev's polynomials are well conditioned."""
    return np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(count)


def _poly_values(lengths: list[int], positive: int, degree: int, coefficients: Curve) -> Floats:
    out, used = [], 0
    for number, length in enumerate(lengths):
        terms = min(degree + 1, length)
        y = chebyshev.chebval(_scaled(length), coefficients[used : used + terms])
        used += terms
        out.append(np.maximum(y, 0.0) if number < positive else np.minimum(y, 0.0))
    whole = np.concatenate(out) if out else np.empty(0)
    values: Floats = np.clip(whole, -_LIMIT, _LIMIT).astype(np.float32)
    return values


def poly_encode(y: Floats, segments: int = SEGMENTS, degree: int = DEGREE) -> tuple[bytes, Bytes]:
    """Of finite values in descending order."""
    split = int(np.searchsorted(-y, 0.0, side="right"))  # values that are not negative
    lengths, coefficients, positive = [], [], 0
    for part in (y[:split].astype(np.float64), y[split:].astype(np.float64)):
        pieces = cut(part, segments, degree) if part.size else []
        for low, length in zip(np.cumsum([0, *pieces]), pieces, strict=False):
            terms = min(degree + 1, length)
            coefficients.append(chebyshev.chebfit(_scaled(length), part[low : low + length], terms - 1))
        lengths += pieces
        positive = positive or len(lengths)
    positive = positive if split else 0
    flat = np.concatenate(coefficients) if coefficients else np.empty(0)
    flat = np.clip(flat, -_LIMIT, _LIMIT)
    return _POLY.pack(degree, positive) + np.array(lengths, "<u4").tobytes(), raw_encode(flat.astype(np.float32))


def poly_decode(parameters: bytes, packed: Bytes, count: int) -> Floats:
    """Values in descending order of what was encoded."""
    if len(parameters) < _POLY.size or (len(parameters) - _POLY.size) % 4:
        raise refused(f"{len(parameters)} bytes of parameters", "2 and 4 for each segment of Fit-Poly")
    degree, positive = _POLY.unpack_from(parameters)
    lengths = np.frombuffer(parameters, "<u4", offset=_POLY.size).tolist()
    if degree > DEGREE_MAX or positive > len(lengths) or sum(lengths) != count or 0 in lengths:
        raise refused(f"Fit-Poly of degree {degree}, segments {lengths[:8]}, {positive} of them positive",
                      f"a degree to {DEGREE_MAX}, and segments that add up to {count} values")  # fmt: skip
    terms = sum(min(degree + 1, length) for length in lengths)
    return _poly_values(lengths, positive, degree, _finite(raw_decode(packed, terms)))


def dexp_fit(x: Curve, y: Curve) -> tuple[float, float, float, float] | None:
    """(a, b, c, d) of y = a e^(bx) + c e^(dx), by the method of integrals: y = A SSy + B Sy + C x + D holds for the
    single and double integrals Sy and SSy of such a curve, and b and d are the roots of z^2 - B z - A. None where the
    roots are not real or the curve leaves float32.
    """
    if y.size < DEXP_POINTS_MIN:
        return None
    once = np.concatenate([[0.0], np.cumsum((y[1:] + y[:-1]) / 2 * np.diff(x))])
    twice = np.concatenate([[0.0], np.cumsum((once[1:] + once[:-1]) / 2 * np.diff(x))])
    columns = np.stack([twice, once, x, np.ones_like(x)], axis=1)
    (big_a, big_b, _, _), *_ = np.linalg.lstsq(columns, y, rcond=None)
    square = big_b * big_b + 4 * big_a
    if not math.isfinite(square) or square < 0:
        return None
    b, d = (big_b + math.sqrt(square)) / 2, (big_b - math.sqrt(square)) / 2
    if max(abs(b), abs(d)) > 80:  # e^80 is near the end of float32
        return None
    (a, c), *_ = np.linalg.lstsq(np.stack([np.exp(b * x), np.exp(d * x)], axis=1), y, rcond=None)
    found = (float(a), b, float(c), d)
    return found if all(math.isfinite(one) and abs(one) < 1e37 for one in found) else None


def dexp_encode(y: Floats) -> tuple[bytes, Bytes] | None:
    """Of finite values in descending order; None where the curve does not fit, for the caller to take Fit-Poly."""
    split = int(np.searchsorted(-y, 0.0, side="right"))
    coefficients: list[float] = []
    for part in (y[:split].astype(np.float64), y[split:].astype(np.float64)):
        if part.size == 0:
            continue
        found = dexp_fit(np.linspace(0.0, 1.0, part.size), part)
        if found is None:
            return None
        coefficients += found
    return _DEXP.pack(split, y.size - split), raw_encode(np.array(coefficients, np.float32))


def dexp_decode(parameters: bytes, packed: Bytes, count: int) -> Floats:
    if len(parameters) != _DEXP.size:
        raise refused(f"{len(parameters)} bytes of parameters", f"{_DEXP.size} of Fit-DExp")
    counts = _DEXP.unpack(parameters)
    if sum(counts) != count:
        raise refused(f"Fit-DExp of {counts[0]} and {counts[1]} values", f"{count} together")
    coefficients = _finite(raw_decode(packed, 4 * sum(bool(one) for one in counts))).reshape(-1, 4)
    if np.any(np.abs(coefficients[:, 1::2]) > 81):
        raise refused("a curve that leaves float32", "exponents to 80")
    out, used = [], 0
    for length, low, high in zip(counts, (0.0, -_LIMIT), (_LIMIT, 0.0), strict=True):
        if length:
            a, b, c, d = coefficients[used]
            used += 1
            x = np.linspace(0.0, 1.0, length)
            out.append(np.clip(a * np.exp(b * x) + c * np.exp(d * x), low, high))
    return np.concatenate(out).astype(np.float32) if out else np.empty(0, np.float32)


def _finite(coefficients: Floats) -> Curve:
    if not np.all(np.isfinite(coefficients)):
        raise refused("a coefficient that is not finite", "finite coefficients")
    return coefficients.astype(np.float64)
