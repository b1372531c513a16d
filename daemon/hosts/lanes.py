# SPDX-License-Identifier: Apache-2.0
"""How many lanes a job has, and into how many portions its large ops are split.

All ranks must number and split their ops alike, so both are settled when the job forms, from what its hosts say then,
and hold for its life.
"""

from __future__ import annotations

from collections.abc import Collection

from ultima.daemon.base.options import Options
from ultima.daemon.hosts.host import Host
from ultima.v1.job_options import BY_FIELD

AUTO, NEVER, ALWAYS = range(1, 1 + len(BY_FIELD["split"].words))


def lanes(options: Options, hosts: Collection[Host]) -> int:
    """Lanes of a job: as many as each of its hosts has, and a CPU for each besides those of the ranks.

    The ranks of a host compute meanwhile, one CPU each, unless `split` is "always". Threads that have no CPU of their
    own only take turns, and of ops that go to them in turn each wakes another one. A host whose daemon does not say
    how many CPUs it has does not count. At most one op of a partial job is open at a time: there is nothing to spread.
    """
    if options.partial:
        return 1
    most = min(len(host.ports) for host in hosts)
    if options.split == ALWAYS:
        return most
    return max(1, min([most, *(host.cpus - len(host.ranks) for host in hosts if host.cpus)]))


def portions(options: Options, hosts: Collection[Host], lanes: int) -> int:
    """Into how many portions a large op is split: 1, or one for each lane.

    A host whose daemon does not say how many CPUs it has is of a release that splits nothing.
    """
    if options.partial or options.split == NEVER or not all(host.cpus for host in hosts):
        return 1
    return lanes
