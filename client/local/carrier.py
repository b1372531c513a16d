# SPDX-License-Identifier: Apache-2.0
"""How the vector of a round travels: in memory that the daemon shares, as it is or in few bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ultima.api.handle import Handle
from ultima.api.job import ElasticJob, Job
from ultima.base.durations import Duration
from ultima.base.errors import (
    DaemonLost,
    DaemonUnavailable,
    DeadlineExceeded,
    JoinTimeout,
    RanksGone,
    ResourceExhausted,
)
from ultima.local.marks import Sizes
from ultima.local.round_kernels import Bools, Floats
from ultima.local.vector import Vector

ABSENT = (DeadlineExceeded, RanksGone, DaemonLost, DaemonUnavailable, JoinTimeout)
"""What an op raises of which other ranks may have a result."""


class Carrier:
    """The vector of one rank, and what rounding took of what it gave, by fragment.

    What rounding took belongs to the rank, whichever seat it has: it is what this rank did and nobody has. A newcomer
    begins with none, and who leaves takes it along.
    """

    def __init__(
        self, job: Job, vectors: Vector, wire: str, feedback: bool, fragments: int, deadline: Duration | None
    ) -> None:
        self._job, self._vectors, self._wire, self._deadline = job, vectors, wire, deadline
        self._agree = not isinstance(job, ElasticJob)  # there company.py looks whether a result is whole
        self.residuals: list[Floats] | None = None
        """None where nothing is kept."""
        if feedback:
            self.residuals = [np.zeros(vectors.count, np.float32) for _ in range(fragments)]
        self.vector = self._left = np.empty(0, np.float32)
        self._fed = False
        self._lost: tuple[int, Floats] | None = None

    def prepare(self) -> None:
        """Memory that the daemon shares: anew, after it was lost."""
        if self.vector.size and self._job.holds(self.vector.ctypes.data, self.vector.nbytes):
            return
        count = self._vectors.count
        self.vector = self._left = np.empty(0, np.float32)
        try:
            self.vector = self._job.empty(count)
            if self.residuals is not None:
                self._left = self._job.empty(count)
        except (ResourceExhausted, *ABSENT):
            self.vector, self._left = np.empty(count, np.float32), np.empty(count, np.float32)

    def give(self, fragment: int, theta: Floats, sent: Floats, weight: float, sizes: Sizes | None) -> None:
        """Puts this rank's data of a round into the vector: weight (theta - sent). sizes: where values travel in few
        bits. What is not given for their sake is taken back from `sent`."""
        rows = self._vectors.rows(self.vector)
        if sizes is None:
            rows.give(theta, sent, weight)
        else:
            near, most = sizes.near / np.float32(weight), sizes.far / weight
            rows.give_bounded(theta, sent, weight, near, self._vectors.near, most)

    def start(self, fragment: int, gives: bool) -> Handle:
        """Starts the op that sums the vectors. gives: this rank's progress in the fragment is in it. Raises as
        `Job.allreduce_async`."""
        quant: dict[str, Any] = {}
        if self._wire != "float32":
            quant = {"wire": self._wire, "answer": "int8" if self._wire == "int4" else None}
            self._fed = self.residuals is not None and self._job.holds(self._left.ctypes.data, self._left.nbytes)
            if self.residuals is not None and self._fed:
                self._left[:] = self.residuals[fragment] if gives else 0
                quant["feedback"] = self._left
        return self._job.allreduce_async(
            self.vector, "sum", agree=self._agree, mode="bounded", deadline=self._deadline, **quant
        )

    def settle(self, fragment: int, mine: Bools) -> None:
        """Keeps what rounding took; in ranges that are not `mine` what it had taken before."""
        if self.residuals is None or not self._fed:  # without room for it, rounding was at random and left nothing
            return
        self._vectors.take_back(self._left, self.residuals[fragment], ~mine)
        self._vectors.keep_marks_out(self._left)
        self.residuals[fragment][:] = self._left

    def failed(self, fragment: int, gave: bool) -> None:
        """This rank has no result of an op, and others may have one: what is kept stays, and what would be kept if they
        have all that it `gave` of the fragment waits for what they say."""
        self._lost = (fragment, self._rest_of()) if gave and self._fed else None

    def taken(self) -> None:
        """They have it."""
        if self._lost is not None and self.residuals is not None:
            fragment, rest = self._lost
            self.residuals[fragment][: rest.size] = rest
        self._lost = None

    def _rest_of(self) -> Floats:
        """What is kept of the last op if all of it was taken. It is not written to."""
        rest = self._left.copy()
        self._vectors.keep_marks_out(rest)
        return rest
