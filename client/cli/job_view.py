# SPDX-License-Identifier: Apache-2.0
"""Who is in the ops of a job, and why other hosts are not, for people and for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ultima.v1 import admin_pb2


def view_facts(message: admin_pb2.JobStatus | admin_pb2.GetReceiptsResponse) -> dict[str, Any] | None:
    """The view of a job in JSON's types; None if its daemon knows none."""
    if not message.HasField("view"):
        return None
    view = message.view
    outside = [
        {"host": each.host, "place": each.place, "reason": each.reason, "text": each.text} for each in view.outside
    ]
    return {
        "number": view.number,
        "from_op": view.from_op_seq,
        "why": view.why,
        "hosts": list(view.hosts),
        "outside": outside,
    }


def outside_lines(message: admin_pb2.JobStatus | admin_pb2.GetReceiptsResponse) -> list[str]:
    """A sentence for each host that is not in the view, with the reason."""
    return [
        f"Not in view {message.view.number}: host {each.host} ({each.place}): {each.reason}: {each.text}."
        for each in message.view.outside
    ]
