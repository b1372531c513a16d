# SPDX-License-Identifier: Apache-2.0
"""What an op that holds own values alone does to a training script; tests/lab has real ones."""

import warnings

import pytest

from ultima import Insufficient, InvalidArgument, Receipt, Status, Trouble, UltimaWarning
from ultima.torch.backend.group import _raises_on_insufficient
from ultima.torch.backend.receipt_log import ReceiptLog

RECEIPT = Receipt.deferred(
    {"op_seq": 7, "status": Status.INSUFFICIENT, "culprit": (1,), "trouble": Trouble.UDP}, lambda: RECEIPT
)


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
