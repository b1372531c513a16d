# SPDX-License-Identifier: Apache-2.0
"""A cut network under an elastic job: the larger side goes on, the smaller one does as `split` says, and healing ends
in one view. Sums prove whose gradients are in each result, on either side.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import ultima
from tests.e2e.elastic import Jobs, check, enter_all, summed, whole_soon
from tests.lab.cluster import PORT, Cluster
from tests.lab.lab import Lab
from ultima import Status

HOSTS = 4
HEALS_S = 60.0

pytestmark = [pytest.mark.root]


def enter_lab(lab: Lab, cluster: Cluster, split: str) -> dict[int, ultima.ElasticJob]:
    meet = f"{lab.host(0).address}:{PORT}"
    hosts = {n: SimpleNamespace(socket=cluster.socket(n), rendezvous=meet) for n in range(HOSTS)}
    return enter_all(hosts, hosts[0], "cuts", most=HOSTS, split=split)  # type: ignore[arg-type]


def stands_still(jobs: Jobs, ops: int = 3) -> None:
    """Soon, and from then on, ops end with each rank's own value."""
    run = 0
    for _ in range(40):
        found = summed(jobs, deadline="500ms")
        check(jobs, found)
        run = run + 1 if all(receipt.status is Status.INSUFFICIENT for receipt, _ in found.values()) else 0
        if run == ops:
            return
    raise AssertionError(f"hosts {sorted(jobs)} go on: {[job.view for job in jobs.values()]}")


def cut(lab: Lab, jobs: Jobs, smaller: set[int], split: str) -> None:
    """One cut, what each side does meanwhile, and the healing."""
    sides = {n: job for n, job in jobs.items() if n not in smaller}, {n: jobs[n] for n in smaller}
    lab.set_partition(sides[0], sides[1])
    with ThreadPoolExecutor(2) as threads:
        main = threads.submit(whole_soon, sides[0], 40.0, deadline="1s")
        other = threads.submit(*((stands_still, sides[1]) if split == "wait" else (whole_soon, sides[1], 40.0)))
        main.result(), other.result()
    assert {job.view.ranks for job in sides[0].values()} == {tuple(sorted(job.rank for job in sides[0].values()))}
    lab.set_partition()
    whole_soon(jobs, HEALS_S, deadline="1s")
    assert len({(job.view.number, job.view.ranks) for job in jobs.values()}) == 1
    assert next(iter(jobs.values())).view.world_size == HOSTS


@pytest.mark.check
@pytest.mark.timeout(240)
@pytest.mark.parametrize("split", ["go on", "wait"])
def test_cut__the_larger_side_goes_on_and_healing_ends_in_one_view(split: str) -> None:
    with Lab(HOSTS) as lab, Cluster(lab) as cluster:
        jobs = enter_lab(lab, cluster, split)
        try:
            whole_soon(jobs)
            cut(lab, jobs, {3}, split)
        finally:
            lab.set_partition()
            for job in jobs.values():
                job.close()
