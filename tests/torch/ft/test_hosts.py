# SPDX-License-Identifier: Apache-2.0
"""ProcessGroupUltima on two hosts, where what a member gives may come too late for a sum. Replicas are threads, each at
a daemon of its own.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.client.base.test_receipt import COMPLETE  # noqa: E402
from tests.torch.ft.manager import Lighthouse, Manager, replicas  # noqa: E402
from ultima import DeadlineExceeded  # noqa: E402
from ultima.base.receipt import Status  # noqa: E402
from ultima.demo.cluster import Cluster  # noqa: E402
from ultima.torch.backend import group as backend  # noqa: E402
from ultima.torch.ft import Incomplete, ProcessGroupUltima  # noqa: E402
from ultima.torch.ft.verdict import Verdict  # noqa: E402

PATIENT = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def _daemons(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replica r is at daemon r. A process has one ULTIMA_SOCKET for all of its threads, so the path is told apart."""

    def of_thread(*_: object) -> str:
        return str(cluster.sockets[int(threading.current_thread().name.rpartition("-")[2]) % 2])

    monkeypatch.setattr(backend, "socket_path", of_thread)
    yield


def late_step(lacking: str, late_s: float, deadline: str) -> list[Any]:
    """For each of two replicas whether it took the step to which the second one was late, the elements of its average,
    its error, and the status of the reduction."""

    def run(replica: int, house: Lighthouse) -> Any:
        group = ProcessGroupUltima(PATIENT, lacking=lacking, deadline=deadline)
        manager = Manager(group, house, replica)
        for _ in range(3):
            manager.start_quorum()
            value = torch.full((1000,), float(replica + 1))
            manager.allreduce(value)
            assert manager.should_commit(), manager.error
            assert set(value.tolist()) == {1.5}
        manager.start_quorum()
        if replica == 1:
            time.sleep(late_s)
        value = torch.full((1000,), float(replica + 1))
        manager.allreduce(value)
        taken, error = manager.should_commit(), manager.error
        receipts = group.last_receipts(1)
        time.sleep(0.2)
        manager.start_quorum()
        after = torch.full((1000,), float(replica + 1))
        manager.allreduce(after)
        assert manager.should_commit() and set(after.tolist()) == {1.5}, manager.error
        group.shutdown()
        return taken, value.tolist(), error, [receipt.status.value for receipt in receipts]

    return replicas(2, run)


@pytest.mark.check
def test_average__of_a_step_that_lacks_a_late_member_is_of_those_that_came_and_the_same_on_all() -> None:
    """The first stage ends without it at about half of the deadline. Its own shard it sums up when it comes."""
    first, second = late_step("average", 2.1, "3s")
    assert (first[0], first[3], second[0]) == (True, ["PARTIAL"], True), (first[2], second[2])
    assert first[1] == second[1], "replicas stay equal"
    assert set(first[1]) == {1.0, 1.5}, "a sum over less is never divided by the number of all: that were 0.5"


def test_average__is_taken_by_no_member_that_cannot_have_what_the_others_have() -> None:
    """The first one waits for the second one's shard in vain, and the second one comes when the first one is gone."""
    first, second = late_step("average", 0.8, "0.3s")
    assert (first[0], second[0]) == (False, False), (first[3], second[3])


def test_discard__of_a_step_whose_member_is_later_than_the_deadline() -> None:
    first, second = late_step("discard", 0.8, "0.3s")
    assert (first[0], second[0]) == (False, False)
    assert isinstance(first[2], DeadlineExceeded), first[2]


@pytest.mark.parametrize(
    ("lacking", "status", "wrong"),
    [
        ("discard", Status.PARTIAL, True),
        ("discard", Status.INSUFFICIENT, True),
        ("average", Status.PARTIAL, False),
        ("average", Status.INSUFFICIENT, True),
    ],
)
def test_verdict__of_a_receipt(lacking: str, status: Status, wrong: bool) -> None:
    receipt = replace(COMPLETE, status=status, contributors=(0,), world_size=3, bytes_missing=100)
    verdict = Verdict(lacking)
    assert verdict.take_error() is None
    tell = verdict.on_partial if status is Status.PARTIAL else verdict.on_insufficient
    found = tell(receipt)
    assert isinstance(found, Incomplete) == wrong and verdict.take_error() is found and verdict.take_error() is None
    assert not wrong or ("lacks 100 of" in str(found) and "ranks 1-2" in str(found)), str(found)
