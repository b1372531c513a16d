# SPDX-License-Identifier: Apache-2.0
"""The words of the interface and the numbers that stand for them in shared memory.

The numbers are those of `transport_c/core/base/ut.h`, `submission.h` and `receipt.h`. They are written again here so
that `ultima explain` and `ultima set` need no extension; a test compares those that are not generated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ultima.v1.job_options import POLICIES


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name, its number, bytes of one element, and the numpy type that holds it.

    numpy has no bfloat16: such elements travel as uint16, the upper half of the float32 that they stand for.
    """

    name: str
    code: int
    itemsize: int
    numpy: np.dtype[np.generic]


FLOAT32 = DType("float32", 1, 4, np.dtype(np.float32))
FLOAT64 = DType("float64", 2, 8, np.dtype(np.float64))
FLOAT16 = DType("float16", 3, 2, np.dtype(np.float16))
BFLOAT16 = DType("bfloat16", 4, 2, np.dtype(np.uint16))
INT32 = DType("int32", 5, 4, np.dtype(np.int32))
INT64 = DType("int64", 6, 8, np.dtype(np.int64))

INTEGERS = (INT32, INT64)

# What is only moved may be anything.
BYTES = DType("bytes", 7, 1, np.dtype(np.uint8))

DTYPES = {kind.name: kind for kind in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT32, INT64)}
DTYPE_BY_CODE = {kind.code: kind for kind in (*DTYPES.values(), BYTES)}
# C has two 64-bit integers on most machines, and numpy tells them apart by number: both mean int64.
DTYPE_BY_NUMPY_NUM = {
    np.dtype(letter).num: DTYPES[np.dtype(letter).name] for letter in "efdilq" if np.dtype(letter).name in DTYPES
}

# generated: words of the wire (schema/)
OPS = {"sum": 1, "avg": 2, "min": 3, "max": 4, "prod": 5}
MODES = {"bounded": 1, "best_effort": 2, "reliable": 3}
COLLECTIVES = {
    "allreduce": 0,
    "reduce_scatter": 1,
    "all_gather": 2,
    "broadcast": 3,
    "all_to_all": 4,
    "barrier": 5,
    "allreduce_sparse": 6,
    "allreduce_quant": 7,
}
FIELD_BY_CODE = {
    1: "dtype",
    2: "op",
    3: "count",
    4: "mode",
    5: "agree",
    6: "algorithm",
    7: "collective",
    8: "root",
    9: "divisor",
    10: "group",
    11: "form",
    12: "hint",
    13: "split",
    14: "view",
    15: "wire",
    16: "weight",
    17: "down",
}
# generated: end
OP_BY_CODE = {code: name for name, code in OPS.items()}
# Without a value from every rank these would be wrong rather than less exact.
RELIABLE_ONLY = frozenset({"min", "max", "prod"})

MODE_BY_CODE = {code: name for name, code in MODES.items()}

COLLECTIVE_BY_CODE = {code: name for name, code in COLLECTIVES.items()}

# How the values of a sparse allreduce travel; of float8 that is e4m3, with one scale for a contribution.
FORMS = {"float32": 0, "float16": 1, "bfloat16": 2, "float8": 3}
FORM_BY_CODE = {code: name for name, code in FORMS.items()}
# In what its answers travel, if it asks for another form than that of the contributions.
DOWNS = {"int8": 5}
DOWN_BY_CODE = {0: None} | {code: name for name, code in DOWNS.items()}
GROUP_MAX = 256

# In what a quantised allreduce travels, the finest first.
WIRES = {"int16": 4, "int8": 5, "int4": 6}
WIRE_BY_CODE = {code: name for name, code in WIRES.items()}

# What starts the ops of a job; "none" is the ordinary job, all others make it a partial one.
POLICY_BY_CODE = dict(enumerate(POLICIES, 1))

# generated: ut_status (schema/)
STATUS_COMPLETE = 1
STATUS_PARTIAL = 2
STATUS_INSUFFICIENT = 3
STATUS_FAILED = 4
STATUS_EMPTY = 5
STATUS_OVERTAKEN = 6
STATUS_BEHIND = 7
# generated: end
CULPRIT_NOBODY = 0xFFFF
RING_ENTRIES = 64
NEVER = 2**64 - 1
# Flags of a submission; from GIVE to WORLD of partial jobs, RETURN of sparse allreduces, WEIGHTED of others.
AGREE = 0x01
ADAPTIVE = 0x02
GIVE = 0x04
REPLACE = 0x08
STICKY = 0x10
NOWAIT = 0x20
WORLD = 0x40
RETURN = 0x80
WEIGHTED = 0x80
# A submission's `residual` has its place, plus one, in so many low bits, and above them the weight of what is given.
RESIDUAL_BITS = 40
WEIGHT_MAX = 2**24 - 1
# In a job with a policy the residual's place is told in units of so many bytes.
GIFT_RESIDUAL = 64

ERR_ARGUMENT = -1
ERR_FULL = -5
ERR_EXISTS = -6
ERR_DESYNC = -7
ERR_DTYPE = -8
ERR_REDOP = -9
ERR_RANGE = -10
ERR_TOO_LARGE = -11
ERR_TIMEOUT = -12
ERR_SEQUENCE = -13
ERR_CLOSED = -14
ERR_ABSENT = -16


def wire_words(forms: int) -> str | None:
    """The forms in which a quantised op travelled: of contributions, and, if they differ, of results. None for 0."""
    given, answered = WIRE_BY_CODE.get(forms & 15), WIRE_BY_CODE.get(forms >> 4)
    return given if given == answered else f"{given}/{answered}"


def field_value(field: str, number: int) -> object:
    """What `number` means as a value of `field`, for the message of a desync: a word, or the number itself."""
    if field == "dtype":
        kind = DTYPE_BY_CODE.get(number)
        return kind.name if kind is not None else number
    if field == "op":
        return OP_BY_CODE.get(number, number)
    if field == "mode":
        return MODE_BY_CODE.get(number, number)
    if field == "collective":
        return COLLECTIVE_BY_CODE.get(number, number)
    if field == "form":
        return FORM_BY_CODE.get(number, number)
    if field == "down":
        return DOWN_BY_CODE.get(number, number)
    if field == "wire":
        return wire_words(number) or "none"
    if field == "agree":
        return bool(number)
    if field == "weight":
        return "given" if number else "none"
    if field == "divisor":
        return "world" if number else "contributors"
    if field == "split":
        return f"{(number & 15) + 1} of {number >> 4}" if number else "not split"
    return number
