# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: the newest receipts of each job, for `ultima explain`.

The engine keeps those of a running job by itself; nothing here happens while ops run. What it has is copied when
somebody asks, and once more when a job ends, so that the last jobs can still be explained.
"""

from __future__ import annotations

from collections import OrderedDict

from ultima.daemon.errors import NotFound
from ultima.daemon.hosts import Host, State
from ultima.daemon.lanes import Lanes
from ultima.v1 import admin_pb2

ENDED_MAX = 8  # jobs that are remembered after their end


class Recorder:
    """See the module."""

    def __init__(self, engine: Lanes) -> None:
        self._engine = engine
        self._ended: OrderedDict[str, admin_pb2.GetReceiptsResponse] = OrderedDict()

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

    def job_ends(self, record: admin_pb2.GetReceiptsResponse) -> None:
        """Keeps a record of a job that is about to be removed; one life of a name, the newest."""
        if not record.receipts:
            return
        record.running = False
        self._ended.pop(record.job, None)
        self._ended[record.job] = record
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def ended(self, name: str) -> admin_pb2.GetReceiptsResponse | None:
        """The record of an ended job; of the last one that ended for ""."""
        if not name:
            return next(reversed(self._ended.values()), None)
        return self._ended.get(name)


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
