# SPDX-License-Identifier: Apache-2.0
"""A receipt reads well, for people and for programs."""

import dataclasses
import json
from typing import Any

import pytest

from ultima.base.receipt import PeerReceipt, Receipt, StageEnd, Status, Trouble, Why, ranks_text

COMPLETE = Receipt(
    op_seq=12,
    status=Status.COMPLETE,
    world_size=4,
    contributors=(0, 1, 2, 3),
    partly=(),
    weight_min=4,
    peers=(
        PeerReceipt(0, (0, 1), (0, 0), (0, 0), 2, Why.NOTHING, None),
        PeerReceipt(1, (2, 3), (2048, 4096), (0, 0), 2, Why.NOTHING, 0.0015),
    ),
    culprit=(),
    stage_ends=(StageEnd.COMPLETE, StageEnd.COMPLETE),
    stage_s=(0.001, 0.002),
    elapsed_s=0.002345,
    bytes_expected=6144,
    bytes_used=6144,
    bytes_missing=0,
    bytes_repaired=0,
    bytes_duplicate=0,
    nonfinite=0,
    drops_host=0,
)
PARTIAL = dataclasses.replace(
    COMPLETE,
    status=Status.PARTIAL,
    contributors=(0, 1),
    partly=(2, 3),
    weight_min=2,
    peers=(COMPLETE.peers[0], PeerReceipt(1, (2, 3), (2048, 4096), (1024, 0), 2, Why.LOST, 0.0015)),
    culprit=(2, 3),
    stage_ends=(StageEnd.DEADLINE, StageEnd.COMPLETE),
    bytes_used=5120,
    bytes_missing=1024,
    bytes_repaired=512,
    nonfinite=3,
    drops_host=9,
)


def test_str__complete_is_one_line() -> None:
    assert str(COMPLETE) == "op 12: COMPLETE after 2.345 ms, all 4 ranks"
    alone = dataclasses.replace(COMPLETE, world_size=1, contributors=(0,), peers=COMPLETE.peers[:1])
    assert str(alone) == "op 12: COMPLETE after 2.345 ms, the only rank"


def test_str__partial_says_who_and_why() -> None:
    assert str(PARTIAL) == (
        "op 12: PARTIAL after 2.345 ms, ranks 0-1 in every element, ranks 2-3 in some, "
        "1 KiB of 6 KiB missing (16.7 %), 512 B repaired, "
        "3 elements NaN or Inf, 9 datagrams dropped by this host's kernel\n"
        "  host 1 (ranks 2-3): 1 KiB of 2 KiB of stage 1 missing, lost, last byte at 1.500 ms"
    )


def test_str__ranks_of_a_host_that_went_on_without_them() -> None:
    row = PeerReceipt(0, (0, 1, 2, 3), (0, 0), (0, 0), 2, Why.NOTHING, None, fresh=(0, 3), gone=(2,), late=(1,))
    receipt = dataclasses.replace(
        COMPLETE, status=Status.PARTIAL, contributors=(0, 3), peers=(row,), culprit=(2,), trouble=Trouble.GONE
    )
    assert str(receipt) == (
        "op 12: PARTIAL after 2.345 ms, ranks 0 3 in every element, rank 2 gone, rank 1 late, rank 2 to blame: gone"
    )
    assert receipt.gone == (2,) and receipt.missing_ranks == (1, 2)
    told = receipt.as_dict()
    assert (told["gone"], told["fresh"], told["peers"][0]["gone"], told["peers"][0]["late"]) == ([2], [0, 3], [2], [1])
    alone = dataclasses.replace(row, fresh=(1,), gone=(), late=(1,))
    own = dataclasses.replace(receipt, contributors=(1,), peers=(alone,), culprit=(1,), trouble=Trouble.SENDER)
    assert str(own) == "op 12: PARTIAL after 2.345 ms, rank 1 in every element, rank 1 to blame: slow sender"


def test_str__host_that_never_came() -> None:
    row = PeerReceipt(1, (2, 3), (2048, 4096), (2048, 4096), 0, Why.SILENT, None)
    text = str(dataclasses.replace(PARTIAL, peers=(row,), partly=()))
    assert text.splitlines()[1] == (
        "  host 1 (ranks 2-3): 2 KiB of 2 KiB of stage 1 and 4 KiB of 4 KiB of stage 2 missing, silent, never heard"
    )


def test_properties() -> None:
    assert COMPLETE.complete and not PARTIAL.complete
    assert (COMPLETE.missing_ranks, PARTIAL.missing_ranks) == ((), (2, 3))
    assert (COMPLETE.loss, PARTIAL.loss) == (0.0, 1 / 6)
    assert dataclasses.replace(COMPLETE, bytes_expected=0, bytes_used=0).loss == 0.0


def test_as_dict__every_field_in_json() -> None:
    for receipt in (COMPLETE, PARTIAL):
        data: dict[str, Any] = json.loads(json.dumps(receipt.as_dict()))
        summed_up = {"gone", "fresh", "stale", "stale_steps", "slot"}
        assert set(data) == {field.name for field in dataclasses.fields(Receipt)} | summed_up
        assert set(data["peers"][1]) == {field.name for field in dataclasses.fields(PeerReceipt)}
    assert data["status"] == "PARTIAL"
    assert data["peers"][1]["missing_bytes"] == [1024, 0]
    assert data["stage_ends"] == ["deadline", "complete"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((), "no rank"), ((3,), "rank 3"), ((0, 1, 2), "ranks 0-2"), ((0, 2, 3, 7), "ranks 0 2-3 7")],
)
def test_ranks_text(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
