# SPDX-License-Identifier: Apache-2.0
"""A group that is given new members in place. Members are threads at one daemon, over one store in memory."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.ft.manager import replicas  # noqa: E402
from ultima import ClosedHandle, InvalidArgument, JoinTimeout, RanksGone, TimedOut  # noqa: E402
from ultima.demo.cluster import Cluster  # noqa: E402
from ultima.torch.ft.reconfigure import ReconfigurableProcessGroup  # noqa: E402

PATIENT = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def _daemon(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ULTIMA_SOCKET", str(cluster.sockets[0]))
    yield


def change(group: Any, uuid: int, handles: Any, timeout: timedelta | None = None) -> None:
    """As `dist._reconfigure`, which torch has from 2.14 on."""
    group.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints={})).wait()


def total(group: Any) -> tuple[int, int, float]:
    """Rank, size, and the sum of two to the power of every rank: it says who is in it."""
    value = torch.full((1000,), float(1 << group.rank()))
    group.allreduce([value]).wait()
    assert len(set(value.tolist())) == 1
    return group.rank(), group.size(), value[0].item()


class Members:
    """Groups of |count| members that are threads, and what they tell each other."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.store = torch.distributed.HashStore()
        self._barrier = threading.Barrier(count, timeout=30)
        self._handles = [""] * count

    def group(self, member: int, timeout: timedelta = PATIENT) -> Any:
        return ReconfigurableProcessGroup(self.store, member, self.count, timeout, "test")

    def handles(self, member: int, group: Any) -> list[str]:
        """The newest handle of each member."""
        self._handles[member] = group.get_reconfigure_handle()
        self._barrier.wait()
        found = list(self._handles)
        self._barrier.wait()
        return found

    def run(self, act: Callable[[int, Any], Any]) -> list[Any]:
        def one(member: int, _: Any) -> Any:
            group = self.group(member)
            try:
                return act(member, group)
            finally:
                group.shutdown()

        return replicas(self.count, one)


def test_reconfigure__in_order_as_a_set_smaller_and_larger() -> None:
    members = Members(3)

    def act(member: int, group: Any) -> Any:
        with pytest.raises(ClosedHandle, match=r"call reconfigure\(\)"):
            group.allreduce([torch.ones(1)])
        assert (group.rank(), group.size()) == (member, 3)
        change(group, 1, members.handles(member, group))
        seen = [total(group)]
        handles = members.handles(member, group)
        if member != 1:
            change(group, 2, [handles[2], handles[0]])
            seen.append(total(group))
        handles = members.handles(member, group)
        change(group, 3, set(handles))
        seen.append(total(group))
        assert group.rank() == sorted(handles).index(handles[member])
        change(group, 10 + member, [group.get_reconfigure_handle()])
        return [*seen, total(group)]

    first, second, third = members.run(act)
    assert first[:2] == [(0, 3, 7.0), (1, 2, 3.0)], first
    assert third[:2] == [(2, 3, 7.0), (0, 2, 3.0)], third
    assert second[0] == (1, 3, 7.0)
    assert sorted(each[-2] for each in (first, second, third)) == [(rank, 3, 7.0) for rank in range(3)]
    assert [each[-1] for each in (first, second, third)] == [(0, 1, 1.0)] * 3


def test_reconfigure__that_fails_leaves_the_members_from_before_in_force() -> None:
    """The third member does not come; then a uuid is used again; then the other two go on without it."""
    members = Members(3)

    def act(member: int, group: Any) -> Any:
        change(group, 1, members.handles(member, group))
        handles = members.handles(member, group)
        if member != 2:
            with pytest.raises(JoinTimeout, match=r"rank 2 of 3 did not come to the change within 0\.3 s"):
                change(group, 2, handles, timedelta(seconds=0.3))
        members.handles(member, group)
        before = total(group)
        members.handles(member, group)
        if member == 2:
            return before
        with pytest.raises(RuntimeError, match="already used"):
            change(group, 2, handles[:2])
        change(group, 3, handles[:2])
        return before, total(group)

    assert members.run(act) == [((0, 3, 7.0), (0, 2, 3.0)), ((1, 3, 7.0), (1, 2, 3.0)), (2, 3, 7.0)]


def test_reconfigure__survivors_of_a_death_and_what_is_under_way() -> None:
    members = Members(3)

    def act(member: int, group: Any) -> Any:
        change(group, 1, members.handles(member, group))
        handles = members.handles(member, group)
        if member == 2:
            time.sleep(0.1)
            return None
        work = group.allreduce([torch.ones(1000, dtype=torch.int64)])
        before = group.parent
        change(group, 2, handles[:2])
        with pytest.raises((ClosedHandle, RanksGone)):
            work.wait()
        assert before.job is None, "it was closed, and not left to the garbage collector"
        return total(group)

    assert members.run(act) == [(0, 2, 3.0), (1, 2, 3.0), None]


def test_reconfigure__of_the_same_members_goes_on_in_their_job() -> None:
    members = Members(3)

    def act(member: int, group: Any) -> Any:
        change(group, 1, members.handles(member, group))
        total(group)
        job, numbers = group.job, []
        for uuid in (2, 3):
            handles = members.handles(member, group)
            change(group, uuid, handles)
            with pytest.raises(InvalidArgument, match="the newest of each member"):
                change(group, 10 + uuid, handles)
            assert group.job is job and not group.last_receipts(), "the receipts are of this generation"
            assert total(group) == (member, 3, 7.0)
            numbers.append(group.last_receipts()[-1].op_seq)
        assert numbers == [1, 2]
        handles = members.handles(member, group)
        change(group, 4, [handles[1], handles[0], handles[2]])
        assert group.job is not job, "another order is another job"
        return total(group)

    assert members.run(act) == [(1, 3, 7.0), (0, 3, 7.0), (2, 3, 7.0)]


def called_once_more(group: Any, member: int) -> None:
    if member == 1:
        with pytest.raises(TimedOut):
            group.parent.allreduce_with(torch.ones(8), "sum", mode="reliable", deadline=0.05).wait()


def under_way(group: Any, member: int) -> Any:
    return None if member else group.allreduce([torch.ones(8, dtype=torch.int64)])


def sent(group: Any, member: int) -> None:
    """Nobody takes it."""
    if member == 0:
        group.send([torch.full((4,), 7.0)], 1, 5)


@pytest.mark.parametrize("disorder", [called_once_more, under_way, sent])
def test_reconfigure__of_the_same_members_begins_anew_where_one_is_not_level(disorder: Any) -> None:
    """What was left over reaches nobody."""
    members = Members(3)

    def act(member: int, group: Any) -> Any:
        change(group, 1, members.handles(member, group))
        job, work = group.job, disorder(group, member)
        change(group, 2, members.handles(member, group))
        assert group.job is not job
        if work is not None:
            with pytest.raises((ClosedHandle, RanksGone)):
                work.wait()
        if disorder is sent and member < 2:
            value = torch.full((4,), 3.0)
            (group.recv([value], 0, 5) if member else group.send([value], 1, 5)).wait()
            assert value.tolist() == [3.0] * 4
        return total(group)

    assert members.run(act) == [(member, 3, 7.0) for member in range(3)]


def test_reconfigure__after_abort() -> None:
    members = Members(2)

    def act(member: int, group: Any) -> Any:
        change(group, 1, members.handles(member, group))
        group.abort()
        with pytest.raises(ClosedHandle):
            group.allreduce([torch.ones(1)])
        change(group, 2, members.handles(member, group))
        return total(group)

    assert members.run(act) == [(0, 2, 3.0), (1, 2, 3.0)]


def test_reconfigure__bad_handles_are_named() -> None:
    group = Members(1).group(0)
    stale = group.get_reconfigure_handle()
    change(group, 1, [stale])
    own = group.get_reconfigure_handle()
    assert own != stale, "a handle serves for one change"
    for handles in ([stale], [own, own], [], [own, "gloo:0:1:0:127.0.0.1:29777"], [own, "ultima:v1:x"]):
        with pytest.raises(InvalidArgument) as raised:
            change(group, 100 + len(handles), handles)
        assert raised.value.field == "handles"
    assert total(group) == (0, 1, 1.0)
    group.shutdown()


def test_init_process_group__with_enable_reconfigure() -> None:
    """What torch 2.14 and newer have for it."""
    dist = torch.distributed
    if not hasattr(dist, "_reconfigure"):
        with pytest.raises(TypeError):
            dist.init_process_group("ultima", rank=0, world_size=1, store=dist.HashStore(), enable_reconfigure=True)
        return
    import ultima.torch  # noqa: F401

    dist.init_process_group("ultima", rank=0, world_size=1, store=dist.HashStore(), enable_reconfigure=True)
    try:
        assert dist._supports_reconfigure()
        dist._reconfigure(uuid=1, handles=[dist._get_reconfigure_handle()]).wait()
        value = torch.ones(3)
        dist.all_reduce(value)
        backend = dist.get_backend_impl(None, torch.device("cpu"))
        assert backend.supports_reconfigure and value.tolist() == [1, 1, 1]
    finally:
        dist.destroy_process_group()
