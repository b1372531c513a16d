# SPDX-License-Identifier: Apache-2.0
"""Rounds of the largest elements alone, with error feedback (SparseLoCo, Sarfi et al. 2025).

    x = theta - phi + keep * e;  given: the largest of each 4,096 elements of x;  e' = x - what was given

e is what a rank did and has not given yet. Its parameters follow the outer model, as they do where all is given; where
a range of what it gave did not arrive, both stay as they were. Values are bfloat16 in sparse packets; so are the sums.
"""

from __future__ import annotations

import numpy as np

from ultima.api.handle import Handle
from ultima.api.job import Job
from ultima.base.durations import Duration
from ultima.base.sparse_form import rounded
from ultima.local.carrier import Carrier
from ultima.local.marks import Sizes
from ultima.local.round_kernels import Bools, Floats
from ultima.local.values import Layout
from ultima.local.vector import Vector

CHUNK = 4096  # elements among which the largest are chosen
KEEP = 0.95
"""The share of what was not given that is kept from one round to the next, where none is named."""
FORM = "bfloat16"


class TopCarrier(Carrier):
    """See Carrier. share: of the elements, that are given. keep: of e. longest: elements of a fragment, at most."""

    def __init__(
        self, job: Job, vectors: Vector, share: float, keep: float, fragments: int, longest: int,
        deadline: Duration | None,
    ) -> None:  # fmt: skip
        super().__init__(job, vectors, "float32", False, fragments, deadline)
        self._share, self._keep = share, np.float32(keep)
        self.residuals = [np.zeros(longest, np.float32) for _ in range(fragments)]
        self._rest = np.empty(0, np.float32)
        # An op of the state says the same: a rank that is behind does not know which is one.
        self._hint = min(vectors.count, int(share * longest) + vectors.ranges + 1)

    def give(self, fragment: int, theta: Floats, sent: Floats, weight: float, sizes: Sizes | None) -> None:
        """See Carrier; 0 where nothing is given."""
        assert self.residuals is not None
        x = theta - sent + self._keep * self.residuals[fragment][: theta.size]
        where = largest_of(x, self._share)
        given = rounded(x[where] * np.float32(weight), FORM)
        x[where] -= given / np.float32(weight)
        self._rest = x
        whole = np.zeros(theta.size, np.float32)
        whole[where] = given
        self._vectors.put(self.vector, whole)

    def start(self, fragment: int, gives: bool) -> Handle:
        """See Carrier."""
        self._fed = gives
        entries = np.flatnonzero(self.vector)
        return self._job.allreduce_sparse_async(
            entries.astype(np.uint32), self.vector[entries], self.vector, op="sum", hint=self._hint, form=FORM,
            mode="bounded", agree=self._agree, deadline=self._deadline,
        )  # fmt: skip

    def settle(self, fragment: int, mine: Bools) -> None:
        """See Carrier."""
        if not self._fed or not self._rest.size:
            return
        assert self.residuals is not None
        there = np.repeat(mine, self._vectors.range)[: self._rest.size]
        np.copyto(self.residuals[fragment][: self._rest.size], self._rest, where=there)

    def _rest_of(self) -> Floats:
        return self._rest  # `weighted` makes another one


def largest_of(values: Floats, share: float) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Where the largest magnitudes of each CHUNK elements are, `share` of them and one at least; ascending."""
    whole = values.size // CHUNK * CHUNK
    found = []
    for rows, first in ((values[:whole].reshape(-1, CHUNK), 0), (values[None, whole:], whole)):
        if rows.size:
            count = max(1, round(share * rows.shape[1]))
            at = np.argpartition(np.abs(rows), rows.shape[1] - count, axis=1)[:, rows.shape[1] - count :]
            found.append((first + at + np.arange(len(rows))[:, None] * rows.shape[1]).reshape(-1))
    return np.sort(np.concatenate(found))


def carrier_of(
    job: Job, vectors: Vector, wire: str, sparse: float | None, feedback: bool | float | None, layout: Layout,
    deadline: Duration | None,
) -> Carrier:  # fmt: skip
    """What carries rounds as `Outer` was told."""
    if sparse is None:
        keeps = wire == "int4" if feedback is None else bool(feedback)
        return Carrier(job, vectors, wire, keeps, layout.fragments, deadline)
    keep = KEEP if feedback is None else float(feedback)
    return TopCarrier(job, vectors, sparse, keep, layout.fragments, int(layout.longest), deadline)
