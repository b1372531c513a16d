# SPDX-License-Identifier: Apache-2.0
"""Backward passes under DDP that fail: the rank lives, and an exception says why. `failing.py` has what the ranks do.

DDP waits for its buckets in C++. An error that is one to Python alone is a result there, and reading it ends the
process by SIGSEGV.
"""

import pytest

from tests.e2e.hosts import running
from tests.torch.ranks import Outcome, start_ranks, wait_for

pytestmark = [pytest.mark.check, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def ranks() -> list[Outcome]:
    """What both ranks brought back, after all classes of failures in turn."""
    with running(2) as hosts:
        environment = {"ULTIMA_TEST_DAEMON": str(hosts[1].pid)}
        sockets = [host.socket for host in hosts]
        return wait_for(start_ranks("all", 2, sockets, environment, "tests.torch.failing"), 100)


def ends(outcome: Outcome, case: str) -> list[str]:
    assert outcome.status == 0 and outcome.result is not None, f"status {outcome.status}:\n{outcome.errors}"
    return outcome.result[case]


def test_desync__is_an_exception(ranks: list[Outcome]) -> None:
    (text,) = ends(ranks[0], "desync")
    assert "Desync: op " in text and "count differs: " in text and "on rank 1" in text


def test_ranks_gone__is_an_exception(ranks: list[Outcome]) -> None:
    texts = ends(ranks[0], "gone")
    assert len(texts) == 2
    for text in texts:
        assert "RanksGone: op " in text and "rank 1 cannot take part any more" in text


def test_insufficient__is_an_exception_where_that_is_wanted(ranks: list[Outcome]) -> None:
    texts = ends(ranks[0], "insufficient")
    assert len(texts) == 2
    for text in texts:
        assert "Insufficient: op " in text and "ULTIMA_ON_INSUFFICIENT is raise" in text


def test_stalled_daemon__is_a_step_with_a_warning(ranks: list[Outcome]) -> None:
    """Own values, or where the buckets lie in the arena what the daemon says in the end. The rank goes on."""
    plain, total, hooked, total_again = ends(ranks[1], "stalled")
    assert (plain["error"], hooked["error"]) == ("", "")
    assert plain["troubles"] == ["daemon short of CPU"] * 3
    assert any("did not answer by the deadline" in text and "stopped by a signal" in text for text in plain["told"])
    assert "daemon short of CPU" not in hooked["troubles"]
    assert any("too late" in text and "lies in the arena" in text for text in hooked["told"]), hooked
    assert (total, total_again) == (2.0, 2.0)


def test_killed_daemon__is_an_exception_in_each_step(ranks: list[Outcome]) -> None:
    """DDP takes no further step if a bucket's collective raises where it is called."""
    first, *later = ends(ranks[1], "killed")
    assert "DaemonLost: the daemon hung up" in first
    assert len(later) == 2
    for text in later:
        assert "DaemonUnavailable: no daemon at " in text
