# SPDX-License-Identifier: Apache-2.0
"""Gradient averaging that is bounded in time and accounts for every byte.

    with ultima.connect() as job:              # rank, world size and addresses as torchrun sets them
        receipt = job.allreduce(gradient, deadline="250ms")
        if not receipt.complete:
            print(receipt)

Public names only; each module says what it is for. `ultima.testing` has a daemon for tests, `ultima.torch` the backend.
"""

from ultima.api.handle import Handle
from ultima.api.job import Job, connect
from ultima.api.partial import Partial, Result
from ultima.api.sync import SyncResult
from ultima.base.errors import (
    ClosedHandle,
    DaemonError,
    DaemonLost,
    DaemonUnavailable,
    DeadlineExceeded,
    Desync,
    ForkedHandle,
    HandleError,
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
from ultima.base.receipt import Host, PeerReceipt, Receipt, Slot, StageEnd, Status, Trouble, Why
from ultima.settings.options import Options

__all__ = [
    "ClosedHandle",
    "DaemonError",
    "DaemonLost",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "Desync",
    "ForkedHandle",
    "Handle",
    "HandleError",
    "Host",
    "InvalidArgument",
    "Job",
    "JoinRefused",
    "JoinTimeout",
    "NotDone",
    "Options",
    "Partial",
    "PeerReceipt",
    "ProtocolError",
    "RanksGone",
    "Receipt",
    "ResourceExhausted",
    "Result",
    "Slot",
    "StageEnd",
    "Status",
    "SyncResult",
    "TimedOut",
    "Trouble",
    "UltimaError",
    "Unsupported",
    "Why",
    "connect",
]
