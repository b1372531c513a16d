# SPDX-License-Identifier: Apache-2.0
"""Gradient averaging that is bounded in time and accounts for every byte.

    with ultima.connect() as job:              # rank, world size and addresses as torchrun sets them
        receipt = job.allreduce(gradient, deadline="250ms")
        if not receipt.complete:
            print(receipt)

Public names only, each loaded when it is first asked for: the shell command imports this package, and has no use for
numpy. Each module says what it is for. `ultima.testing` has a daemon for tests, `ultima.torch` the backend.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from ultima.api.coded import Coded
    from ultima.api.handle import Handle
    from ultima.api.job import CodedJob, ElasticJob, Job, PartialJob, connect
    from ultima.api.partial import Partial, Result
    from ultima.api.sync import SyncResult
    from ultima.base.errors import (
        Behind,
        ClosedHandle,
        DaemonError,
        DaemonLost,
        DaemonUnavailable,
        DeadlineExceeded,
        Desync,
        ForkedHandle,
        HandleError,
        Insufficient,
        InvalidArgument,
        JoinRefused,
        JoinTimeout,
        NotDone,
        ProtocolError,
        RanksGone,
        ResourceExhausted,
        TimedOut,
        UltimaError,
        Unsupported,
    )
    from ultima.base.receipt import Gift, Host, PeerReceipt, Receipt, StageEnd, Status, Trouble, Why
    from ultima.base.scalars import log_receipts
    from ultima.base.views import Change, View
    from ultima.base.warning import UltimaWarning
    from ultima.local.account import OuterSummary, Round
    from ultima.local.outer import Nonfinite, Outer
    from ultima.local.rules import Nesterov
    from ultima.settings.options import Options
    from ultima.state.outcome import StateReport

__all__ = [
    "Behind",
    "Change",
    "ClosedHandle",
    "Coded",
    "CodedJob",
    "DaemonError",
    "DaemonLost",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "Desync",
    "ElasticJob",
    "ForkedHandle",
    "Gift",
    "Handle",
    "HandleError",
    "Host",
    "Insufficient",
    "InvalidArgument",
    "Job",
    "JoinRefused",
    "JoinTimeout",
    "Nesterov",
    "Nonfinite",
    "NotDone",
    "Options",
    "Outer",
    "OuterSummary",
    "Partial",
    "PartialJob",
    "PeerReceipt",
    "ProtocolError",
    "RanksGone",
    "Receipt",
    "ResourceExhausted",
    "Result",
    "Round",
    "StageEnd",
    "StateReport",
    "Status",
    "SyncResult",
    "TimedOut",
    "Trouble",
    "UltimaError",
    "UltimaWarning",
    "Unsupported",
    "View",
    "Why",
    "connect",
    "log_receipts",
]

_HOMES = {
    "api.coded": "Coded",
    "api.handle": "Handle",
    "api.job": "CodedJob ElasticJob Job PartialJob connect",
    "api.partial": "Partial Result",
    "api.sync": "SyncResult",
    "base.errors": "Behind ClosedHandle DaemonError DaemonLost DaemonUnavailable DeadlineExceeded Desync ForkedHandle "
    "HandleError Insufficient InvalidArgument JoinRefused JoinTimeout NotDone ProtocolError RanksGone "
    "ResourceExhausted TimedOut UltimaError Unsupported",
    "base.receipt": "Gift Host PeerReceipt Receipt StageEnd Status Trouble Why",
    "base.scalars": "log_receipts",
    "base.views": "Change View",
    "base.warning": "UltimaWarning",
    "local.account": "OuterSummary Round",
    "local.outer": "Nonfinite Outer",
    "local.rules": "Nesterov",
    "settings.options": "Options",
    "state.outcome": "StateReport",
}
# Old names, and what they are called now.
_RENAMED = {"Slot": "Gift"}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    found: object
    home = _HOME_OF.get(name)
    if name in _RENAMED:
        import_module("ultima.base.warning").renamed(f"ultima.{name}", f"ultima.{_RENAMED[name]}")
        return __getattr__(_RENAMED[name])
    if name == "__version__":
        found = import_module("ultima.v1.installed").version()
    elif home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_who_has(name)}")
    else:
        found = getattr(_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def _module(name: str) -> ModuleType:
    """Raises ModuleNotFoundError with a sentence that names what to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        said = import_module("ultima.v1.installed").missing(error, "ultima")
        if said is None:
            raise
        raise ModuleNotFoundError(said, name=error.name) from None


def _who_has(name: str) -> str:
    """Says so if it may be another package's, which is imported by the same name."""
    said = None if name.startswith("_") else import_module("ultima.base.foreign").intruder()
    return f": {said}" if said else ""


def __dir__() -> list[str]:
    ours = {name for name, value in globals().items() if getattr(value, "__name__", "").startswith(f"{__name__}.")}
    return sorted({*__all__, *ours, *(name for name in globals() if name.startswith("__")), "__version__"})
