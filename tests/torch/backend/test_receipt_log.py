# SPDX-License-Identifier: Apache-2.0
"""What a writer is given of a process group's receipts: each once, whoever else is given them."""

from tests.client.base.test_receipt import COMPLETE
from tests.client.base.test_scalars import Board, Run
from ultima.base.scalars import scalars
from ultima.torch.backend.receipt_log import RECEIPTS_KEPT, ReceiptLog


def test_news__each_writer_gets_each_receipt_once() -> None:
    log, board, run = ReceiptLog(), Board(), Run()
    for _ in range(3):
        log.add(COMPLETE)
    assert len(log.news(board)) == 3 and log.news(board) == []
    log.add(COMPLETE)
    assert (len(log.news(board)), len(log.news(run))) == (1, 4)
    for _ in range(RECEIPTS_KEPT + 5):
        log.add(COMPLETE)
    assert scalars(log.news(run))["ultima/ops"] == RECEIPTS_KEPT, "those that are kept"
