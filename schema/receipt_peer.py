# SPDX-License-Identifier: Apache-2.0
"""The row of one host in a receipt: struct ut_receipt_peer, OpReceiptPeer, PeerReceipt."""

from __future__ import annotations

from schema.receipt_words import ENUMS
from schema.rows import Field, Struct

ROWS = (
    Field("Index of the host in the job.", python="host: int", read="host.index"),
    Field("Ranks of the host, ascending.", python="ranks: tuple[int, ...]", read="host.ranks"),
    Field(
        "Bytes that were due in the first stage (its contribution to our shard) and in the second (the shard "
        "that it reduced).",
        c="uint64_t expected[2]",
        at=0,
        proto=1,
        python="expected_bytes: tuple[int, int]",
        read="(@[0], @[1])",
    ),
    Field(
        "How many of those bytes had not come when the stage ended.",
        c="uint32_t missing[2]",
        at=16,
        proto=2,
        python="missing_bytes: tuple[int, int]",
        read="(@[0], @[1])",
    ),
    Field(
        "Number of ranks that are summed in what it sent; 0 if nothing came.",
        c="uint16_t weight",
        at=24,
        proto=3,
        python="weight: int",
    ),
    Field(
        "Why bytes of it are missing.",
        c="uint8_t why",
        at=26,
        proto=4,
        python="why: Why",
        read="_one_of(WHYS, @)",
        brief="enum ut_missing",
    ),
    Field(
        "When its last byte came, in seconds after the start of the op; None if none came.",
        c="uint32_t last_us",
        at=32,
        proto=7,
        python="last_s: float | None",
        read="@ * 1e-6 if @ else None",
        brief="when its last byte of the op came; 0 if none",
    ),
    Field(
        "What ails it, if it is to blame; NONE in a complete op.",
        c="uint8_t trouble",
        at=27,
        proto=5,
        python="trouble: Trouble = Trouble.NONE",
        read="_one_of(TROUBLES, @)",
        brief="enum ut_trouble: what ails the peer, if it is to blame; NONE in a COMPLETE op",
    ),
    Field(
        "When its first byte came; None if none came.",
        c="uint32_t first_us",
        at=28,
        proto=6,
        python="first_s: float | None = None",
        read="@ * 1e-6 if @ else None",
    ),
    Field(
        "When this host heard that it had called the op; 0 if it called before this host, None if it never did.",
        c="uint32_t opened_us",
        at=36,
        proto=8,
        python="opened_s: float | None = None",
        read="@ * 1e-6 if @ != NEVER_US else None",
        brief="when it was heard to have called the op; 0: before us; UINT32_MAX: never",
    ),
    Field(
        "Its longest silence after it had called the op.",
        c="uint32_t quiet_us",
        at=40,
        proto=9,
        python="quiet_s: float = 0.0",
        read="@ * 1e-6",
    ),
    Field(
        "How much longer its slowest packet was on the way than its fastest.",
        c="uint32_t delay_us",
        at=44,
        proto=10,
        python="delay_s: float = 0.0",
        read="@ * 1e-6",
    ),
    Field(
        "How many bytes of what it sent were lost first and came as repairs.",
        c="uint32_t repaired",
        at=48,
        proto=11,
        python="repaired_bytes: int = 0",
    ),
    Field("Packets to it that were lost.", c="uint32_t lost", at=52, proto=12, python="lost_packets: int = 0"),
    Field(
        "Datagrams that its kernel dropped during the op, as it says itself.",
        c="uint32_t drops",
        at=56,
        proto=13,
        python="drops: int = 0",
    ),
    Field(
        "Its ranks that are in the op; empty if it did not tell. In a job with a policy: with what they gave "
        "for this op.",
        c="uint16_t fresh",
        at=60,
        proto=14,
        python="fresh: tuple[int, ...] = ()",
        read="_places(host, @)",
        brief="its ranks in the op, bit per place among them; 0: not known. Partial jobs: the fresh ones",
    ),
    Field(
        "In a job with a policy: its ranks that are in the op with what they gave for an earlier one.",
        c="uint16_t stale",
        at=62,
        proto=15,
        python="stale: tuple[int, ...] = ()",
        read="_places(host, @)",
    ),
    Field(
        "The oldest step, as its ranks number them, in what it contributed; None if it contributed nothing.",
        c="uint32_t oldest_step",
        at=64,
        proto=16,
        python="oldest_step: int | None = None",
        read="@ if policy != 'none' and row.fresh | row.stale else None",
    ),
    Field(
        "Without a policy: its ranks that are not in the op, and have left or died.",
        c="uint16_t gone",
        at=68,
        proto=17,
        python="gone: tuple[int, ...] = ()",
        read="_places(host, @)",
    ),
    Field(
        "Without a policy: its ranks that are not in the op because their host did not wait for their call. "
        "In what such a rank gets itself it is named here too, though it holds its own value.",
        c="uint16_t late",
        at=70,
        proto=18,
        python="late: tuple[int, ...] = ()",
        read="_places(host, @)",
    ),
    Field(
        "In a weighted op: the sum of the weights that its ranks gave, as far as it told.",
        c="uint64_t share",
        at=72,
        proto=19,
        python="weight_given: int = 0",
    ),
)

PEER = Struct("ut_receipt_peer", ROWS, 80, ENUMS)
