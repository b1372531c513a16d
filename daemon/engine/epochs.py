# SPDX-License-Identifier: Apache-2.0
"""The engine's face for epochs, on which the daemons agree (transport_c/core/epoch/epoch.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ultima.daemon.base.options import Options
from ultima.daemon.engine.option_struct import job_options


@dataclass(frozen=True, slots=True)
class EngineEpoch:
    """The fields of struct ut_epoch that a job of fixed hosts needs; masks of host indices."""

    number: int
    id: int
    start: int
    members: int
    owners: int
    options: tuple[int, ...]
    world: int
    """Ranks of the job."""
    settings: Options
    """How the job behaves; what cannot be changed while it runs, the engine knows by itself."""


class Wishes(NamedTuple):
    """What an epoch needs to know of this host."""

    next_op: int
    """The op that it opens next."""
    options: tuple[int, ...]
    """What it would choose for each option."""


class Epochs(Protocol):
    """The part of `Engine` that is about this."""

    def epoch(self, job: int, epoch: EngineEpoch) -> None:
        """Ops from its `start` on that are not open yet are opened under it. It ends a hold that has an end."""

    def options_fit(self, job: int, options: Options) -> None:
        """Raises InvalidArgument for options that no epoch of the job can have."""

    def epoch_hold(self, job: int, op_seq: int, until_ns: int) -> None:
        """Ops from `op_seq` on are not opened before then, by the engine's clock."""

    def epoch_wishes(self, job: int) -> Wishes:
        """What the next epoch needs to know."""


class NativeEpochs:
    """The same of the UDP driver."""

    _ffi: Any
    _lib: Any
    _driver: Any

    def _checked(self, result: int, about: str) -> int:
        raise NotImplementedError

    def epoch(self, job: int, epoch: EngineEpoch) -> None:
        given = self._ffi.new(
            "ut_epoch *",
            {"number": epoch.number, "id": epoch.id, "from": epoch.start, "options": job_options(epoch.settings)},
        )
        given.members, given.owners, given.world = epoch.members, epoch.owners, epoch.world
        for place, value in enumerate(epoch.options):
            given.option[place] = value
        self._checked(self._lib.ut_driver_epoch(self._driver, job, given), "epoch")

    def options_fit(self, job: int, options: Options) -> None:
        values = self._ffi.new("ut_job_options *", job_options(options))
        self._checked(self._lib.ut_driver_options_fit(self._driver, job, values), "options")

    def epoch_hold(self, job: int, op_seq: int, until_ns: int) -> None:
        self._checked(self._lib.ut_driver_hold(self._driver, job, op_seq, until_ns), "epoch_hold")

    def epoch_wishes(self, job: int) -> Wishes:
        next_op, options = self._ffi.new("uint64_t *"), self._ffi.new("uint16_t[4]")
        self._checked(self._lib.ut_driver_job_wishes(self._driver, job, next_op, options), "epoch_wishes")
        return Wishes(int(next_op[0]), tuple(map(int, options)))
