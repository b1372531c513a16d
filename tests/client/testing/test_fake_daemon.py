# SPDX-License-Identifier: Apache-2.0
"""The public fake does what its docstring promises to other people's tests."""

import time

import numpy as np
import pytest

import ultima
from tests.client.api.slots import SEED, Call
from ultima import DeadlineExceeded, Desync, InvalidArgument, StageEnd, Status, UltimaWarning, Why
from ultima.api import job
from ultima.base.buffers import AnyArray
from ultima.testing import FakeDaemon


def test_peer__stands_in_for_ranks_that_nobody_connects() -> None:
    asked: list[tuple[int, int]] = []

    def peer(rank: int, op_seq: int, mine: AnyArray) -> AnyArray | None:
        asked.append((rank, op_seq))
        return None if (rank, op_seq) == (3, 1) else mine * rank

    with FakeDaemon(4, peer=peer) as daemon, daemon.connect(0, arena="64K") as job:
        mine = np.full(8, 6.0)
        assert job.allreduce(mine, "sum").contributors == (0, 1, 2, 3)
        assert mine.tolist() == [42.0] * 8
        mine[:] = 6
        receipt = job.allreduce(mine, deadline="100ms")
        assert (receipt.status, receipt.contributors, receipt.partly) == (Status.PARTIAL, (0,), (1, 2))
        assert sorted(mine.tolist()) == [6.0] * 2 + [8.0] * 6, "divided by who arrived; in what rank 3 adds up, the own"
    assert sorted(set(asked)) == [(rank, seq) for rank in (1, 2, 3) for seq in (0, 1)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_peer__that_raises_ends_the_daemon() -> None:
    daemon = FakeDaemon(2, peer=lambda rank, op_seq, mine: mine[99])
    with daemon, daemon.connect(0, arena="64K") as job, pytest.raises(ultima.DaemonLost, match="hung up"):
        job.allreduce(np.ones(3), deadline=60)


def test_receipt__bytes_are_conserved_and_blame_is_placed() -> None:
    daemon = FakeDaemon(4, ranks_per_host=2, peer=lambda rank, op_seq, mine: mine)
    with daemon, daemon.connect(0, arena="64K") as job:
        daemon.leave_out(2, 3)
        receipt = job.allreduce(np.ones(9), deadline="50ms")
        assert (receipt.status, receipt.contributors, receipt.culprit) == (Status.INSUFFICIENT, (0, 1), (2, 3))
        assert receipt.bytes_expected == receipt.bytes_used + receipt.bytes_missing == 9 * 8
        assert receipt.peers[1].why is Why.SILENT
        assert receipt.stage_ends[0] is StageEnd.DEADLINE
        daemon.leave_out()
        assert job.allreduce(np.ones(9)).complete


def test_delay__makes_a_rank_late() -> None:
    with FakeDaemon(2) as daemon, daemon.connect(0, arena="64K") as a, daemon.connect(1, arena="64K") as b:
        daemon.delay(1, 0.15)
        mine, theirs = np.zeros(4), np.ones(4)
        start = time.monotonic()
        handles = a.allreduce_async(mine, "sum", deadline=20), b.allreduce_async(theirs, "sum", deadline=20)
        assert [handle.wait().complete for handle in handles] == [True, True]
        assert time.monotonic() - start >= 0.15
        assert mine.tolist() == theirs.tolist() == [1.0] * 4


def test_rank_taken__is_refused() -> None:
    with FakeDaemon(2) as daemon, daemon.connect(0, arena="64K"), pytest.raises(ultima.JoinRefused, match="rank 0"):
        daemon.connect(0, arena="64K")


def test_world_size__must_be_the_fakes() -> None:
    with FakeDaemon(2) as daemon, daemon.installed(), pytest.raises(ultima.InvalidArgument, match="world_size"):
        ultima.connect(rank=0, world_size=3)


def test_installed__only_inside_the_block() -> None:
    with FakeDaemon(1) as daemon:
        with daemon.installed():
            assert job.connector_override is daemon
        assert job.connector_override is None
        with pytest.raises(ZeroDivisionError), daemon.installed():
            _ = 1 / 0
        assert job.connector_override is None


def test_agree__identical_bytes_or_an_exception() -> None:
    with FakeDaemon(world_size=3) as daemon:
        jobs = [daemon.connect(rank) for rank in range(3)]
        arrays = [np.full(4, rank, np.float32) for rank in range(3)]
        handles = [job.allreduce_async(a, agree=True) for job, a in zip(jobs, arrays, strict=True)]
        digests = {handle.wait().digest for handle in handles}
        assert len(digests) == 1 and 0 not in digests
        daemon.leave_out(2)
        handles = [
            job.allreduce_async(a, agree=True, deadline=0.3) for job, a in zip(jobs[:2], arrays[:2], strict=True)
        ]
        for handle in handles:
            with pytest.raises(
                DeadlineExceeded, match=r"\(with agree=True\): it did not finish by its deadline"
            ) as caught:
                handle.wait()
            assert caught.value.receipt is not None and caught.value.receipt.culprit == (2,)
        handles = [
            job.allreduce_async(a, agree=agree)
            for job, a, agree in zip(jobs[:2], arrays[:2], (True, False), strict=True)
        ]
        for handle in handles:
            with pytest.raises(Desync) as desync:
                handle.wait()
            assert desync.value.field == "agree"
            assert {desync.value.mine, desync.value.theirs} == {True, False}
        for job in jobs:
            job.close()


def test_advance__deadlines_come_without_a_sleep() -> None:
    with FakeDaemon(2) as daemon, daemon.connect(0, arena="64K") as a, daemon.connect(1, arena="64K") as b:
        began = time.monotonic()
        handle = a.allreduce_async(np.ones(4), deadline="1h")
        assert not handle.done()
        daemon.advance(1800)
        assert not handle.done()
        daemon.advance(1800)
        receipt = handle.wait()
        assert receipt.status is Status.INSUFFICIENT and 3000 < receipt.elapsed_s <= 3600
        assert not b.allreduce(np.ones(4), deadline=20).complete, "rank 0 is through with that op"
        handles = [job.allreduce_async(np.ones(4), deadline=20) for job in (a, b)]
        assert [handle.wait().complete for handle in handles] == [True, True]
        assert time.monotonic() - began < 60


def test_lose__packets_are_repaired_and_counted() -> None:
    with FakeDaemon(2) as daemon, daemon.connect(0, arena="1M") as a, daemon.connect(1, arena="1M") as b:
        daemon.lose(0.2)
        data = [np.full(50_000, value) for value in (1.0, 2.0)]
        handles = [job.allreduce_async(each, "sum", mode="reliable") for job, each in zip((a, b), data, strict=True)]
        receipts = [handle.wait() for handle in handles]
        assert all(receipt.complete for receipt in receipts) and (data[0] == 3).all() and (data[1] == 3).all()
        assert sum(receipt.bytes_repaired for receipt in receipts) > 0
        daemon.lose(0)
        with pytest.raises(ultima.InvalidArgument, match=r"share is 1\.5; allowed: 0 to 1"):
            daemon.lose(1.5)


def test_options__what_no_job_can_have_is_refused_and_forgotten() -> None:
    with FakeDaemon(3) as daemon:
        with pytest.raises(ultima.InvalidArgument, match="options is 'policy coded, stragglers 1'"):
            daemon.connect(0, options=ultima.Options(policy="coded", stragglers=1))
        with daemon.connect(0, arena="64K", options=ultima.Options(incast=2)) as job:
            assert job.options["incast"] == "2"
        with pytest.raises(ultima.Desync, match="incast"):
            daemon.connect(1, arena="64K", options=ultima.Options(incast=1))


def test_world__more_hosts_than_an_engine_knows() -> None:
    with pytest.raises(ultima.InvalidArgument, match="64 hosts of 1 ranks"):
        FakeDaemon(65)
    with pytest.raises(ultima.InvalidArgument, match="ranks_per_host is 17"):
        FakeDaemon(34, ranks_per_host=17)


def test_probe__a_drawn_rank_starts_the_op() -> None:
    """The part of the daemon that asks drawn ranks stands in the fake: without it no op of such a job starts."""
    said = ultima.Options(policy="probe", probes=1, policy_seed=SEED)
    with FakeDaemon(2) as daemon:
        jobs = [daemon.connect(rank, arena="64K", options=said) for rank in range(2)]
        faces = [job.partial(divisor="none") for job in jobs]
        faces[0].give(np.full(4, 1.0))
        assert faces[0].wait(deadline="30ms") is None, "rank 1 is drawn, and has given nothing"
        faces[1].give(np.full(4, 2.0))
        found = [face.wait(deadline="10s") for face in faces]
        for result in found:
            assert result is not None and result.array.tolist() == [3.0] * 4 and result.receipt.initiator == (1,)
        for job in jobs:
            job.close()


PEERED: list[tuple[str, Call, list[float]]] = [
    ("allreduce", lambda job, mine: (job.allreduce(mine, "sum"), mine), [6.0] * 6),
    ("broadcast", lambda job, mine: (job.broadcast(mine, 2), mine), [3.0] * 6),
    ("all_gather", lambda job, mine: (job.all_gather(mine[:2], out := np.zeros(6)), out), [1.0, 1, 2, 2, 3, 3]),
    ("reduce_scatter", lambda job, mine: (job.reduce_scatter(mine, out := np.zeros(2), "sum"), out), [6.0] * 2),
    ("all_to_all", lambda job, mine: (job.all_to_all(mine, out := np.zeros(6)), out), [1.0, 1, 2, 2, 3, 3]),
    ("barrier", lambda job, mine: (job.barrier(), mine), [1.0] * 6),
]


@pytest.mark.parametrize(("name", "call", "wanted"), PEERED, ids=[name for name, _, _ in PEERED])
def test_peer__has_its_part_in_every_collective(name: str, call: Call, wanted: list[float]) -> None:
    """Rank r brings r + 1; each call is made twice, for what a rank keeps of the first must not be in the second."""
    daemon = FakeDaemon(3, peer=lambda rank, op_seq, mine: mine + mine.dtype.type(rank))
    with daemon, daemon.connect(0, arena="64K") as job:
        for _ in range(2):
            receipt, found = call(job, np.ones(6))
            assert receipt.complete and found.tolist() == wanted


def test_peer__gives_to_sparse_sums_and_to_jobs_with_a_policy() -> None:
    with FakeDaemon(2, peer=lambda rank, op_seq, mine: mine[::-1]) as daemon, daemon.connect(0, arena="64K") as job:
        out = np.zeros(8, np.float32)
        indices, values = np.array([1, 6], np.uint32), np.array([2.0, 3.0], np.float32)
        assert job.allreduce_sparse(indices, values, out).complete
        assert out.tolist() == [0, 2.5, 0, 0, 0, 0, 2.5, 0]
    said = ultima.Options(policy="solo")
    answers = [2.0, None, 4.0]

    def peer(rank: int, op_seq: int, mine: AnyArray) -> AnyArray | None:
        factor = answers[op_seq]
        return None if factor is None else mine * factor

    with FakeDaemon(2, peer=peer) as daemon, daemon.connect(0, arena="64K", options=said) as job:
        for total, fresh in ((3.0, (0, 1)), (1.0, (0,)), (5.0, (0, 1))):
            mine = np.ones(4)
            receipt = job.allreduce(mine, "sum")
            assert mine.tolist() == [total] * 4 and receipt.fresh == fresh


def test_set_options__all_hosts_go_by_them_from_the_next_op_on() -> None:
    with FakeDaemon(2) as daemon:
        with pytest.raises(InvalidArgument, match="once a rank is attached"):
            daemon.set_options("tau=3")
        said = ultima.Options(policy="solo")
        a, b = (daemon.connect(rank, arena="64K", options=said) for rank in range(2))
        assert a.allreduce(np.ones(4), "sum").policy == "solo"
        daemon.set_options("policy=quorum", "quorum=1", "eta=2")
        alone = a.allreduce(np.ones(4), "sum")
        assert (alone.policy, alone.fresh, alone.eta) == ("quorum", (0,), 2), alone
        for pair, why in (("policy=none", "policy none"), ("algorithm=ring", "algorithm cannot be changed")):
            with pytest.raises(InvalidArgument, match=why):
                daemon.set_options(pair)
        assert a.allreduce(np.ones(4), "sum").policy == "quorum", "what is refused changes nothing"
        b.close()
        with daemon.connect(1, arena="64K", options=said) as again:
            assert again.options["policy"] == "quorum", "who comes back is told"
        a.close()


def test_ranks_per_host__peers_beside_and_elsewhere() -> None:
    daemon = FakeDaemon(5, ranks_per_host=2, peer=lambda rank, op_seq, mine: np.full(4, float(rank)))
    with daemon, daemon.connect(1, arena="64K") as job:
        for _ in range(2):
            mine = np.full(4, 1.0)
            receipt = job.allreduce(mine, "sum")
            assert receipt.complete and receipt.contributors == (0, 1, 2, 3, 4) and mine.tolist() == [10.0] * 4
        daemon.leave_out(0)
        receipt = job.allreduce(np.ones(4), deadline="100ms")
        assert not receipt.complete and 0 in receipt.missing_ranks


def test_leave_out__one_of_two_ranks_of_a_host_is_not_heard_by_its_daemon() -> None:
    with FakeDaemon(2, ranks_per_host=2) as daemon, daemon.connect(0, arena="64K") as a, daemon.connect(1) as b:
        daemon.leave_out(0)
        handles = [job.allreduce_async(np.ones(4), "sum", deadline="200ms") for job in (a, b)]
        assert handles[1].wait().missing_ranks == (0,)
        with pytest.warns(UltimaWarning, match="did not answer"):
            assert handles[0].wait().trouble is ultima.Trouble.DAEMON
        daemon.leave_out()
        data = [np.ones(4), np.ones(4)]
        handles = [job.allreduce_async(each, "sum", deadline=20) for job, each in zip((a, b), data, strict=True)]
        assert [handle.wait().complete for handle in handles] == [True, True] and data[0].tolist() == [2.0] * 4
