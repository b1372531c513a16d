# SPDX-License-Identifier: Apache-2.0
"""Ranks of jobs whose hosts come and go, for the end-to-end tests, and ops whose sums prove who was in them.

A rank gives 2 to the power of its number, so a sum names the ranks that are in it, whatever seats their hosts have.
With K ranks on each host, the numbers of host H are H * K to H * K + K - 1.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import ultima
from tests.e2e.hosts import DaemonProcess
from ultima import ElasticJob, Receipt, Status

N = 6_000
Jobs = Mapping[int, ElasticJob]


def enter(host: DaemonProcess, meet: DaemonProcess, job: str, **rules: Any) -> ElasticJob:
    """A rank on a host; it returns when the host is in."""
    chosen = {"world": "elastic", "least": 1, "most": 8, "timeout": 20, "deadline": "2s", "arena": "4M", **rules}
    places = chosen.pop("meets", meet.rendezvous)
    made = ultima.connect(job, socket=host.socket, meet=places, **chosen)
    assert isinstance(made, ElasticJob)
    return made


def enter_all(hosts: Mapping[int, DaemonProcess], meet: DaemonProcess, job: str, **rules: Any) -> dict[int, ElasticJob]:
    """A rank on each host at once, by the host's number."""
    with ThreadPoolExecutor(len(hosts)) as threads:
        made = threads.map(lambda host: enter(host, meet, job, **rules), hosts.values())
        return dict(zip(hosts, made, strict=True))


def summed(jobs: Jobs, **call: Any) -> dict[int, tuple[Receipt, np.ndarray]]:
    """One sum on each of these hosts at once: the receipt, and the vector."""

    def one(number: int) -> tuple[Receipt, np.ndarray]:
        data = np.full(N, 2.0**number) + np.arange(N) % 3 / 64
        return jobs[number].allreduce(data, "sum", **call), data

    with ThreadPoolExecutor(max(1, len(jobs))) as threads:
        return dict(zip(jobs, threads.map(one, jobs), strict=True))


def who_is_in(data: np.ndarray) -> list[set[int]]:
    """Of each element the hosts whose gifts are in it. It fails where a gift is in it in part or twice."""
    found = []
    for value in {float(each) for each in data[::3]}:
        assert value == int(value) and value >= 0, value
        found.append({bit for bit in range(64) if int(value) >> bit & 1})
    return found


def check(jobs: Jobs, found: Mapping[int, tuple[Receipt, np.ndarray]]) -> None:
    """Each receipt says what its result contains."""
    at = {job.rank: number for number, job in jobs.items()}
    for number, (receipt, data) in found.items():
        sets = who_is_in(data)
        inside = set.union(*sets)
        known = {at[rank] for rank in receipt.contributors if rank in at}
        text = f"host {number}: {sets} in the sum, its receipt: {receipt!r}"
        assert all(known <= each for each in sets), text
        if receipt.status is Status.COMPLETE:
            assert {at[rank] for rank in receipt.members if rank in at} <= inside and len(sets) == 1, text
            assert len(inside) == len(receipt.members), text
            assert receipt.contributors == receipt.members and receipt.world_size == len(receipt.members), text
            count = len(inside)
            assert np.array_equal(data[1::3] - data[::3][: data[1::3].size], np.full(data[1::3].size, count / 64)), text
        if receipt.status is Status.INSUFFICIENT:
            each = jobs[number]._connection.settings.local_world_size
            assert number in inside and {other // each for other in inside} == {number // each}, text
            assert len(inside) == len(receipt.contributors), text


def whole_soon(jobs: Jobs, seconds: float = 20.0, **call: Any) -> int:
    """Ops until one is complete on just these hosts, with the same bits. Hosts go at their own pace, as in a training:
    one that was away is behind, and its calls that come too late end at once, in views whose seats others had."""
    limit, ranks = time.monotonic() + seconds, {job.rank for job in jobs.values()}
    since = max(job.view.number for job in jobs.values())
    got: dict[int, dict[int, tuple[int, int, bytes]]] = {number: {} for number in jobs}

    def common() -> set[int]:
        return set.intersection(*(set(ops) for ops in got.values()))

    def one(number: int) -> int:
        calls = 0
        while time.monotonic() < limit and not common():
            calls += 1
            found = summed({number: jobs[number]}, **call)
            check({number: jobs[number]}, found)
            receipt, data = found[number]
            if receipt.view < since or not set(receipt.members) <= ranks:
                continue
            assert set.union(*who_is_in(data)) <= {*jobs}, receipt
            if receipt.complete and set(receipt.members) == ranks:
                assert set.union(*who_is_in(data)) == {*jobs}, receipt
                got[number] |= {receipt.op_seq: (receipt.view, receipt.digest, data.tobytes())}
        return calls

    with ThreadPoolExecutor(len(jobs)) as threads:
        calls = list(threads.map(one, jobs))
    assert common(), f"no op was complete on hosts {sorted(jobs)} in {seconds} s: {[j.view for j in jobs.values()]}"
    for op in common():
        assert len({ops[op] for ops in got.values()}) == 1, f"op {op} differs"
    return max(calls)
