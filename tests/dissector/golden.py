# SPDX-License-Identifier: Apache-2.0
"""One packet of every kind and corner, set by hand from transport_c/PROTOCOL.md, blank by blank as in its tables.

Never regenerate these from code: they are what both implementations of the wire are held against. A change here is a
change of the protocol's version.
"""

from typing import Any, NamedTuple


class Golden(NamedTuple):
    name: str
    octets: str
    fields: dict[str, Any]
    payload: str = ""
    records: tuple[dict[str, Any], ...] = ()
    words: tuple[int, ...] = ()

    def bytes(self) -> bytes:
        return bytes.fromhex(self.octets.replace(" ", "") + self.payload)


PACKETS = [
    Golden(
        "data__scatter_of_two_floats",
        "41 2bcdef 0a0b0c0d 00000007 7a9bb467 0000005001 0006  1234 89abcdc0 0102 02",
        dict(kind=1, flags=0, stage=0, coverage=1, connection=0x0A0B0C0D, number=7, op_high=5, view=6,
             sent_us=0x2BCDEF, checksum=0x7A9BB467, bucket=0x1234, offset=0x89ABCDC0, timeout=0x0102, last=0, incast=2),
        payload="0000803f 00000040",
    ),
    Golden(
        "data__broadcast_repair_with_all_saturated",
        "41 400000 ffffffff fffffffe 67e2bfff ffffffffff 0000  0000 00000000 ffff ff",
        dict(kind=1, flags=1, stage=1, coverage=2**11 - 1, connection=2**32 - 1, number=2**32 - 2, op_high=2**28 - 1,
             view=0, sent_us=0, checksum=0x67E2BFFF, bucket=0, offset=0, timeout=0xFFFF, last=15, incast=15),
        payload="00",
    ),
    Golden(
        "data__many_missing_and_highest_bucket",
        "41 923456 00000001 00000000 599bb48d 0000001f00 ffff  ffff fffffff8 0000 10",
        dict(kind=1, flags=2, stage=1, coverage=0x700, connection=1, number=0, op_high=1, view=0xFFFF,
             sent_us=0x123456, checksum=0x599BB48D, bucket=0xFFFF, offset=0xFFFFFFF8, timeout=0, last=1, incast=0),
        payload="0100000000000000",
    ),
    Golden(
        "feedback__first_grant",
        "42 00 00 00 00000009 00000001 d4f5fe41 0000000000010000 0000000000000000 0000000000000000 0000000000000000"
        " 00000000 00000000 00000000 ffffffff 00000000 00 00 0000 00000001 00000000",
        dict(kind=2, flags=0, record_count=0, incast=0, connection=9, number=1, checksum=0xD4F5FE41, grant=65536,
             received=0, receive_floor=0, send_floor=0, highest=0, marked=0, drops=0, echo_us=2**32 - 1, hold_us=0,
             word_count=0, missed=0, state=1, state_seen=0),
    ),
    Golden(
        "feedback__two_ops_and_two_words",
        "42 00 02 03 deadbeef 80000000 b00cfa73 0123456789abcdef 0000000100000002 0000000000000005 0000000000000004"
        " 00000041 00000011 00000022 002bcdef 000003e8 00 02 1234 01020304 fffffffe"
        "  0000000000000005 0000000000640000 01 02 01 30 0004 0011 0003d090 cafe0123 0000000000000007 000000000000000f"
        "   0000 0000 00000000 0000 00 00 0000 0002 0000 00 00 00000000 1122334455660002"
        "  ffffffff00000006 0000000000000000 06 05 03 0e 0001 0040 ffffffff 00000000 0000000000000000 0000000000000000"
        "   0000 0000 00000000 0000 00 00 0000 0000 0000 00 00 00000000 0000000000000000"
        "  8000000000000003 0000000000000001",
        dict(kind=2, flags=0, record_count=2, incast=3, connection=0xDEADBEEF, number=2**31, checksum=0xB00CFA73,
             grant=0x0123456789ABCDEF, received=0x100000002, receive_floor=5, send_floor=4, highest=65, marked=17,
             drops=34, echo_us=0x2BCDEF, hold_us=1000, word_count=2, missed=0x1234,
             state=0x1020304, state_seen=0xFFFFFFFE),
        records=(
            dict(op_seq=5, count=6553600, dtype=1, reduction=2, mode=1, flags=0x30, weight=4, algorithm=1,
                 collective=0, agree=1,
                 left_us=250000, digest=0xCAFE0123, full_mask=7, any_mask=15, view=2, epoch=0x1122334455660002),
            dict(op_seq=0xFFFFFFFF00000006, count=0, dtype=6, reduction=5, mode=3, flags=0x0E, weight=1,
                 algorithm=4, collective=0, agree=0, left_us=2**32 - 1, digest=0, full_mask=0, any_mask=0,
                 view=0, epoch=0),
        ),
        words=(0x8000000000000003, 1),
    ),
    Golden(
        "feedback__a_broadcast_and_an_all_gather_that_failed",
        "42 00 02 01 00000011 00000002 cd96b702 0000000000020000 0000000000000400 0000000000000009 0000000000000008"
        " 00000003 00000000 00000000 ffffffff 00000000 00 00 0000 00000007 00000006"
        "  0000000000000009 00000000000003e9 07 05 03 00 0001 0016 ffffffff 00000000 0000000000000000 0000000000000000"
        "   0000 0000 00000000 0000 00 00 0000 0000 0000 00 00 00000000 0000000000000000"
        "  000000000000000a 0000000000000040 05 00 03 0e 0001 0714 0000c350 00000000 0000000000000002 0000000000000005"
        "   0000 0000 00000000 0000 00 00 0000 0000 0000 00 00 00000000 0000000000000000",
        dict(kind=2, flags=0, record_count=2, incast=1, connection=17, number=2, checksum=0xCD96B702, grant=131072,
             received=1024, receive_floor=9, send_floor=8, highest=3, marked=0, drops=0, echo_us=2**32 - 1, hold_us=0,
             word_count=0, missed=0, state=7, state_seen=6),
        records=(
            dict(op_seq=9, count=1001, dtype=7, reduction=5, mode=3, flags=0, weight=1, field=0, algorithm=1,
                 collective=3, agree=0, left_us=2**32 - 1, digest=0, full_mask=0, any_mask=0),
            dict(op_seq=10, count=64, dtype=5, reduction=0, mode=3, flags=0x0E, weight=1, field=7, algorithm=1,
                 collective=2, agree=0, left_us=50000, digest=0, full_mask=2, any_mask=5),
        ),
    ),
    Golden(
        "feedback__an_op_of_a_partial_job_and_who_is_ready_for_the_next",
        "42 00 02 02 00000012 00000003 c2629df8 0000000000020000 0000000000000400 0000000000000009 0000000000000008"
        " 00000003 00000000 00000000 ffffffff 00000000 00 00 0000 0000000c 0000000b"
        "  0000000000000008 0000000000100000 01 02 01 50 0003 0010 0000c350 00000000 0000000000000005 0000000000000007"
        "   0005 0002 0000002a 0003 05 42 000f 0000 0000 00 00 00000000 0000000000000000"
        "  0000000000000009 0000000000000000 00 00 00 00 0002 0010 ffffffff 00000000 0000000000000000 0000000000000000"
        "   0009 0000 00000000 ffff 05 00 000b 0000 0000 00 00 00000000 0000000000000000",
        dict(kind=2, flags=0, record_count=2, incast=2, connection=18, number=3, checksum=0xC2629DF8, grant=131072,
             received=1024, receive_floor=9, send_floor=8, highest=3, marked=0, drops=0, echo_us=2**32 - 1, hold_us=0,
             word_count=0, missed=0, state=12, state_seen=11),
        records=(
            dict(op_seq=8, count=2**20, dtype=1, reduction=2, mode=1, flags=0x50, weight=3, field=0, algorithm=1,
                 collective=0, agree=0, left_us=50000, digest=0, full_mask=5, any_mask=7, fresh=5, stale=2,
                 oldest_step=42, initiator=3, policy=5, submitted=0x42, attached=15),
            dict(op_seq=9, count=0, dtype=0, reduction=0, mode=0, flags=0, weight=2, field=0, algorithm=1,
                 collective=0, agree=0, left_us=2**32 - 1, digest=0, full_mask=0, any_mask=0, fresh=9, stale=0,
                 oldest_step=0, initiator=0xFFFF, policy=5, submitted=0, attached=11),
        ),
    ),
    Golden(
        "piece__second_of_a_full_packet",
        "43 01 05c0 0a0b0c0d 00000007 be3f8151",
        dict(kind=3, index=1, whole=1472, connection=0x0A0B0C0D, number=7, checksum=0xBE3F8151),
        payload="0000803f 00000040",
    ),
    Golden(
        "grant__five_gigabytes_in_all",
        "44 00 0000 0a0b0c0d 00000102 e3474188 000000012a05f200",
        dict(kind=4, flags=0, reserved=0, connection=0x0A0B0C0D, number=258, checksum=0xE3474188, grant=5_000_000_000),
    ),
    Golden(
        "path__challenge",
        "45 01 0000 0a0b0c0d 00000103 ba374918 1122334455667788",
        dict(kind=5, what=1, reserved=0, connection=0x0A0B0C0D, number=259, checksum=0xBA374918,
             token=0x1122334455667788),
    ),
    Golden(
        "parity__fourth_of_a_group_of_182",
        "46 abcdef 0a0b0c0d 00000008 439d4794 0000005800 0006  1234 000005a0 03b6 02",
        dict(kind=6, flags=2, stage=1, coverage=0, connection=0x0A0B0C0D, number=8, op_high=5, view=6,
             sent_us=0x2BCDEF, checksum=0x439D4794, bucket=0x1234, offset=1440, timeout=0x03B6, last=0, incast=2),
        payload="0000803f 00000040",
    ),
]  # fmt: skip

# The nine bytes of the paper alone: (bucket, offset, timeout, last, incast) and how they stand on the wire.
ULTIMA_HEADERS = [
    ((0x1234, 0x89ABCDEF, 0x0102, 3, 2), "123489abcdef010232"),
    ((7, 26213000, 3200, 1, 2), "0007018ffa880c8012"),
    ((0xFFFF, 0xFFFFFFFF, 0xFFFF, 15, 15), "ff" * 9),
]
