# SPDX-License-Identifier: Apache-2.0
"""Whether the large ops of a job are split over its lanes.

All ranks must split alike, so it is settled when the job forms, from what its hosts say then, and holds for its life.
"""

from __future__ import annotations

from collections.abc import Collection

from ultima.daemon.base.options import Options
from ultima.daemon.hosts.host import Host
from ultima.v1.job_options import BY_FIELD

AUTO, NEVER, _ = range(1, 1 + len(BY_FIELD["split"].words))


def portions(options: Options, hosts: Collection[Host], lanes: int) -> int:
    """Into how many portions: 1, or one for each lane.

    "auto": if each host has a CPU for each of its ranks, which compute meanwhile, and one for each lane. A host whose
    daemon does not say how many it has is of a release that splits nothing.
    """
    if options.partial or options.split == NEVER or not all(host.cpus for host in hosts):
        return 1
    if options.split == AUTO and any(host.cpus - len(host.ranks) < lanes for host in hosts):
        return 1
    return lanes
