# SPDX-License-Identifier: Apache-2.0
"""Results of ops as one rank keeps them for those who follow it, and as they travel.

A follower is in none of these ops: it gets what the ranks that are in have got, with the receipt that one of them has.
What comes from another host is checked: `read` refuses whatever is no run of results.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ultima.base.receipt import Receipt, StageEnd, Status

RUN_BYTES = 4 << 20  # of results that travel together, unless one alone is larger
HEAD_BYTES_MAX = 64 << 10
SMALL_BYTES = 16 << 20  # of results that are kept however small the state is: then round trips count, and not bytes
NUMBERS = ("world_size", "weight_min", "digest", "view", "nonfinite", "weight_due", "weight_in")
RANKS = ("contributors", "partly", "members", "culprit", "owners")


class Kind(IntEnum):
    """What is read of another rank (types.proto, StateKind)."""

    ROOT = 0
    HEAD = 1
    FOLLOWED = 2
    RESULTS = 3
    PAIR = 4


@dataclass(frozen=True, slots=True)
class Result:
    """Of one op."""

    op_seq: int
    dtype: str
    op: str
    """"sum" or "avg"."""
    data: bytes
    facts: Mapping[str, Any]
    """Of its receipt."""

    def written(self, left: int = 0) -> bytes:
        """For another host. left: how many newer ones there are."""
        head = {"op_seq": self.op_seq, "dtype": self.dtype, "op": self.op, "nbytes": len(self.data), "left": left}
        text = json.dumps({**head, "facts": self.facts}, separators=(",", ":")).encode()
        return len(text).to_bytes(4, "big") + text + self.data

    def receipt(self) -> Receipt:
        """As the rank had it who gave the result. What is about times and bytes of its host is not told."""
        numbers: dict[str, Any] = {name: int(self.facts[name]) for name in NUMBERS}
        ranks: dict[str, Any] = {name: tuple(self.facts[name]) for name in RANKS}
        return Receipt(
            op_seq=self.op_seq,
            status=Status(self.facts["status"]),
            peers=(),
            stage_ends=(StageEnd.NONE, StageEnd.NONE),
            stage_s=(0.0, 0.0),
            elapsed_s=0.0,
            bytes_expected=0,
            bytes_used=0,
            bytes_missing=0,
            bytes_repaired=0,
            bytes_duplicate=0,
            drops_host=0,
            **numbers,
            **ranks,
        )


def facts_of(receipt: Receipt) -> dict[str, Any]:
    """What followers are told of a receipt."""
    said: dict[str, Any] = {name: getattr(receipt, name) for name in NUMBERS}
    return said | {name: list(getattr(receipt, name)) for name in RANKS} | {"status": str(receipt.status)}


def read(run: bytes, first: int) -> tuple[list[Result], int]:
    """The results of ops from `first` on, one after the other, and how many newer ones the other rank had then. Raises
    ValueError for what is no run of them."""
    found: list[Result] = []
    at = left = 0
    while at < len(run):
        length = int.from_bytes(run[at : at + 4], "big")
        if not 0 < length <= HEAD_BYTES_MAX:
            raise ValueError(f"a head of {length} bytes; allowed: 1 to {HEAD_BYTES_MAX}")
        try:
            head = json.loads(run[at + 4 : at + 4 + length])
            op_seq, nbytes, facts = int(head["op_seq"]), int(head["nbytes"]), head["facts"]
            dtype, op, left = str(head["dtype"]), str(head["op"]), int(head["left"])
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"no head of a result: {error!r}") from None
        at += 4 + length + nbytes
        result = Result(op_seq, dtype, op, run[at - nbytes : at] if nbytes > 0 else b"", facts)
        if nbytes < 0 or at > len(run) or op_seq != first + len(found):
            raise ValueError(f"op {op_seq} with {nbytes} bytes; allowed: op {first + len(found)}, all of it")
        try:
            result.receipt()
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"op {op_seq}: no receipt: {error!r}") from None
        found.append(result)
    return found, left


class Backlog:
    """The newest results, within so many bytes. Safe for several threads."""

    def __init__(self, first: int, state_bytes: int) -> None:
        """first: the op before which the state was taken that followers get.

        Of results more than twice the state's bytes are not kept: who gets the state in the time in which so many bytes
        of results come about gets results more slowly than they come about, and never catches up.
        """
        self.first = first
        """The oldest op that is kept, or would be."""
        self.bytes_max = 2 * state_bytes + SMALL_BYTES
        self.bytes = 0
        self._results: dict[int, Result] = {}
        self._guard = threading.Lock()

    def add(self, result: Result) -> None:
        """Keeps it, and gives up the oldest ones if these are too many."""
        with self._guard:
            if result.op_seq < self.first or result.op_seq in self._results:
                return
            self._results[result.op_seq] = result
            self.bytes += len(result.data)
            while self.bytes > self.bytes_max:
                gone = self._results.pop(self.first, None)
                self.bytes -= len(gone.data) if gone is not None else 0
                self.first += 1

    def run(self, op_seq: int) -> bytes | None:
        """Results from that op on, of RUN_BYTES at most if there are several, as `read` takes them; None if that one is
        not kept any more."""
        with self._guard:
            if op_seq < self.first:
                return None
            newest = max(self._results, default=op_seq)
            found: list[Result] = []
            nbytes = 0
            while (result := self._results.get(op_seq + len(found))) is not None:
                nbytes += len(result.data)
                if found and nbytes > RUN_BYTES:
                    break
                found.append(result)
            return b"".join(result.written(newest - result.op_seq) for result in found)
