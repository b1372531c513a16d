# SPDX-License-Identifier: Apache-2.0
"""What the receipts of one generation's ops say of the step: whether it may be committed.

torchft takes a step unless somebody reports an error. A receipt knows better than an exception does whether a gradient
is missing, so here an op that is less than was asked for becomes an error, and the first one is kept until it is asked
for: a program may drop a Work without waiting for it, and its step must not be taken either.
"""

from __future__ import annotations

import threading

from ultima.base.errors import UltimaError
from ultima.base.receipt import Receipt, Status, ranks_text
from ultima.torch.backend.receipt_log import ReceiptLog

LACKING = ("discard", "average")


class Incomplete(UltimaError):
    """A reduction lacks the values of some member, so its step must not be taken. `receipt` says whose, and why."""

    def __init__(self, message: str, receipt: Receipt) -> None:
        super().__init__(message, receipt)
        self.message, self.receipt = message, receipt

    def __str__(self) -> str:
        return self.message


class Verdict(ReceiptLog):
    """The receipts of one generation, and the first error among its ops."""

    def __init__(self, lacking: str) -> None:
        """|lacking|: one of `LACKING`, what follows from an op that lacks something of a member."""
        super().__init__()
        self._average = lacking == "average"
        self._error_lock = threading.Lock()
        self._error: Exception | None = None

    def add_failure(self, error: Exception) -> None:
        super().add_failure(error)
        self._keep(error)

    def on_partial(self, receipt: Receipt) -> Exception | None:
        """An error, unless the step may go on with the average of those that came."""
        return None if self._average else self._incomplete(receipt)

    def on_insufficient(self, receipt: Receipt) -> Exception | None:
        """An error: what is this rank's own alone is no average."""
        return self._incomplete(receipt)

    def take_error(self) -> Exception | None:
        """The first error since the last call; None where all went well."""
        with self._error_lock:
            error, self._error = self._error, None
        return error

    def _incomplete(self, receipt: Receipt) -> Incomplete:
        there = set(receipt.contributors)
        missing = [rank for rank in range(receipt.world_size) if rank not in there]
        whose = f" of {ranks_text(missing)}" if missing else ""
        alone = "; it is this rank's own alone" if receipt.status is Status.INSUFFICIENT else ""
        error = Incomplete(
            f"op {receipt.op_seq} lacks {receipt.bytes_missing} of {receipt.bytes_expected} bytes{whose}{alone}: its "
            "step must not be taken",
            receipt,
        )
        self._keep(error)
        return error

    def _keep(self, error: Exception) -> None:
        with self._error_lock:
            self._error = self._error or error
