# SPDX-License-Identifier: Apache-2.0
"""The engine's face for what several engines tell of one job: the job's numbers, and one receipt and one event of an op
that was split (transport_c/core/account/join.c)."""

from __future__ import annotations

from typing import Any, Protocol

from ultima.daemon.engine.events import Event, event_of


class Joins(Protocol):
    """The part of `Engine` that is about this."""

    def receipt_of_job(self, raw: Any, lane: int, lanes: int) -> Any:
        """A copy of the receipt of a lane, with the job's numbers for the ops of which it tells."""

    def receipt_join(self, portions: list[Any]) -> Any:
        """A new struct of those of an op's portions, in their order and in the job's numbers."""

    def event_join(self, portions: list[Event]) -> Event:
        """One OP_DONE event of those of all portions of an op, in their order."""


class NativeJoins:
    """The same of the UDP driver."""

    _ffi: Any
    _lib: Any

    def receipt_of_job(self, raw: Any, lane: int, lanes: int) -> Any:
        ret = self._ffi.new("ut_receipt *", raw[0])
        self._lib.ut_receipt_of_job(ret, lane, lanes)
        return ret

    def receipt_join(self, portions: list[Any]) -> Any:
        ret = self._ffi.new("ut_receipt *")
        self._lib.ut_receipt_join(ret, portions, len(portions))
        return ret

    def event_join(self, portions: list[Event]) -> Event:
        ret = self._ffi.new("ut_event *")
        self._lib.ut_event_join(ret, self._ffi.new("ut_event[]", [tuple(each) for each in portions]), len(portions))
        return event_of(ret)
