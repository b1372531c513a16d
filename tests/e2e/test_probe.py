# SPDX-License-Identifier: Apache-2.0
"""PROBE with real daemons and engines: the drawn ranks start the ops, and nobody waits for anybody else.

A gradient that comes while an op runs lies ready for the next one, which may begin before the test has looked: so what
is claimed of an op goes by its own number, not by the step of the test.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import DaemonProcess, Hosts, connect_all, everywhere, new_job_name, ranks
from tests.e2e.test_trouble import until
from ultima.admin.calls import get_status, tune
from ultima.base.reference import picks
from ultima.v1 import admin_pb2, types_pb2

SEED = 42
PROBE = ultima.Options(policy="probe", policy_seed=SEED)
ELEMENTS = 3000
# So that what is pending changes no sum: it is combined to the same value again.
RNA = {"local_reduce": "weighted", "divisor": "contributors"}
POLICIES = {"solo": types_pb2.POLICY_SOLO, "seeded": types_pb2.POLICY_SEEDED, "probe": types_pb2.POLICY_PROBE}


class Book:
    """What the ranks were told of each op."""

    def __init__(self, slots: Sequence[ultima.Partial], whole: bool = True) -> None:
        """`whole`: no host is dead, whose shard nobody would have."""
        self.slots, self.whole = list(slots), whole
        self.initiator: dict[int, int] = {}
        self.receipts: dict[int, ultima.Receipt] = {}
        self._sums: dict[int, float] = {}

    def step(self, step: int, givers: Sequence[ultima.Partial] | None = None) -> ultima.Receipt:
        """Each of `givers`, or of all, gives two to the power of its rank; all take a result that is new to them."""
        for slot in self.slots if givers is None else givers:
            slot.give(np.full(ELEMENTS, float(1 << slot._session.rank), np.float32), step=step)
        got = everywhere(self.slots, lambda _, slot: slot.wait(deadline="10s"))
        assert all(isinstance(one, tuple) for one in got), got
        for array, receipt in got:
            op_seq = receipt.op_seq
            (initiator,) = receipt.initiator
            # Without a controller two hosts may start an op at once, each by its own word; it is one op nevertheless.
            one = self.initiator.setdefault(op_seq, initiator) == initiator
            assert one or receipt.policy != "probe", "an op starts once"
            self.receipts[op_seq] = receipt
            if self.whole:
                assert receipt.complete and (array == array[0]).all()
                included = sum(1 << rank for rank in (*receipt.fresh, *receipt.stale))
                assert array[0] == self._sums.setdefault(op_seq, np.float32(included / receipt.included))
        return max((receipt for _, receipt in got), key=lambda receipt: receipt.op_seq)


def status_of(host: DaemonProcess, job: ultima.Job) -> admin_pb2.JobStatus:
    (status,) = get_status(str(host.socket), job.name).jobs
    return status


def test_probe__ranks_that_were_drawn_start_the_ops(four: Hosts) -> None:
    with ranks(four, options=PROBE) as jobs:
        book = Book([job.partial(**RNA) for job in jobs])
        for step in range(25):
            assert book.step(step).policy == "probe"
        for op_seq, initiator in book.initiator.items():
            assert initiator in picks(SEED, op_seq, 4, 2), f"op {op_seq}"
        assert len(set(book.initiator.values())) > 1
        for index, host in enumerate(four):
            status = status_of(host, jobs[0])
            assert status.controller_host == 0
            assert (status.probes.decided_count >= 25) == (index == 0)


def test_probe__two_ranks_that_never_call_are_not_waited_for(four: Hosts) -> None:
    """They cost a draw's time in ops for which only they are drawn, and nothing else; and they get all results."""
    with ranks(four, options=ultima.Options(policy="probe", policy_seed=SEED, tau=255)) as jobs:
        slots = [job.partial(**RNA) for job in jobs]
        book = Book(slots[2:])
        for step in range(5):  # one of them is an op for which nobody else is drawn
            book.step(step)
        newest_seq = max(book.receipts)
        hopeless = [op_seq for op_seq in range(newest_seq + 1) if set(picks(SEED, op_seq, 4, 2)) == {0, 1}]
        late = status_of(four[0], jobs[0]).probes.timed_out_count
        assert 1 <= len(hopeless) <= late <= len(hopeless) + 1, "the draw for the op after the newest may be one, too"
        for op_seq, receipt in book.receipts.items():
            assert book.initiator[op_seq] in (2, 3) and not {0, 1} & {*receipt.fresh, *receipt.stale}
        out = np.zeros(ELEMENTS, np.float32)
        newest = slots[0].poll(out=out)
        assert newest is not None and newest.receipt.op_seq >= 4 and out[0] == out[-1] > 0


@contextmanager
def job_on(hosts: Hosts) -> Iterator[list[ultima.Job]]:
    """A rank on each, where some will lose their daemon."""
    jobs = connect_all(hosts, new_job_name(), options=PROBE)
    try:
        yield jobs
    finally:
        for job in jobs:
            job.close()


def test_probe__goes_on_when_the_controllers_host_dies(daemons: Callable[[int], Hosts]) -> None:
    hosts = daemons(4)
    with job_on(hosts) as jobs:
        slots = [job.partial(**RNA) for job in jobs]
        before = Book(slots)
        for step in range(6):
            before.step(step)
        hosts[0].kill()
        after = Book(slots[1:], whole=False)
        for step in range(6, 12):
            after.step(step)
        assert min(after.initiator) <= max(before.initiator) + 2, "the iteration id goes on"
        assert len(after.initiator) >= 6
        late = {host for op_seq, host in after.initiator.items() if op_seq > max(before.initiator) + 1}
        assert late <= {1, 2, 3}
        for host in hosts[1:]:
            assert status_of(host, jobs[0]).controller_host == 1
        assert "controller begins" in hosts[1].log()
        with pytest.raises(ultima.DaemonLost):
            slots[0].give(np.ones(ELEMENTS, np.float32))


def test_probe__begins_and_ends_with_the_policy(four: Hosts) -> None:
    with ranks(four, options=ultima.Options(policy="solo", policy_seed=SEED)) as jobs:
        book, step = Book([job.partial(**RNA) for job in jobs]), 0
        for tau, policy in enumerate(("probe", "solo", "seeded", "probe"), start=9):
            # While no op runs: a busy host may hear of a policy too late where ops follow one another so quickly.
            tune(str(four[2].socket), jobs[0].name, {"policy": POLICIES[policy], "tau": tau})
            began = max(book.receipts, default=0)
            while (receipt := book.step(step)).policy != policy or receipt.op_seq < began + 4:
                step += 1
                assert step < 400, f"{policy} does not come"
            wanted = 0 if policy == "probe" else -1
            assert until(lambda wanted=wanted: status_of(four[1], jobs[0]).controller_host == wanted), policy
        for op_seq, receipt in book.receipts.items():
            if receipt.policy in ("probe", "seeded"):
                assert book.initiator[op_seq] in picks(SEED, op_seq, 4, 2), f"op {op_seq}"
