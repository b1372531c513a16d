# SPDX-License-Identifier: Apache-2.0
"""A receipt of the engine as a message: the fields have the same names."""

from __future__ import annotations

from typing import Any

from ultima.v1 import records_pb2


def to_proto(raw: Any) -> records_pb2.OpReceipt:
    """A struct ut_receipt as a message: the fields have the same names."""
    receipt = records_pb2.OpReceipt()
    _copy(raw, receipt)
    for host in range(raw.hosts):
        _copy(raw.peer[host], receipt.peer.add())
    return receipt


def _copy(raw: Any, message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            continue
        value = getattr(raw, field.name)
        if field.is_repeated:
            getattr(message, field.name).extend(list(value))
        else:
            setattr(message, field.name, value)
