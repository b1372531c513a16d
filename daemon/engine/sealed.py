# SPDX-License-Identifier: Apache-2.0
"""The secret of a path on its way into C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ultima.daemon.engine.seal import Seal


class Sealed:
    """A `Seal` as the driver takes it, for as long as a call lasts: then the copy of the secret is overwritten."""

    def __init__(self, ffi: Any, lib: Any, seal: Seal | None) -> None:
        self._ffi, self._seal = ffi, seal
        if seal is not None:
            self._name = ffi.new("char[]", seal.job.encode())
            values = {"suite": lib.ut_driver_suite(seal.suite.encode()), "secret": list(seal.secret)}
            values |= {"generation": seal.generation, "lane": seal.lane, "job": self._name}
            self._struct = ffi.new("ut_driver_seal *", values)

    def __enter__(self) -> Any:
        return self._ffi.NULL if self._seal is None else self._struct

    def __exit__(self, *_: object) -> None:
        if self._seal is not None:
            self._ffi.memmove(self._struct.secret, bytes(len(self._struct.secret)), len(self._struct.secret))
