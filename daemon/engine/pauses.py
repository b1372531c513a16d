# SPDX-License-Identifier: Apache-2.0
"""The engine's face for hosts that go and come back (transport_c/core/op/op_pause.c)."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Reached(NamedTuple):
    """How far a job has come in one engine."""

    floor: int
    """The oldest op that has not ended here; the next one if all have."""
    unsettled: int
    """Ops, but for those that a hold keeps from opening, of which this host or a peer lacks something."""


class Pauses(Protocol):
    """The part of `Engine` that is about this."""

    def peer_ask(self, job: int, host: int) -> None:
        """`host` is asked for a sign of life over UDP: its engine answers at once, though it has no op open."""

    def peer_await(self, job: int, host: int, on: bool) -> None:
        """`host` goes and comes back: reliable ops go on waiting for it until it is connected anew, or until it is
        said to be gone for good (not `on`)."""

    def job_hold(self, job: int) -> None:
        """This host goes itself: it opens no op of the job more."""

    def job_place(self, job: int) -> Reached:
        """How far the job has come."""


class NativePauses:
    """The same of the UDP driver."""

    _ffi: Any
    _lib: Any
    _driver: Any

    def _checked(self, result: int, about: str) -> int:
        raise NotImplementedError

    def peer_ask(self, job: int, host: int) -> None:
        self._checked(self._lib.ut_driver_peer_ask(self._driver, job, host), "peer_ask")

    def peer_await(self, job: int, host: int, on: bool) -> None:
        self._checked(self._lib.ut_driver_peer_await(self._driver, job, host, int(on)), "peer_await")

    def job_hold(self, job: int) -> None:
        self._checked(self._lib.ut_driver_job_hold(self._driver, job), "job_hold")

    def job_place(self, job: int) -> Reached:
        floor, unsettled = self._ffi.new("uint64_t *"), self._ffi.new("uint32_t *")
        self._checked(self._lib.ut_driver_job_place(self._driver, job, floor, unsettled), "job_place")
        return Reached(int(floor[0]), int(unsettled[0]))
