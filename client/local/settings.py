# SPDX-License-Identifier: Apache-2.0
"""The arguments of `Outer` that are words, and what they mean."""

from __future__ import annotations

import numpy as np

from ultima.api.job import ElasticJob, Job
from ultima.base.checks import check_number, check_whole, check_whole_between
from ultima.base.durations import Duration, duration_s
from ultima.base.errors import InvalidArgument
from ultima.local.rules import Nesterov
from ultima.settings.config import DEFAULT_DEADLINE_S

WEIGHTS = ("equal", "tokens")
NONFINITE = ("reset", "raise")
AUTO = "auto"
# Passes that carry a float32 value as it is: each leaves at most a 2^15th, 2^7th, 2^3rd or 2^8th of what came to it.
PASSES = {"float32": 1, "int16": 3, "int8": 5, "int4": 10, "topk": 3}
COPIES = 4  # times what the first copy of the model took, which a round has at least
WIRES = ("float32", "int16", "int8", "int4")


def check_schedule(every: int, fragments: int, delay: int, alpha: float) -> None:
    """Raises InvalidArgument."""
    check_whole(every, "every", 1)
    check_whole_between(fragments, "fragments", 1, every)
    check_whole_between(delay, "delay", 0, every)
    check_number(alpha, "alpha", 0.0, 1.0)


def seats_of(job: Job) -> int:
    """How many ranks it can have."""
    return job.seats if isinstance(job, ElasticJob) else job.world_size


def check_words(wire: str, weight: float | str, nonfinite: str) -> None:
    """Raises InvalidArgument."""
    if wire not in WIRES:
        raise InvalidArgument("wire", wire, "one of " + ", ".join(WIRES))
    if nonfinite not in NONFINITE:
        raise InvalidArgument("nonfinite", nonfinite, "one of " + ", ".join(NONFINITE))
    if (isinstance(weight, str) and weight not in WEIGHTS) or (not isinstance(weight, str) and not weight > 0):
        raise InvalidArgument("weight", weight, "one of " + ", ".join(WEIGHTS) + ", or a number above 0")


def check_sparse(sparse: float | None, wire: str, feedback: bool | float | None) -> None:
    """Raises InvalidArgument."""
    if sparse is None:
        if feedback is not None and not isinstance(feedback, bool):
            raise InvalidArgument("feedback", feedback, "True, False or None; a number with sparse alone")
        return
    check_number(sparse, "sparse", 0.0, 1.0)
    if not sparse:
        raise InvalidArgument("sparse", sparse, "above 0, to 1")
    if wire != "float32":
        raise InvalidArgument("wire", wire, "float32, the default, with sparse: its values travel as bfloat16")
    if feedback is not None:
        check_number(float(feedback), "feedback", 0.0, 1.0)


def deadline_of(job: Job, said: Duration | None, copied_s: float) -> Duration | None:
    """Of a round: as it was said here or for the job. Where nothing was: a round of float32 takes about as long as the
    first copy of the model, and on a slow way that may be longer than an op has; it has four times as long then."""
    enough = COPIES * copied_s <= DEFAULT_DEADLINE_S
    return said if said is not None or enough or not job._connection.settings.adaptive else COPIES * copied_s


def check_grace(grace: Duration | None) -> float | str | None:
    """Seconds, "auto" or None. Raises InvalidArgument."""
    if grace is None or grace == AUTO:
        return AUTO if grace else None
    try:
        return duration_s(grace, "grace")
    except InvalidArgument as error:
        raise InvalidArgument("grace", grace, f"'auto', None or {error.allowed}") from None


def quorum_of(quorum: int | str, ranks: int) -> int:
    """How many ranks are meant. Raises InvalidArgument."""
    if isinstance(quorum, str):
        named = {"majority": ranks // 2 + 1, "all": ranks}
        if quorum not in named:
            raise InvalidArgument("quorum", quorum, "a number, majority or all")
        return named[quorum]
    check_whole_between(quorum, "quorum", 1, ranks)
    return quorum


def weight_of(weight: float | str, tokens: float, steps: int) -> float:
    """What a rank counts as that made so many steps of so many tokens together; a float32 above 0."""
    if weight == "equal":
        return 1.0
    return float(np.float32(tokens / max(1, steps) or 1.0 if weight == "tokens" else weight))


def rule_of(outer: object) -> Nesterov:
    """The outer rule; its kernel knows no other one. Raises InvalidArgument."""
    if outer is not None and type(outer) is not Nesterov:
        raise InvalidArgument("outer", type(outer).__name__, "an ultima.Nesterov")
    return outer or Nesterov()
