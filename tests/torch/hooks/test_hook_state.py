# SPDX-License-Identifier: Apache-2.0
"""What ranks agree on between steps, with losses made to order: ranks are threads over a fake daemon."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ultima  # noqa: E402  # only where torch is
from tests.torch.fake_group import FakeGroup, on_all  # noqa: E402
from ultima.testing import FakeDaemon  # noqa: E402
from ultima.torch.hooks import BucketOptions, HookState  # noqa: E402
from ultima.torch.hooks.loss_budget import Account, BucketKey, LossBudget  # noqa: E402

SHORT = "100ms"


def send(values: int = 30, index: int = 0) -> Callable[[int, HookState], float]:
    def act(rank: int, state: HookState) -> float:
        tensor = torch.full((values,), float(rank))
        state.send(tensor, index, True).wait()
        return float(tensor[0])

    return act


def step_ok(_: int, state: HookState) -> bool:
    return state.step_ok()


def nothing_lost(rank: int, mine: Any) -> Any:
    """What pretended rank 2 says when the ranks exchange counts; it never has gradients. Ranks 0 and 1 are real."""
    return np.zeros_like(mine) if rank == 2 and mine.dtype == np.float64 else None


def test_step_ok__one_rank_without_the_others_stops_all() -> None:
    """Rank 2 is cut off: the others have a usable average, and only it has none."""
    with FakeDaemon(world_size=3) as daemon:
        # Who calls later than that behind the others is left out too, as a thread of a busy machine may.
        states = [HookState(FakeGroup(daemon.connect(rank)), deadline="1s") for rank in range(3)]
        daemon.leave_out(2)
        assert on_all(states, send()) == [0.5, 0.5, 2.0]
        daemon.leave_out()
        assert on_all(states, step_ok) == [False] * 3
        assert on_all(states, send()) == [1.0] * 3
        assert on_all(states, step_ok) == [True] * 3
        assert [state.summary().skipped for state in states] == [1] * 3


def test_step_ok__nothing_was_sent() -> None:
    """Then there is nothing to agree on, and no op that others would have to meet."""
    with FakeDaemon(world_size=2) as daemon:
        assert HookState(FakeGroup(daemon.connect(0))).step_ok()


def test_step_ok__ranks_that_sent_different_buckets_are_told() -> None:
    with FakeDaemon(world_size=2) as daemon:
        states = [HookState(FakeGroup(daemon.connect(rank))) for rank in range(2)]
        on_all(states, send())
        states[1]._open.counts[BucketKey(9, 9)] = [0.0, 0.0]
        assert [type(error) for error in on_all(states, step_ok)] == [ultima.Desync] * 2


def test_budget__is_kept_per_bucket_by_what_all_ranks_lost() -> None:
    """Rank 2 is pretended and missing from one op of bucket 0: half of what crosses the network, as ranks 0 and 1 see
    it. The budget lets a fifth go: reliable until the window holds less than that.
    """
    lost = threading.Event()

    def peer(rank: int, _: int, mine: Any) -> Any:
        if mine.dtype == np.float64:
            return nothing_lost(rank, mine)
        return None if rank < 2 or (lost.is_set() and len(mine) == 30) else mine

    with FakeDaemon(world_size=3, peer=peer) as daemon:
        groups = [FakeGroup(daemon.connect(rank)) for rank in range(2)]
        states = [HookState(group, deadline=SHORT, budget=LossBudget(0.2, 4)) for group in groups]
        shares, reliable = [], []
        for step in range(7):
            if step == 1:
                lost.set()
            on_all(states, send(30, 0))
            lost.clear()
            on_all(states, send(20, 1))
            assert on_all(states, step_ok) == [True, True], "PARTIAL is good enough"
            shares.append(round(states[0].share_missing(0), 3))
            reliable.append(states[0].summary().made_reliable)
            assert states[0].share_missing(0) == states[1].share_missing(0)
        assert shares == [0.0, 0.25, 0.167, 0.125, 0.125, 0.0, 0.0]
        assert reliable == [0, 0, 1, 1, 1, 1, 1]
        for group in groups:
            asked = [(mode, deadline) for count, mode, deadline in group.asked if count == 30]
            assert asked == [(None, SHORT)] * 2 + [("reliable", 20.0)] + [(None, SHORT)] * 4
        assert states[0].share_missing(1) == 0.0
        assert states[0].summary().missing_bytes == 2 * 80


def test_budget__none_lets_anything_go() -> None:
    with FakeDaemon(world_size=3, peer=lambda rank, _, mine: nothing_lost(rank, mine)) as daemon:
        states = [HookState(FakeGroup(daemon.connect(rank)), deadline=SHORT, budget=None) for rank in range(2)]
        for _ in range(2):
            assert on_all(states, send()) == [0.5, 0.5]
            assert on_all(states, step_ok) == [True, True]
        assert states[0].summary().made_reliable == 0
        assert states[0].share_missing(0) == 0.5


def test_step_ok__op_that_failed_counts_as_insufficient() -> None:
    with FakeDaemon(world_size=2) as daemon:
        states = [
            HookState(FakeGroup(daemon.connect(rank)), mode="reliable", deadline=deadline)
            for rank, deadline in enumerate([SHORT, "5s"])
        ]
        failed = on_all(states[:1], send())
        assert isinstance(failed[0], ultima.DeadlineExceeded)
        late = on_all(states[1:], lambda _, state: send()(1, state))
        assert isinstance(late[0], ultima.RanksGone), "rank 0 has given the op up"
        assert on_all(states, step_ok) == [False, False]


def test_hadamard__travels_transformed_and_comes_back() -> None:
    """What reaches the wire is not the bucket; what comes back is its average. Not so in reliable mode, and in other
    types, where it would be for nothing.
    """
    seen: list[Any] = []

    def peer(_: int, __: int, mine: Any) -> Any:
        seen.append(mine.copy())
        return mine

    with FakeDaemon(world_size=2, peer=peer) as daemon:
        policy = {1: BucketOptions("reliable"), 2: BucketOptions(hadamard=False)}
        state = HookState(FakeGroup(daemon.connect(0)), hadamard=True, policy=policy)
        before = (torch.arange(64 * 352) % 31).float()
        for index, dtype in enumerate([torch.float32, torch.float32, torch.float32, torch.float64]):
            tensor = before.to(dtype)
            assert torch.equal(state.send(tensor, index, False).future().wait(), before.to(dtype))
        same = [bool((each == before.numpy()).all()) for each in seen]
        assert same == [False, True, True, True]
        tensor = before.clone()
        state.send(tensor, 4, False).wait()
        assert torch.equal(tensor, before)
        assert not (seen[-1] == seen[0]).all(), "other signs for each op"


def test_account__forgets_what_left_the_window() -> None:
    account, key = Account(LossBudget(0.1, 2)), BucketKey(0, 100)
    account.add(key, 30, 100)
    assert account.share(key) == 0.3 and account.used_up(key)
    assert account.share(BucketKey(0, 200)) == 0.0, "another bucket"
    account.add(key, 0, 200)
    assert account.share(key) == 0.1 and not account.used_up(key), "all of the budget is not more than it"
    account.add(key, 0, 100)
    assert account.share(key) == 0.0


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("mode", lambda: HookState(mode="sometimes")),
        ("deadline", lambda: HookState(deadline="soon")),
        ("budget", lambda: HookState(budget=0.1)),
        ("sync_every", lambda: HookState(sync_every=-1)),
        ("policy", lambda: HookState(policy=3)),
        ("policy", lambda: HookState(policy={"first": BucketOptions()})),
        ("policy", lambda: HookState(policy={0: "reliable"})),
        ("mode", lambda: BucketOptions(mode="off")),
        ("hadamard", lambda: HookState(hadamard="on")),
        ("share", lambda: LossBudget(share=2)),
        ("window", lambda: LossBudget(window=0)),
        ("group", lambda: HookState(object()).group),
    ],
)
def test_bad_input__is_named(field: str, make: Callable[[], Any]) -> None:
    with pytest.raises(ultima.InvalidArgument) as caught:
        make()
    assert str(caught.value).startswith(f"{field} is ")


def test_policy__function_that_returns_something_else() -> None:
    with FakeDaemon(world_size=2) as daemon:
        state = HookState(FakeGroup(daemon.connect(0)), policy=lambda bucket: "reliable")
        with pytest.raises(ultima.InvalidArgument, match="BucketOptions"):
            state.send(torch.zeros(3), 0, True)
