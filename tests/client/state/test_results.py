# SPDX-License-Identifier: Apache-2.0
"""Results for followers: how they travel, what is refused, and what is kept."""

import json

import pytest

from ultima.base.receipt import Status
from ultima.state.results import NUMBERS, RANKS, RUN_BYTES, SMALL_BYTES, Backlog, Result, facts_of, read


def result(op_seq: int, nbytes: int = 8) -> Result:
    facts = {**dict.fromkeys(NUMBERS, 3), **{name: [0, 2] for name in RANKS}, "status": "PARTIAL"}
    return Result(op_seq, "float32", "sum", bytes([op_seq % 251]) * nbytes, facts)


def test_read__a_run_is_what_was_written() -> None:
    run = result(7).written(left=1) + result(8, 0).written()
    found, left = read(run, 7)
    assert (found, left) == ([result(7), result(8, 0)], 0) and read(b"", 7) == ([], 0)
    receipt = found[0].receipt()
    assert receipt.status is Status.PARTIAL and receipt.contributors == receipt.members == (0, 2)
    assert receipt.world_size == receipt.view == 3 and facts_of(receipt) == result(7).facts


def changed(**said: object) -> bytes:
    head = {"op_seq": 7, "dtype": "float32", "op": "sum", "nbytes": 1, "left": 0, "facts": result(7).facts, **said}
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "big") + text + b"x"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (result(7).written()[:-1], "all of it"),
        (result(8).written(), "op 8 with 8 bytes; allowed: op 7"),
        (result(7).written() + result(7).written(), "allowed: op 8"),
        (b"\0\0\0\0", "a head of 0 bytes"),
        (b"\xff\xff\xff\xff", "a head of 4294967295 bytes"),
        (b"\0\0\0\x02[]", "no head"),
        (b"\0\0\0\x02{", "Expecting"),
        (changed(nbytes=-1), "op 7 with -1 bytes"),
        (changed(nbytes=2), "op 7 with 2 bytes"),
        (changed(facts={}), "no receipt"),
        (changed(facts=None), "no receipt"),
        (changed(facts={**result(7).facts, "status": "fine"}), "fine"),
        (changed(left="many"), "invalid literal"),
    ],
)
def test_read__what_is_no_run_is_refused(run: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(run, 7)


def test_backlog__is_bounded_and_in_order() -> None:
    kept = Backlog(5, state_bytes=0)
    assert kept.run(5) == b"" and kept.run(4) is None
    kept.add(result(6))
    assert kept.run(5) == b"", "the one before is not there yet"
    kept.add(result(5))
    kept.add(result(5, 9))
    found, left = read(kept.run(5) or b"", 5)
    assert [each.op_seq for each in found] == [5, 6] and len(found[0].data) == 8 and left == 0
    each = RUN_BYTES // 2 + 1
    count = SMALL_BYTES // each
    for op_seq in range(7, 7 + count):
        kept.add(result(op_seq, each))
    found, left = read(kept.run(7) or b"", 7)
    assert [row.op_seq for row in found] == [7] and left == count - 1, "of two that are too much together the first"
    assert kept.first == 5 and kept.bytes <= kept.bytes_max == SMALL_BYTES
    kept.add(result(7 + count, each))
    assert kept.first == 8 and kept.run(7) is None and kept.bytes <= kept.bytes_max
