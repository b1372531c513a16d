# SPDX-License-Identifier: Apache-2.0
"""What single buckets do differently: a table by index, or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ultima.base.checks import check_switch
from ultima.base.durations import Duration, deadline_s
from ultima.base.errors import InvalidArgument
from ultima.base.words import MODES, WIRES

DENSE = "float32"
"""How a bucket travels that nothing is rounded of."""
LAST = "last"
"""Key of a policy's table: the last bucket of a backward pass."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket as a policy sees it.

    index: counts from 0 in the order of sending.
    nbytes: size of the bucket, in bytes.
    dtype: type of its elements.
    last: whether it is the last one of a backward pass.
    """

    index: int
    nbytes: int
    dtype: torch.dtype
    last: bool


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """How a bucket goes; None for what the state says. Raises InvalidArgument.

    mode: "bounded", "best_effort" or "reliable", as for `ultima.Job.allreduce`.
    deadline: of the bucket's op: seconds, a timedelta, or text such as "250ms".
    hadamard: whether a float32 bucket that may lose something travels transformed.
    wire: of a QuantState alone: "float32" for a bucket that goes dense, or "int16", "int8" or "int4", as for
        `ultima.Job.allreduce`. Answers are in the state's form, if that is as fine, and else in this one.
    """

    mode: str | None = None
    deadline: Duration | None = None
    hadamard: bool | None = None
    wire: str | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise InvalidArgument("mode", self.mode, ", ".join(MODES))
        if self.deadline is not None:
            deadline_s(self.deadline, "deadline")
        check_switch(self.hadamard, "hadamard")
        if self.wire not in (None, DENSE, *WIRES):
            raise InvalidArgument("wire", self.wire, ", ".join((DENSE, *WIRES)))


Policy = Callable[[Bucket], BucketOptions] | Mapping[int | str, BucketOptions]
"""A function of a `Bucket`, or a table by index or LAST. It says the same on all ranks."""


def check_table(policy: Any) -> None:
    """Raises InvalidArgument for all but a table of BucketOptions by index or LAST."""
    if not isinstance(policy, Mapping):
        raise InvalidArgument("policy", policy, "a function of a Bucket, or a table by index or 'last'")
    for key, options in policy.items():
        if key != LAST and (not isinstance(key, int) or key < 0):
            raise InvalidArgument("policy", f"the key {key!r}", "an index from 0, or 'last'")
        if not isinstance(options, BucketOptions):
            raise InvalidArgument("policy", f"{options!r} at {key!r}", "BucketOptions")


def options_of(policy: Policy | None, bucket: Bucket) -> BucketOptions | None:
    """What a policy says of a bucket; None for nothing. Raises InvalidArgument."""
    if policy is None:
        return None
    if not callable(policy):
        return policy.get(LAST) if bucket.last and LAST in policy else policy.get(bucket.index)
    said = policy(bucket)
    if not isinstance(said, BucketOptions):
        raise InvalidArgument("policy", f"a function that returned {said!r}", "one that returns BucketOptions")
    return said
