# SPDX-License-Identifier: Apache-2.0
"""What other hosts say that they recorded, looked at before it is believed: they may lie, or be of another release.

The daemon on this host hands their answers on as they are. What does not fit together is left out and told of, so that
the records of all other hosts are shown.
"""

from __future__ import annotations

from ultima.session.decode import is_whole
from ultima.v1 import admin_pb2, records_pb2
from ultima.v1.limits import HOSTS_MAX, WORLD_SIZE_MAX


def leave_out(answer: admin_pb2.GetOpsResponse) -> list[str]:
    """Takes out of an answer each life whose hosts and ranks make no job, and of the others each receipt that lacks
    what a receipt has. Returns a sentence for each life of which something was taken."""
    told, kept = [], []
    for life in answer.lives:
        if not is_job(life):
            told.append(
                f"left out: what host {life.host_index} says of its job, because its hosts or ranks make no job"
            )
            continue
        whole = [receipt for receipt in life.receipts if is_whole(receipt)]
        wrong = len(life.receipts) - len(whole)
        if wrong:
            told.append(f"left out: {wrong} receipts of host {life.host_index}, because they lack what a receipt has")
            del life.receipts[:]
            life.receipts.extend(whole)
        kept.append(life)
    del answer.lives[:]
    answer.lives.extend(kept)
    return told


def is_job(life: records_pb2.JobLife) -> bool:
    """Whether it is a life on one of the hosts of a job: hosts by index, and each rank on one of them."""
    ranks = [rank for host in life.hosts for rank in host.ranks]
    return (
        1 <= life.world_size <= WORLD_SIZE_MAX
        and 0 <= life.host_index < len(life.hosts) <= HOSTS_MAX
        and all(host.index == index for index, host in enumerate(life.hosts))
        and len(set(ranks)) == len(ranks)
        and all(0 <= rank < life.world_size for rank in ranks)
    )
