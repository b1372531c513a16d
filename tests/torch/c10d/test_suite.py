# SPDX-License-Identifier: Apache-2.0
"""Torch's own c10d tests: some on each run, all that Gloo passes in the long one, and the page that lists them."""

from collections.abc import Iterator

import pytest

from tests.torch.c10d.suite import EXEMPT, TABLE, WORLD, RankServer, Result, compare, table
from ultima.demo.cluster import Cluster

# One for each collective and form, groups, peer to peer, and DDP with each of its ways to reduce.
QUICK = """
    test_all_gather test_all_gather_coalesced_simple test_all_gather_complex test_all_gather_object_default_pg
    test_all_reduce_sum test_all_reduce_sum_async test_all_reduce_group_product test_all_reduce_coalesced_sum
    test_all_reduce_sum_complex test_all_to_all test_all_to_all_single_equal_split test_all_to_all_single_unequal_split
    test_barrier_group test_batch_isend_irecv_gloo test_broadcast
    test_DistributedDataParallelCPU_grad_is_view test_gather test_irecv test_reduce_group_max test_reduce_sum
    test_scatter test_send_recv_any_source test_sparse_all_reduce_sum
""".split()


@pytest.fixture(scope="module")
def daemons() -> Iterator[Cluster]:
    with Cluster() as cluster:
        cluster.start_daemons(WORLD)
        yield cluster


@pytest.fixture(scope="module")
def ultima(daemons: Cluster) -> Iterator[RankServer]:
    with RankServer("ultima", daemons.sockets) as server:
        yield server


@pytest.mark.check
@pytest.mark.parametrize("name", QUICK)
def test_suite__selection(ultima: RankServer, name: str) -> None:
    found = ultima.run(name)
    assert found.outcome == "passed", found.reason


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_suite__all_that_gloo_passes(ultima: RankServer) -> None:
    with RankServer("gloo") as gloo:
        found = compare(gloo, ultima, list(gloo.tests))
    failed = {name: mine.reason for name, (_, mine) in found.items() if mine is not None and mine.outcome != "passed"}
    assert failed == {}
    asked = [mine for theirs, mine in found.values() if theirs.outcome == "passed"]
    assert len(asked) - len(EXEMPT) >= 90, "the suite found next to nothing to run"


@pytest.mark.check
def test_page__lists_every_test_of_this_torch(ultima: RankServer) -> None:
    """A new torch brings new tests, and a page that is not written again would keep silent about them."""
    rows = [line.split("|")[1:-1] for line in TABLE.read_text().splitlines() if line.startswith("| test_")]
    listed = {row[0].strip(): (row[1].strip(), row[2].strip()) for row in rows}
    assert listed.keys() == ultima.tests.keys()
    assert [name for name, (_, mine) in listed.items() if mine in ("failed", "skipped")] == []
    not_run = {name for name, (gloo, mine) in listed.items() if gloo == "passed" and mine == "not run"}
    assert not_run == EXEMPT.keys()
    assert all(listed[name][1] == "passed" for name in QUICK)


def test_page__names_each_reason_once_below_the_table() -> None:
    """Reasons are too long for a column, and most of them hold for many tests."""
    passed, cuda = Result("passed", "", 1.0), Result("skipped", "CUDA is not available.", 0.0)
    failed = Result("failed", "Traceback\nAssertionError: " + "x " * 90, 1.0)
    page = table(
        {"test_a": (passed, passed), "test_b": (cuda, None), "test_c": (cuda, None), "test_d": (passed, failed)}
    )
    rows = [line for line in page.splitlines() if line.startswith("| test_")]
    assert [row.split("|")[-2].strip() for row in rows] == ["", "1", "1", "2"]
    assert page.count("CUDA is not available.") == 1 and "\n2. AssertionError: x" in page
    assert "Of the 2 tests that Gloo passes, Ultima passes 1" in page
    assert max(map(len, page.splitlines())) <= 120
