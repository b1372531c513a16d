# SPDX-License-Identifier: Apache-2.0
"""The words of options. The first of each is the default; 0, in C and in messages, stands for it, too."""

from __future__ import annotations

from schema.rows import Enum, Value

ALGORITHM = Enum(
    "ut_algorithm",
    "UT_",
    (
        Value("TAR", 1, "tar", "Every host owns a shard."),
        Value("RING", 2, "ring"),
        Value("BCUBE", 3, "bcube"),
        Value("PS", 4, "ps", "A parameter server."),
        Value("TREE", 5, text="That of coded jobs with children; it cannot be asked for."),
    ),
    text="The schedule of a job's allreduces.",
    end="UT_ALGORITHMS_END",
)
CONGESTION = Enum(
    "ut_congestion",
    "UT_CC_",
    (
        Value("SWIFT", 1, "swift", "Delay."),
        Value("DCTCP", 2, "dctcp", "Congestion marks."),
        Value("TIMELY", 3, "timely", "Delay."),
        Value("NONE", 4, "none", "The receiver's credit alone."),
    ),
    text="What makes a host send more slowly.",
    end="UT_CC_END",
)
HADAMARD = Enum(
    "ut_hadamard",
    "UT_HADAMARD_",
    (
        Value("OFF", 1, "off"),
        Value("ON", 2, "on"),
        Value("AUTO", 3, "auto", "According to the loss that is left after repair."),
    ),
    text="Whether buckets travel transformed.",
    end="UT_HADAMARD_END",
)
TIMER_START = Enum(
    "ut_timer_start",
    "UT_TIMER_",
    (
        Value("RENDEZVOUS", 1, "rendezvous", "When all hosts that are up were heard to have called the op."),
        Value("LOCAL", 2, "local", "The host's own call, as in the paper."),
    ),
    text="When t_B begins to run.",
    end="UT_TIMER_END",
)
POLICY = Enum(
    "ut_policy",
    "UT_POLICY_",
    (
        Value("NONE", 1, "none", "Every rank calls every op."),
        Value("FULL", 2, "full", "Only the ranks themselves: each host joins when all its ranks have given."),
        Value("SOLO", 3, "solo", "The first rank that has given (eager-SGD)."),
        Value("MAJORITY", 4, "majority", "One rank, drawn anew for each op from the job's seed (eager-SGD)."),
        Value("QUORUM", 5, "quorum", "As many ranks that have given as `quorum` says."),
        Value(
            "PROBE", 6, "probe", "The first of `probes` ranks that the job's controller, a daemon, finds ready (RNA)."
        ),
        Value(
            "SEEDED", 7, "seeded", "The first ready of `probes` ranks drawn from the job's seed, without a controller."
        ),
        Value(
            "CODED",
            8,
            "coded",
            "The first rank that has given; who gives while the op runs is in, until the sum can be had (CodedReduce).",
        ),
    ),
    text="What starts the ops of a job (activate.c). All but NONE make the job partial: an op takes what the ranks "
    "have given when it starts, and goes on without ranks that have given nothing.",
    end="UT_POLICIES_END",
)
CODE = Enum(
    "ut_code",
    "UT_CODE_",
    (
        Value("GROUPS", 1, "groups", "Each rank of a group computes the same data: one of them is enough."),
        Value("LINEAR", 2, "linear", "Each rank sends a combination of several parts; the sum is one of these."),
    ),
    text="How the ranks of a coded job share its data.",
    end="UT_CODES_END",
)
EXACT = Enum(
    "ut_exact",
    "UT_EXACT_",
    (
        Value("YES", 1, "yes", "The step fails."),
        Value("NO", 2, "no", "The step ends with an estimate of the sum."),
    ),
    text="What becomes of an op of a coded job when the sum over all data cannot be had.",
    end="UT_EXACT_END",
)
SPLIT = Enum(
    "ut_split",
    "UT_SPLIT_",
    (
        Value(
            "AUTO",
            1,
            "auto",
            "They are. The job has one lane at least, and no more than each host has CPUs besides one for each rank.",
        ),
        Value("NEVER", 2, "never", "They are not; the job has as many lanes as with AUTO."),
        Value("ALWAYS", 3, "always", "They are; the job has as many lanes as each host has."),
    ),
    text="Whether large calls are split over the lanes of the job. Trainers do it; an engine knows portions alone.",
    end="UT_SPLIT_END",
)
DETERMINISTIC = Enum(
    "ut_deterministic",
    "UT_DETERMINISTIC_",
    (Value("NO", 1, "no"), Value("YES", 2, "yes")),
    text="Whether sums have the same bits whatever order contributions come in.",
    end="UT_DETERMINISTIC_END",
)
OPTION_WORDS = (ALGORITHM, CONGESTION, HADAMARD, TIMER_START, POLICY, CODE, EXACT, SPLIT, DETERMINISTIC)
