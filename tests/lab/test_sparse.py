# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients between real network stacks that lose packets.

Containers: whole, and the same sums everywhere, or the test fails. It can: an exchange over a bounded mode would come
with holes, and a container with one does not decode. Sums in the network, sealed: exact bits on all ranks, also among
those that are left when an owner has died. They can fail: a block that was added twice, a range divided by another
number of ranks, or a shard that stays with the dead shows in the values.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ultima
from tests.daemon.trust.papers import Authority
from tests.e2e.hosts import everywhere
from tests.e2e.test_sparse_reduce import SIZE, dense, entries
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab
from tests.lab.sparse_rank import STEPS
from tests.lab.test_trouble import ranks
from ultima.admin.calls import get_status
from ultima.base.sparse_form import Floats

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(180)]


@pytest.mark.parametrize("loss", [1, 5])
def test_exchange__with_loss(loss: int, tmp_path: Path) -> None:
    with Lab(3, 200, loss, unit="packet") as lab, Cluster(lab) as cluster:
        ranks = []
        for rank in range(3):
            with (tmp_path / f"{rank}.out").open("wb") as out:
                command = [sys.executable, "-m", "tests.lab.sparse_rank", str(tmp_path / f"{rank}.json")]
                ranks.append(lab.host(rank).popen(command, cluster.environment(rank), cwd=ROOT, stdout=out,
                                                  stderr=subprocess.STDOUT))  # fmt: skip
        limit = time.monotonic() + 120
        for number, rank in enumerate(ranks):
            status = rank.wait(max(0.1, limit - time.monotonic()))
            assert status == 0, f"rank {number}: {(tmp_path / f'{number}.out').read_text()}"
        events, taken = lab.dropped()
    assert events > 0 and taken > 0, "nothing was lost: this run says nothing"
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [len(steps) for steps in told] == [STEPS] * 3
    for steps in zip(*told, strict=True):
        assert all(one["same"] for one in steps) and len({one["digest"] for one in steps}) == 1


def averages(jobs: list[ultima.Job], step: int, form: str, mode: str, deadline: float) -> list[ultima.Receipt]:
    """One average of all |jobs|; where a receipt says that it is of all ranks, it is to the bit."""
    given = [entries(rank, step, 0.05) for rank in range(3)]
    outs: list[Floats] = [np.full(SIZE, 9, np.float32) for _ in jobs]

    def call(rank: int, job: ultima.Job) -> ultima.Receipt:
        return job.allreduce_sparse(*given[rank], outs[rank], form=form, mode=mode, deadline=deadline)

    receipts = everywhere(jobs, call)
    for rank, (receipt, out) in enumerate(zip(receipts, outs, strict=True)):
        assert isinstance(receipt, ultima.Receipt), f"rank {rank}: {receipt!r}"
        sums = {present: dense([given[one] for one in present], 1, form)
                for present in ((0, 1, 2), (0, 1), (0, 2), (1, 2), (rank,))}  # fmt: skip
        may_be = [(total / np.float32(len(present))).astype(np.float32) for present, total in sums.items()]
        if form == "float16":
            may_be = [each.astype(np.float16).astype(np.float32) for each in may_be]
        wanted = may_be[:1] if receipt.complete else may_be
        assert np.any([out == each for each in wanted], axis=0).all(), f"rank {rank}, step {step}: {receipt}"
    return receipts


def nothing_is_lost(jobs: list[ultima.Job], step: int) -> int:
    """Adds up a power of two for each rank, so that a sum says who is in it. What a rank gave is in its result, or was
    returned to it, never both; and what was returned is in nobody's result. How many entries were returned."""
    given = [entries(rank, step, 0.05)[0] for rank in range(3)]
    outs: list[Floats] = [np.full(SIZE, 9, np.float32) for _ in jobs]
    back = [np.zeros(SIZE, np.float32) for _ in jobs]

    def call(rank: int, job: ultima.Job) -> ultima.Receipt:
        values = np.full(given[rank].size, 2.0**rank, np.float32)
        keep = back[rank].__setitem__
        return job.allreduce_sparse(given[rank], values, outs[rank], op="sum", mode="best_effort", deadline=2,
                                    returns=keep)  # fmt: skip

    for receipt in everywhere(jobs, call):
        assert isinstance(receipt, ultima.Receipt), receipt
    for rank, indices in enumerate(given[: len(jobs)]):
        kept = back[rank][indices] != 0
        assert (back[rank][indices][kept] == 2**rank).all() and np.count_nonzero(back[rank]) == kept.sum()
        for other, out in enumerate(outs):
            among = out[indices].astype(np.int64) >> rank & 1 != 0
            assert not among[kept].any(), f"step {step}: rank {other} has what rank {rank} was given back"
            assert other != rank or among[~kept].all(), f"step {step}: rank {rank} has lost something"
    return int(sum(np.count_nonzero(each) for each in back))


@pytest.mark.parametrize(("loss", "form"), [(0, "float32"), (1, "float16"), (5, "float32")])
def test_sum__sealed_with_loss_and_an_owner_that_dies(loss: int, form: str) -> None:
    with Lab(3, 200, loss, unit="packet") as lab, Cluster(lab, authority=Authority()) as cluster:
        assert get_status(str(cluster.socket(0))).security.mode == "certificates"
        with ranks(cluster) as jobs:
            for step in range(3):
                assert all(one.complete for one in averages(jobs, step, form, "reliable", 30)), step
            events, taken = lab.dropped()
            assert not loss or (events > 0 and taken > 0), "nothing was lost: this run says nothing"
            # Losses are repaired until it is known how long such an op takes.
            returned = sum(nothing_is_lost(jobs, step) for step in range(60 if loss == 5 else 5))
            assert returned or loss < 5, "no owner missed anything: this run says nothing"
            cluster.daemons[2].send_signal(signal.SIGKILL)
            limit = time.monotonic() + 40
            for step in range(3, 100):
                receipts = averages(jobs[:2], step, form, "bounded", 2)
                if all(one.bytes_missing == 0 and not one.complete for one in receipts):
                    return  # the two that are left own all of it
                assert time.monotonic() < limit, f"the dead still owns its shard: {receipts}"
