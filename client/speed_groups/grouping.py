# SPDX-License-Identifier: Apache-2.0
"""Which ranks belong together: RNA's rule for a cluster that mixes fast machines with slow ones (docs/papers.md,
section 3.4).

A probabilistic choice of the initiator hides slowness that comes and goes. It cannot hide a machine that is always
slow, so ranks are grouped by speed first: with zeta the gap between the slowest and the fastest mean iteration time and
v the mean of them all, zeta > v splits the ranks into those at most v and those above, and each part again, until no
gap exceeds its mean. Because v holds the base time of an iteration too, equal extra delays split a job of short
iterations and leave one of long iterations whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ultima.base.errors import InvalidArgument

WINDOW = 20
"""Iterations of the profile, unless the caller says otherwise."""


def iteration_time(samples: Sequence[float], window: int = WINDOW) -> float:
    """The exponentially weighted mean of a rank's last |window| iteration times; |samples| has them oldest first.

    Each newer sample weighs 1 / (1 - a) of the one before, with a = 2 / (window + 1), and the weights add up to one, so
    a short profile has no bias towards its first sample. The unit is that of |samples|. Raises InvalidArgument.
    """
    whole: object = window
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < 1:
        raise InvalidArgument("window", window, "a whole number of iterations from 1")
    if not len(samples):
        raise InvalidArgument("samples", samples, "at least one iteration time")
    kept = [_time("samples", one) for one in samples[-window:]]
    keep = 1 - 2 / (window + 1)
    weights = [keep**age for age in range(len(kept) - 1, -1, -1)]
    return math.fsum(weight * one for weight, one in zip(weights, kept, strict=True)) / math.fsum(weights)


def groups(times: Sequence[float]) -> list[list[int]]:
    """The ranks by group, fastest group first, ranks ascending in each; |times| holds a mean iteration time by rank.

    Every rank is in exactly one group; a group may hold a single rank. All callers that know the same times find the
    same groups. Raises InvalidArgument.
    """
    if not len(times):
        raise InvalidArgument("times", times, "a mean iteration time of each rank")
    checked = [_time("times", one) for one in times]
    return _split(list(range(len(checked))), checked)


def _split(ranks: list[int], times: Sequence[float]) -> list[list[int]]:
    own = [times[rank] for rank in ranks]
    mean = fmean(own)
    if max(own) - min(own) <= mean:
        return [ranks]
    # Neither part is empty: the slowest is more than the mean away from the fastest, so it lies above the mean.
    fast, slow = ([rank for rank in ranks if (times[rank] > mean) == above] for above in (False, True))
    return _split(fast, times) + _split(slow, times)


def _time(field: str, value: object) -> float:
    # numpy's own scalars are welcome: they know how to be a float.
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
        raise InvalidArgument(field, value, "finite times above 0")
    time = float(value)
    if not math.isfinite(time) or time <= 0:
        raise InvalidArgument(field, value, "finite times above 0")
    return time
