# SPDX-License-Identifier: Apache-2.0
"""What an op that holds own values alone does to a training script; tests/lab has real ones."""

import warnings
from dataclasses import replace

import pytest

from ultima import Insufficient, InvalidArgument, Receipt, Status, Trouble, UltimaWarning
from ultima.base.receipt import PeerReceipt, Why
from ultima.torch.backend.group import _raises_on_insufficient
from ultima.torch.backend.receipt_log import ReceiptLog

ROWS = tuple(PeerReceipt(rank, (rank,), (0, 0), (0, 0), 1, Why.NOTHING, None) for rank in range(2))
HERE = PeerReceipt(0, (0, 1, 2), (0, 0), (0, 0), 1, Why.NOTHING, None, fresh=(0,), gone=(2,), late=(1,))
RECEIPT = Receipt.deferred(
    {"op_seq": 7, "status": Status.INSUFFICIENT, "culprit": (1,), "trouble": Trouble.UDP, "peers": ROWS},
    lambda: RECEIPT,
)


def of_one_host(status: Status, row: PeerReceipt = HERE) -> Receipt:
    known = {"op_seq": 8, "status": status, "world_size": 3, "culprit": row.gone, "trouble": Trouble.GONE}
    return Receipt.deferred({**known, "peers": (row,)}, lambda: RECEIPT)


def test_insufficient__the_first_is_warned_of_with_the_way_to_raise() -> None:
    log = ReceiptLog()
    with pytest.warns(UltimaWarning) as warned:
        assert log.on_insufficient(RECEIPT) is None
    text = str(warned[0].message)
    assert text.startswith("op 7 holds nothing of any other host; rank 1 to blame: udp blocked; this rank goes on")
    assert "ULTIMA_ON_INSUFFICIENT=raise" in text and "doctor" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert log.on_insufficient(RECEIPT) is None


def test_insufficient__raises_each_time_where_that_is_wanted() -> None:
    log = ReceiptLog(raises=True)
    for _ in range(2):
        error = log.on_insufficient(RECEIPT)
        assert isinstance(error, Insufficient) and error.receipt is RECEIPT
        assert "rank 1 to blame: udp blocked" in str(error)


@pytest.mark.parametrize(("word", "raises"), [("", False), ("warn", False), ("raise", True)])
def test_insufficient__by_the_environment(monkeypatch: pytest.MonkeyPatch, word: str, raises: bool) -> None:
    monkeypatch.setenv("ULTIMA_ON_INSUFFICIENT", word)
    assert _raises_on_insufficient() is raises


def test_insufficient__a_wrong_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMA_ON_INSUFFICIENT", "explode")
    with pytest.raises(InvalidArgument, match="ULTIMA_ON_INSUFFICIENT is 'explode'; allowed: warn, raise"):
        _raises_on_insufficient()


def test_insufficient__of_ranks_that_share_one_host_names_the_rank() -> None:
    error = ReceiptLog(raises=True).on_insufficient(of_one_host(Status.INSUFFICIENT))
    assert str(error).startswith("op 8 holds nothing of any other rank; rank 2 to blame: gone (ULTIMA_ON")


def test_partial__each_rank_that_is_gone_is_warned_of_once() -> None:
    log = ReceiptLog()
    with pytest.warns(UltimaWarning, match="op 8 goes without rank 2, which left or died.*all 3 ranks.*average_hook"):
        log.on_partial(of_one_host(Status.PARTIAL))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log.on_partial(of_one_host(Status.PARTIAL))
        log.on_partial(of_one_host(Status.PARTIAL, replace(HERE, gone=())))
    with pytest.warns(UltimaWarning, match="goes without ranks 1-2"):
        log.on_partial(of_one_host(Status.PARTIAL, replace(HERE, gone=(1, 2), late=())))
