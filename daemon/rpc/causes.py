# SPDX-License-Identifier: Apache-2.0
"""One cause, one finding: what several checks of `ultima doctor` saw of the same trouble is told once.

Pure functions. Each rule names the finding that says the cause, and takes out those that only show it in another place.
"""

from __future__ import annotations

from collections.abc import Sequence

from ultima.daemon.rpc.local_checks import FAILURE, OK
from ultima.v1 import admin_pb2

SILENT = ("tcp port", "daemon")


def one_each(checks: Sequence[admin_pb2.Check]) -> list[admin_pb2.Check]:
    """The checks without those that repeat a cause; a finding may have got the words of one that went."""
    gone = [row for row in checks if row.name == "peer" and row.verdict == FAILURE]
    blocked = [row for row in checks if row.name == "udp blocked"]
    lost = [row for row in checks if row.name == "loss"]
    kept: list[admin_pb2.Check] = []
    for row in checks:
        if row.verdict == FAILURE and row.name in SILENT:
            # A host that is gone from a job, and that does not answer: the answer says how it is gone.
            of_job = [each for each in gone if f"({row.subject})" in each.finding]
            for each in of_job:
                each.finding += f"; {row.finding}"
            if of_job:
                continue
        if not (_is_closed(row, blocked) or _is_lossy(row, lost)):
            kept.append(row)
    return kept


def _is_closed(row: admin_pb2.Check, blocked: Sequence[admin_pb2.Check]) -> bool:
    """Ports that are closed to the very hosts that a job has found to be cut off."""
    if not row.name.startswith("udp") or row.name == "udp blocked" or row.verdict == OK:
        return False
    return any(all(peer in each.finding for peer in row.subject.split(", ")) for each in blocked)


def _is_lossy(row: admin_pb2.Check, lost: Sequence[admin_pb2.Check]) -> bool:
    """A host that holds ops up because packets to it are lost."""
    if row.name != "slow host" or not row.finding.endswith("slow path"):
        return False
    who = row.finding.partition(" is to blame")[0]
    return any(f"to {who} were lost" in each.finding and each.subject == row.subject for each in lost)
