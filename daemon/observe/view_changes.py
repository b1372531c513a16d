# SPDX-License-Identifier: Apache-2.0
"""How the view of a job changed: the sentence that the event `view_changed` tells it with, and what is read of that.

The log and the history keep events as sentences. So whoever shows how views changed, this daemon's page or `ultima
history` after a restart, reads them out of these; both sides of the sentence are here.
"""

from __future__ import annotations

import re

from ultima.daemon.observe.events import HostEvent
from ultima.v1 import records_pb2

KIND = "view_changed"
_SENTENCE = re.compile(
    r"(?P<start>\d+): (?P<why>.*); (?P<hosts>\d+) of (?P<seats>\d+) hosts, (?P<owners>\d+) of them own shards"
    r"(?: \((?P<left_out>\d+) more of this kind were left out\))?",
    re.DOTALL,
)
_HOST = re.compile(r"host (\d+) (comes in|leaves|is gone)")


def sentence(job: str, number: int, start: int, why: str, hosts: int, seats: int, owners: int) -> str:
    """Of a view that holds from op `start` on: why it came about, how many hosts are in it of how many that can be, and
    how many of them own a shard."""
    return f"view {number} of job {job} from op {start}: {why}; {hosts} of {seats} hosts, {owners} of them own shards"


def read(event: HostEvent) -> records_pb2.ViewChange | None:
    """What an event tells of a view; None if it tells of none."""
    if event.kind != KIND:
        return None
    number, _, rest = event.text.removeprefix("view ").partition(f" of job {event.job} from op ")
    found = _SENTENCE.fullmatch(rest)
    if found is None or not number.isdecimal():
        return None
    change = records_pb2.ViewChange(
        at_ns=event.at_ns,
        job=event.job,
        number=int(number),
        from_op_seq=int(found["start"]),
        why=found["why"],
        hosts=int(found["hosts"]),
        seats=int(found["seats"]),
        owners=int(found["owners"]),
        left_out=int(found["left_out"] or 0),
    )
    lists = {"comes in": change.came, "leaves": change.left, "is gone": change.gone}
    for clause in found["why"].split(", "):
        if (host := _HOST.fullmatch(clause)) is not None:
            lists[host[2]].append(int(host[1]))
    return change
