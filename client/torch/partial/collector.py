# SPDX-License-Identifier: Apache-2.0
"""RNA's second thread: it collects averages while the trainer computes."""

from __future__ import annotations

import threading

import torch

from ultima import Job, Partial
from ultima.base.errors import DaemonError, UltimaError
from ultima.base.receipt import Receipt, Status
from ultima.torch.partial.rounds import RoundCounter

# The thread looks as often whether it is to end.
PATIENCE_S = 0.25


class Collector:
    """Fetches each average as it comes and adds it to those that have not been taken: a thread of its own.

    It takes every one, not only the newest: rounds are started by whoever is ready, and come faster than one rank
    steps. A rank that missed most of them would hold another model soon.
    """

    def __init__(self, partial: Partial, job: Job, vector: torch.Tensor, linear: bool) -> None:
        self.rounds = 0
        """Rounds up to the newest average that was taken."""
        self.counter = RoundCounter()
        """Of those that came."""
        self._partial, self._linear = partial, linear
        self._found = torch.from_numpy(job.empty(vector.nbytes, "uint8")).view(vector.dtype)
        self._sum = torch.zeros_like(vector)
        self._rate = 0.0
        self._receipts: list[Receipt] = []
        self._failure: UltimaError | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="ultima-rna", daemon=True)
        self._thread.start()

    def take(self, into: torch.Tensor) -> tuple[float, list[Receipt]]:
        """Puts the mean of all that came since the last time |into| a vector, each weighted by its factor of the
        learning rate, and says the sum of the factors; 0, and |into| as it was, if nothing came.

        Raises what ended the thread.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            rate, receipts = self._rate, self._receipts
            if rate:
                torch.div(self._sum, rate, out=into)
                self._sum.zero_()
            self._rate, self._receipts, self.rounds = 0.0, [], self.counter.rounds
        return rate, receipts

    def stop(self) -> None:
        """Ends the thread. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def _collect(self) -> None:
        while not self._stopping.is_set():
            try:
                found = self._partial.wait(deadline=PATIENCE_S, out=self._found)
            except DaemonError:
                # The next `give` says so, and attaches again.
                self._stopping.wait(PATIENCE_S)
                continue
            except UltimaError as failure:
                self._failure = failure
                return
            if found is None or found.receipt.status is Status.INSUFFICIENT:
                continue
            factor = self._partial.rate_factor(found.receipt) if self._linear else 1.0
            with self._lock:
                self._sum.add_(self._found, alpha=factor)
                self._rate += factor
                self._receipts.append(found.receipt)
                self.counter.saw(found.receipt.op_seq)
