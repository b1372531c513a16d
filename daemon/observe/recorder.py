# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: the newest receipts of each job, for `ultima explain`.

The engine keeps those of a running job by itself; nothing here happens while ops run. What it has is copied when
somebody asks, and once more when a job ends, so that the last jobs can still be explained.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from ultima.daemon.base.errors import NotFound
from ultima.daemon.engine.lanes import Lanes
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.trainers.users import may_manage
from ultima.v1 import admin_pb2

ENDED_MAX = 8  # jobs that are remembered after their end


class Recorder:
    """See the module."""

    def __init__(self, engine: Lanes) -> None:
        self._engine = engine
        self._ended: OrderedDict[tuple[int, str], admin_pb2.GetReceiptsResponse] = OrderedDict()
        """By owner and name, the one that ended first in front."""

    def recorded(
        self, name: str, number: int, world_size: int, hosts: list[tuple[Host, State]]
    ) -> admin_pb2.GetReceiptsResponse:
        """All that the engine has kept of a running job, newest first."""
        return admin_pb2.GetReceiptsResponse(
            job=name,
            world_size=world_size,
            running=True,
            hosts=[host.to_proto(state) for host, state in hosts],
            receipts=sorted(self._engine.receipts(number), key=lambda receipt: -receipt.op_seq),
        )

    def job_ends(self, record: admin_pb2.GetReceiptsResponse, uid: int) -> None:
        """Keeps a record of a user's job that is about to be removed; one life of a name, the newest.

        Where there are too many, one of the user goes who has the most: nobody can wash away what others have.
        """
        if not record.receipts:
            return
        record.running = False
        self._ended.pop((uid, record.job), None)
        self._ended[uid, record.job] = record
        while len(self._ended) > ENDED_MAX:
            ((most, _),) = Counter(owner for owner, _ in self._ended).most_common(1)
            del self._ended[next(key for key in self._ended if key[0] == most)]

    def ended(self, name: str, uid: int) -> admin_pb2.GetReceiptsResponse | None:
        """The newest record that this user may read of an ended job of this name; of any for ""."""
        readable = (key for key in reversed(self._ended) if name in ("", key[1]) and may_manage(key[0], uid))
        return next((self._ended[key] for key in readable), None)

    def owners(self, name: str) -> list[int]:
        """The users whose ended jobs of this name are remembered, the newest first."""
        return [uid for uid, job in reversed(self._ended) if job == name]


def selected(record: admin_pb2.GetReceiptsResponse, op_seq: int | None) -> admin_pb2.GetReceiptsResponse:
    """The record with the receipt of one op; of the newest op for None. Raises NotFound."""
    found = [receipt for receipt in record.receipts if op_seq is None or receipt.op_seq == op_seq][:1]
    if not found:
        kept = f"ops {record.receipts[-1].op_seq} to {record.receipts[0].op_seq} are" if record.receipts else "none is"
        raise NotFound(f"op_seq = {op_seq if op_seq is not None else 'newest'}: not recorded here; {kept}")
    ret = admin_pb2.GetReceiptsResponse()
    ret.CopyFrom(record)
    del ret.receipts[:]
    ret.receipts.extend(found)
    return ret
