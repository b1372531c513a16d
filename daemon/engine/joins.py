# SPDX-License-Identifier: Apache-2.0
"""The engine's face for ops that are split: what is told of their portions as one (transport_c/core/account/join.c)."""

from __future__ import annotations

from typing import Any, Protocol

from ultima.daemon.engine.events import Event, event_of


class Joins(Protocol):
    """The part of `Engine` that is about this."""

    def receipt_join(self, portions: list[Any]) -> Any:
        """A new struct of those of an op's portions, in their order; of one it is a copy."""

    def event_join(self, portions: list[Event]) -> Event:
        """One OP_DONE event of those of all portions of an op, in their order."""


class NativeJoins:
    """The same of the UDP driver."""

    _ffi: Any
    _lib: Any

    def receipt_join(self, portions: list[Any]) -> Any:
        ret = self._ffi.new("ut_receipt *")
        self._lib.ut_receipt_join(ret, portions, len(portions))
        return ret

    def event_join(self, portions: list[Event]) -> Event:
        ret = self._ffi.new("ut_event *")
        self._lib.ut_event_join(ret, self._ffi.new("ut_event[]", [tuple(each) for each in portions]), len(portions))
        return event_of(ret)
