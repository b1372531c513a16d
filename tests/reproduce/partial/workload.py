# SPDX-License-Identifier: Apache-2.0
"""How long steps of real training take: the distributions of eager-SGD's Figures 2 to 4, and the papers' injections.

The papers give range, mean and standard deviation. A shifted log-normal, clipped to the range, is fitted to them: the
two parameters are those for which mean and deviation *after* clipping are the given ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
# The quantiles over which the fit takes its moments: dense, so that the tails count as they should.
_LEVELS = (np.arange(200_000) + 0.5) / 200_000


@dataclass(frozen=True)
class Workload:
    """One distribution: its range, mean and standard deviation, as the paper gives them."""

    name: str
    low: float
    high: float
    mean: float
    sd: float
    shift: float = 0.0
    """What the log-normal is added to."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
        mu, sigma = self.fit()
        return self._clipped(np.exp(mu + sigma * rng.standard_normal(shape)))

    def fit(self) -> tuple[float, float]:
        """mu and sigma of the logarithm. Raises ValueError when no clipped log-normal has these moments."""
        return _fit(self)

    def _clipped(self, x: Values) -> Values:
        return np.clip(self.shift + x, self.low, self.high)


VIDEOS = Workload("UCF101 videos, frames", 29, 1776, 187, 97)
BATCHES = Workload("UCF101 batches, ms", 201, 3410, 1235, 706)
SENTENCES = Workload("WMT batches, ms", 179, 3482, 475, 144)
CLOUD = Workload("ResNet-50 in the cloud, ms", 399, 1892, 454, 116, shift=380)
ALL = (VIDEOS, BATCHES, SENTENCES, CLOUD)


@cache
def _normal() -> Values:
    """Quantiles of the standard normal at _LEVELS, from its distribution by interpolation."""
    from math import erf, sqrt

    grid = np.linspace(-6, 6, 4001)
    below = np.array([0.5 * (1 + erf(x / sqrt(2))) for x in grid])
    return np.interp(_LEVELS, below, grid)


@cache
def _fit(work: Workload) -> tuple[float, float]:
    z = _normal()
    inner = work.mean - work.shift
    variance = np.log1p((work.sd / inner) ** 2)
    mu, sigma = np.log(inner) - variance / 2, np.sqrt(variance)
    for _ in range(200):
        if not sigma < 8:  # nothing but the two ends of the range
            break
        x = work._clipped(np.exp(mu + sigma * z))
        if abs(x.mean() / work.mean - 1) < 1e-4 and abs(x.std() / work.sd - 1) < 1e-4:
            return float(mu), float(sigma)
        # Each moment answers mostly to its own parameter: follow both, the deviation with care.
        mu += np.log(inner / (x.mean() - work.shift))
        sigma *= (work.sd / x.std()) ** 0.5
    raise ValueError(f"{work.name}: no clipped log-normal has this mean and deviation")


def one_slow(steps: int, ranks: int, base: float, extra: float, slow: int, rng: np.random.Generator) -> Values:
    """[step, rank]: |base|, and |extra| more on |slow| ranks drawn anew in every step (eager-SGD's hyperplane job)."""
    time = np.full((steps, ranks), base)
    chosen = np.argsort(rng.random((steps, ranks)), axis=1)[:, :slow]
    np.put_along_axis(time, chosen, base + extra, axis=1)
    return time


def shifting(steps: int, ranks: int, base: float, low: float, high: float) -> Values:
    """[step, rank]: |base| and an extra from |low| to |high| that moves on by a rank in every step (its Figure 12)."""
    extra = np.linspace(low, high, ranks)
    return base + extra[(np.arange(ranks) + np.arange(steps)[:, None]) % ranks]


def uniform(steps: int, ranks: int, base: float, low: float, high: float, rng: np.random.Generator) -> Values:
    """[step, rank]: |base| and an extra drawn from |low| to |high| for each alone (RNA's setting)."""
    return base + rng.uniform(low, high, (steps, ranks))
