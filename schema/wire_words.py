# SPDX-License-Identifier: Apache-2.0
"""The numbers of an op that cross the wire and the shared memory. They are never used again for something else.

transport_c/PROTOCOL.md and the dissector of tests/dissector tell them by themselves, as second readers; a test
compares.
"""

from __future__ import annotations

from schema.rows import Enum, Value

DTYPE = Enum(
    "ut_dtype",
    "UT_",
    (
        Value("FLOAT32", 1, "float32"),
        Value("FLOAT64", 2, "float64"),
        Value("FLOAT16", 3, "float16"),
        Value("BFLOAT16", 4, "bfloat16"),
        Value("INT32", 5, "int32"),
        Value("INT64", 6, "int64"),
        Value("BYTES", 7, text="Bytes of any meaning: they are moved, never reduced."),
    ),
    text="The type of an element. Those below UT_DTYPES_END can be reduced.",
    end="UT_DTYPES_END",
)
REDOP = Enum(
    "ut_redop",
    "UT_",
    (
        Value("SUM", 1, "sum"),
        Value("AVG", 2, "avg"),
        Value("MIN", 3, "min"),
        Value("MAX", 4, "max"),
        Value("PROD", 5, "prod"),
    ),
    text="How elements are reduced.",
    end="UT_REDOPS_END",
)
MODE = Enum(
    "ut_mode",
    "UT_",
    (
        Value("BOUNDED", 1, "bounded", "Losses are repaired as long as there is time."),
        Value("BEST_EFFORT", 2, "best_effort", "Nothing is sent again."),
        Value("RELIABLE", 3, "reliable", "The op is complete, or fails."),
    ),
    text="What becomes of losses.",
    end="UT_MODES_END",
)
FIELD = Enum(
    "ut_field",
    "UT_FIELD_",
    (
        Value("NONE", 0),
        Value("DTYPE", 1, "dtype"),
        Value("REDOP", 2, "op"),
        Value("COUNT", 3, "count"),
        Value("MODE", 4, "mode"),
        Value("AGREE", 5, "agree"),
        Value("ALGORITHM", 6, "algorithm"),
        Value("COLLECTIVE", 7, "collective"),
        Value("ROOT", 8, "root"),
        Value("DIVISOR", 9, "divisor"),
        Value("GROUP", 10, "group", "This and the next two: of sparse allreduces."),
        Value("FORM", 11, "form"),
        Value("HINT", 12, "hint"),
        Value("SPLIT", 13, "split", "Into portions (core/base/portion.h)."),
        Value("VIEW", 14, "view", "The id of the epoch (core/epoch/epoch.h)."),
        Value("WIRE", 15, "wire", "Forms of a quantised allreduce, as core/base/what.h has them; 0: a dense one."),
        Value("WEIGHT", 16, "weight", "Whether contributions have one."),
        Value("DOWN", 17, "down", "Of sparse allreduces: the form of answers, where it is not that of contributions."),
    ),
    text="In what the calls of an op differ.",
)
COLLECTIVE = Enum(
    "ut_collective",
    "UT_",
    (
        Value("ALLREDUCE", 0, "allreduce"),
        Value("REDUCE_SCATTER", 1, "reduce_scatter"),
        Value("ALL_GATHER", 2, "all_gather"),
        Value("BROADCAST", 3, "broadcast"),
        Value("ALL_TO_ALL", 4, "all_to_all"),
        Value("BARRIER", 5, "barrier", "An all-gather of a byte of each host."),
        Value("ALLREDUCE_SPARSE", 6, "allreduce_sparse", "An allreduce to which ranks give indices and values."),
        Value("ALLREDUCE_QUANT", 7, "allreduce_quant", "An allreduce that travels in few bits an element."),
    ),
    text="What an op does with the ranks' buffers (sched_shard.c). All but the first are reliable.",
    end="UT_COLLECTIVES_END",
    end_number=6,
)
WIRE_WORDS = (DTYPE, REDOP, MODE, FIELD, COLLECTIVE)
