# SPDX-License-Identifier: Apache-2.0
"""The words of a receipt: the enums of core/base/receipt.h, and what Python calls their numbers."""

from __future__ import annotations

from schema.rows import Enum, Value

STATUS = Enum(
    "ut_status",
    "UT_",
    (
        Value(
            "COMPLETE",
            1,
            "COMPLETE",
            "Every element holds the contribution of every rank; where data is only moved, all of it has come.",
            brief="every byte holds every rank's contribution",
        ),
        Value(
            "PARTIAL",
            2,
            "PARTIAL",
            "Usable: each element is reduced over the ranks that reached it, and an average is divided by their "
            "number.",
            brief="usable; each byte is divided by the number of ranks in it, see `peer`",
        ),
        Value(
            "INSUFFICIENT",
            3,
            "INSUFFICIENT",
            "Nothing of any other host is in it or, where all ranks share one host, nothing of any other rank: "
            "the result is this host's, or this rank's, own value.",
            brief="nothing of any other host is in it, or in a job on one host nothing of any other rank: the buffer "
            "holds this host's own value",
        ),
        Value(
            "FAILED",
            4,
            "FAILED",
            "There is no result. Only the receipt that an exception carries says so.",
            brief="`error` says why; dst is unspecified",
        ),
        Value(
            "EMPTY", 5, text="Partial jobs: no such result yet; dst is untouched, and what was given waits for an op."
        ),
        Value(
            "OVERTAKEN", 6, text="Partial jobs: the contribution to be replaced is in an op already; nothing was done."
        ),
        Value("BEHIND", 7, text="Coded jobs: the result of the step that was asked for is not here, and will not be."),
    ),
    text="How much an op reached.",
    python="Status",
)

STAGE_END = Enum(
    "ut_stage_end",
    "UT_END_",
    (
        Value("NONE", 0, "none", "It did not end."),
        Value("COMPLETE", 1, "complete", "Everything is there."),
        Value("DEADLINE", 2, "deadline", "The deadline came or, in best effort, t_b was over."),
        Value(
            "ABSENT", 3, "absent", "Nothing more could come: all that was missing belongs to hosts known to be gone."
        ),
        Value(
            "EARLY",
            4,
            "early",
            "In best effort: every sender's last packets were seen; waiting on for what was lost would have "
            "bought little.",
            brief="t_C is over, or in best effort the senders have nothing more to send",
        ),
    ),
    text="What ended a stage of the op.",
    python="StageEnd",
)

WHY = Enum(
    "ut_missing",
    "UT_MISSING_",
    (
        Value("NOTHING", 0, "nothing missing", "All that was due of it has come."),
        Value("ABSENT", 1, "absent", "The host is known to be gone."),
        Value("SILENT", 2, "silent", "Nothing was heard of it during the op."),
        Value("LOST", 3, "lost", "It sent, but some packets did not come through in time."),
        Value("CLOSED", 4, "closed", "It left the job."),
        Value("VIEW", 5, "view", "It ran this op under another view of the job: its daemon knew of another epoch."),
    ),
    text="Why bytes of a host are missing.",
    python="Why",
)

TROUBLE = Enum(
    "ut_trouble",
    "UT_TROUBLE_",
    (
        Value("NONE", 0, "nothing", "Nobody is to blame, or it is not known for what."),
        Value("SENDER", 1, "slow sender", "It called the op late, or stood still, and nothing was lost meanwhile."),
        Value("PATH", 2, "slow path", "It sent in time, but its data came late or was lost on the way."),
        Value(
            "RECEIVER",
            3,
            "slow receiver",
            "Its kernel dropped what had arrived: the socket buffer is too small, or the host has too little CPU time.",
        ),
        Value("GONE", 4, "gone", "It is known to be gone, or was silent all the time."),
        Value(
            "UDP",
            5,
            "udp blocked",
            "Its daemon answers over TCP, and UDP to it or from it does not get through at all: a firewall, most "
            "likely.",
        ),
        Value(
            "DAEMON",
            -1,
            "daemon short of CPU",
            "This rank's own daemon lives, and did not answer in time: it is short of CPU time, or stopped. Such "
            "a receipt is made without it. The other ranks may have this rank's values in their results.",
        ),
    ),
    text="What ails the host that is to blame.",
    python="Trouble",
)

GIFT = Enum(
    "ut_slot",
    "UT_SLOT_",
    (
        Value("NULL", 0, "null", "Nothing: the op went without this rank."),
        Value("FRESH", 1, "fresh", "What was given for this op."),
        Value("STALE", 2, "stale", "What was given for an earlier one, alone or with newer."),
    ),
    text="What an op of a job with a policy found of this rank when it started: its gift.",
    python="Gift",
)

ENUMS = (STATUS, GIFT, STAGE_END, TROUBLE, WHY)
