# SPDX-License-Identifier: Apache-2.0
"""Jobs with a policy on the fake: what is given, what comes out, and what becomes of what came too late.

The fake reads a contribution only when its op ends, so that a client that writes too early gives wrong values.
"""

import threading
import time
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.api.slots import SEED, Witness, at_once, slots, until
from ultima import Gift, Job, Options, Receipt, Status
from ultima.base.reference import picks
from ultima.testing import FakeDaemon

# Eager-SGD


def test_allreduce__figure_7() -> None:
    """docs/papers.md, section 2.6: P1 gives 4, P0 comes too late with 6; it adds 10 and 16 goes into the next op with
    P1's 8.
    """
    with slots(2, "majority", policy_seed=SEED) as (_, (late, first)):
        mine, theirs = np.array([6.0]), np.array([4.0])
        receipt = first.allreduce(theirs)
        assert (theirs[0], receipt.included, receipt.fresh, receipt.initiator) == (2.0, 1, (1,), (1,))
        receipt = late.allreduce(mine)
        assert mine[0] == 2.0 and receipt.kept and receipt.gift is Gift.NULL, "the result of op 0; ours stays"
        assert late.partial().pending == (0,)
        mine[:], theirs[:] = 10, 8
        late_receipt, receipt = at_once(lambda: late.allreduce(mine), lambda: _later(late, first, theirs))
        assert (mine[0], theirs[0]) == (12.0, 12.0)
        assert (late_receipt.stale, late_receipt.stale_steps, late_receipt.fresh) == ((0,), {0: 0}, (1,))
        assert (late_receipt.gift, receipt.gift, late_receipt.kept) == (Gift.STALE, Gift.FRESH, False)
        assert late.partial().pending == () and late.partial().step == 2


def _later(other: Job, job: Job, array: Any, **said: Any) -> Receipt:
    """Calls once the other rank's contribution lies in its slot."""
    until(lambda: other._connection.session._next_seq >= 2)
    time.sleep(0.02)
    return job.allreduce(array, **said)


def test_allreduce__figure_7_absent_again() -> None:
    """What was kept goes into the next op by itself."""
    with slots(2, "majority", policy_seed=SEED) as (_, (late, first)):
        mine, theirs = np.array([6.0]), np.array([4.0])
        first.allreduce(theirs)
        late.allreduce(mine)
        theirs[:] = 8
        receipt = first.allreduce(theirs)
        assert (theirs[0], receipt.stale, receipt.fresh) == (7.0, (0,), (1,))
        assert late.partial().pending == ()
        mine[:] = 1
        receipt = late.allreduce(mine)  # step 1, which has been: 6 is not given twice
        assert (mine[0], receipt.op_seq, receipt.kept) == (7.0, 1, True)
        theirs[:] = 3
        receipts = at_once(lambda: late.allreduce(mine), lambda: first.allreduce(theirs))
        assert {receipt.op_seq for receipt in receipts} == {2}


def test_allreduce__far_behind_takes_the_newest_and_adds_up() -> None:
    with slots(2, "majority", policy_seed=SEED) as (daemon, (late, first)):
        one = np.zeros(3)
        for op in range(2):
            one[:] = 1
            assert first.allreduce(one).op_seq == op
        behind = late.partial()
        for step, value in enumerate((5.0, 7.0)):
            mine = np.full(3, value)
            receipt = late.allreduce(mine)
            assert (receipt.op_seq, receipt.kept, mine.tolist()) == (1, True, [0.5] * 3)
            assert behind.pending == tuple(range(step + 1))
        mine = np.full(3, 9.0)
        one[:] = 1
        daemon.delay(0, 0.3)
        receipts = at_once(lambda: first.allreduce(one), lambda: late.allreduce(mine))
        assert receipts[1].stale_steps == {0: 0} and receipts[1].gift is Gift.STALE
        assert mine.tolist() == one.tolist() == [11.0] * 3, "(5 + 7 + 9 + 1) / 2"


def test_allreduce__dragged_through_50_ops_and_catches_up() -> None:
    with slots(2, "solo", tau=255) as (_, (late, first)):
        for step in range(50):
            assert first.allreduce(np.full(3, float(step))).op_seq == step
        until(lambda: late._connection.session.words().results == 50)
        for _ in range(50):
            mine = np.ones(3)
            receipt = late.allreduce(mine)
            assert (receipt.op_seq, receipt.kept) == (49, True), "no op is started by one that is behind"
            assert mine.tolist() == [24.5] * 3
        assert late.partial().pending == tuple(range(50))
        mine = np.ones(3)
        receipt = late.allreduce(mine)
        assert (receipt.op_seq, receipt.stale_steps, receipt.gift) == (50, {0: 0}, Gift.STALE)
        assert mine.tolist() == [25.5] * 3, "all 51 of them, of two ranks"


@pytest.mark.parametrize("policy,quorum", [("full", None), ("quorum", 3), ("quorum", 2), ("solo", None)])
def test_policies__who_starts_an_op(policy: str, quorum: int | None) -> None:
    needed = {"full": 4, "solo": 1}.get(policy, quorum or 0)
    with slots(4, policy, quorum=quorum) as (_, jobs):
        faces = [job.partial(divisor="contributors") for job in jobs]
        for rank, face in enumerate(faces):
            assert face.poll() is None
            if rank < needed:
                face.give(np.full(2, 2.0**rank), 0)
        result = faces[3].wait(out=np.zeros(2))
        assert result is not None and result.receipt.included == needed
        assert result.receipt.policy == policy and result.receipt.contributors == tuple(range(needed))
        assert result.array.tolist() == [(2.0**needed - 1) / needed] * 2
        assert result.receipt.gift is (Gift.FRESH if needed == 4 else Gift.NULL)
        assert bool(result.receipt.initiator) == (policy != "full")


@pytest.mark.parametrize("policy", ["seeded", "probe"])
def test_policies__of_the_drawn_ranks_the_first_that_is_ready(policy: str) -> None:
    seed = 42
    drawn = picks(seed, 0, 8, 2)
    other = next(rank for rank in range(8) if rank not in drawn)
    with slots(8, policy, policy_seed=seed, probes=2) as (_, jobs):
        jobs[other].partial().give(np.ones(1))
        time.sleep(0.05)
        assert jobs[other].partial().poll() is None, "nobody asked this one"
        jobs[drawn[1]].partial().give(np.full(1, 3.0))
        result = jobs[other].partial().wait()
        assert result is not None and result.receipt.initiator == (drawn[1],)
        assert result.receipt.contributors == tuple(sorted((other, drawn[1]))) and result.array.tolist() == [2.0]


def test_tau__a_rank_absent_too_often_is_waited_for() -> None:
    with slots(2, "solo", tau=3) as (_, (absent, busy)):
        one = np.ones(1)
        for _ in range(3):
            busy.allreduce(one, deadline=30)
        face = busy.partial()
        face.give(one, deadline=30)
        time.sleep(0.1)
        assert face.poll() is None, "it stands, until the absent one gives, or a quarter of 30 s is over"
        absent.partial().give(np.ones(1), 3)
        result = face.wait()
        assert result is not None and result.receipt.included == 2


@pytest.mark.parametrize("divisor,wanted", [("contributors", 4.0), ("world", 3.0), ("none", 12.0)])
def test_divisors__spec_vector(divisor: str, wanted: float) -> None:
    with slots(4, "quorum", quorum=3) as (_, jobs):
        for job, value in zip(jobs, (2.0, None, 4.0, 6.0), strict=True):
            if value is not None:
                job.partial(divisor=divisor).give(np.full(5, value))
        face = jobs[0].partial()
        result = face.wait()
        assert result is not None and result.array.tolist() == [wanted] * 5
        assert face.rate_factor(result.receipt) == (3.0 if divisor == "contributors" else 1.0)


def test_allreduce__sum_and_out_and_arena() -> None:
    with slots(2, "full") as (_, jobs):
        mine, theirs = jobs[0].empty(4), np.full(4, 2.0, np.float32)
        mine[:] = 5
        out = np.zeros(4, np.float32)
        at_once(lambda: jobs[0].allreduce(mine, "sum"), lambda: jobs[1].allreduce(theirs, "sum", out=out))
        assert mine.tolist() == out.tolist() == [7.0] * 4
        assert theirs.tolist() == [2.0] * 4


def test_allreduce__nobody_else_by_the_deadline() -> None:
    """The result is what was given, with what was pending; nothing of it stays behind."""
    with slots(2, "quorum", quorum=2) as (_, (job, other)):
        mine = np.full(2, 3.0)
        receipt = job.allreduce(mine, deadline="50ms")
        assert (receipt.status, mine.tolist(), job.partial().pending) == (Status.INSUFFICIENT, [3.0, 3.0], ())
        assert receipt.contributors == (0,) and job.partial().rate_factor(receipt) == 1.0
        mine[:] = 4
        theirs = np.full(2, 2.0)
        receipts = at_once(lambda: job.allreduce(mine), lambda: other.allreduce(theirs, step=1))
        assert mine.tolist() == [3.0, 3.0] and receipts[0].included == 2, "(4 + 2) / 2: the 3 was used up"


def test_allreduce__ahead_of_the_ops() -> None:
    """A rank that counts more steps than there were ops, as after ops that did not come: it waits for the next one."""
    with slots(2, "majority", policy_seed=SEED) as (_, (ahead, first)):
        mine, theirs = np.array([6.0]), np.array([4.0])
        receipts = at_once(lambda: ahead.allreduce(mine, step=7), lambda: _after_give(ahead, first, theirs))
        assert [receipt.op_seq for receipt in receipts] == [0, 0]
        assert mine[0] == theirs[0] == 5.0


def _after_give(other: Job, job: Job, array: Any) -> Receipt:
    until(lambda: other._connection.session._next_seq >= 1)
    time.sleep(0.02)
    return job.allreduce(array)


# RNA


def test_give__pending_gradients_are_weighted() -> None:
    """docs/papers.md, section 3.5, with the buffers of the arena: k=5, t={3,4,5}, g={1,2,3} gives 14/6; eta=3 drops 5
    of {5,7,8,10}.
    """
    cases = [([3, 4, 5], [1, 2, 3], 4, 14 / 6), ([3, 5], [1, 3], 4, 2.5), ([5, 7, 8, 10], [1, 2, 3, 4], 3, 24 / 7)]
    for steps, values, eta, wanted in cases:
        with slots(2, "quorum", quorum=2, eta=eta) as (_, (job, other)):
            face = job.partial(local_reduce="weighted", divisor="none")
            for step, value in zip(steps, values, strict=True):
                array = np.full(3, float(value))
                face.give(array, step)
                array[:] = 99  # the caller's again
            kept = tuple(step for step in steps if steps[-1] - step <= eta)
            assert face.pending == kept and face.eta == eta
            other.partial(divisor="none").give(np.zeros(3))
            result = face.wait()
            assert result is not None
            np.testing.assert_array_equal(result.array, np.full(3, wanted))
            assert result.receipt.peers[0].oldest_step == kept[0] and face.pending == ()


def test_give__after_an_op_pending_restarts_from_null() -> None:
    with slots(2, "solo") as (_, (job, other)):
        face = job.partial(local_reduce="weighted", divisor="none")
        for value in (1.0, 2.0, 3.0):
            face.give(np.full(2, value))
            result = face.wait()
            assert result is not None and result.array.tolist() == [value] * 2
        assert face.pending == () and other.partial().pending == ()


def test_give__while_an_op_reads_what_was_given_before() -> None:
    """Three buffers: one in an op, one that waits, one to compose in. What the op reads must not change under it."""
    with slots(2, "solo") as (daemon, (job, _)):
        daemon.op_takes(0.3)
        face = job.partial(local_reduce="sum", divisor="none")
        face.give(np.full(1000, 1.0))
        until(lambda: job._connection.session.words().taken == 1)
        for value in (10.0, 20.0, 30.0):
            face.give(np.full(1000, value))
        assert face.pending == (1, 2, 3)
        daemon.op_takes(0)
        first = face.wait()
        assert first is not None and set(first.array) == {1.0} and first.receipt.op_seq == 0
        second = face.wait()
        assert second is not None and set(second.array) == {60.0} and second.receipt.op_seq == 1
        buffers = face._buffers
        assert buffers is not None and len(buffers._free) + len(buffers._read) + (buffers.waiting is not None) <= 3


def test_give__an_op_wins_the_race_for_the_slot() -> None:
    """The op took what waited between the look and the swap: OVERTAKEN, and only the new gradient is given again."""
    with slots(2, "quorum", quorum=2) as (_, (job, other)):
        face, theirs = job.partial(divisor="none"), other.partial(divisor="none")
        face.give(np.array([5.0]))
        composed = face._composed

        def race(*arguments: Any) -> Any:
            parts = composed(*arguments)
            if theirs.step == 0:  # the first time only: an op starts after we have composed 5 + 7
                theirs.give(np.array([100.0]))
                until(lambda: job._connection.session.words().taken == 1)
            return parts

        face._composed = race  # type: ignore[method-assign]
        face.give(np.array([7.0]))
        assert face.pending == (1,)
        result = face.wait()
        assert result is not None and result.array.tolist() == [105.0]
        theirs.give(np.array([200.0]))
        result = face.wait()
        assert result is not None and result.array.tolist() == [207.0], "5 is in one op only"


def test_poll__without_a_word_to_the_daemon() -> None:
    with slots(2, "solo") as (_, (job, other)):
        face, theirs = job.partial(), other.partial()
        theirs.give(np.ones(2))
        before = job._connection.session._next_seq
        assert face.poll() is None and job._connection.session._next_seq == before, (
            "nothing was given here: no shape yet"
        )
        out = np.zeros(2)
        until(lambda: job._connection.session.words().results == 1)
        result = face.poll(out=out)
        assert result is not None and result.array is out and out.tolist() == [0.5, 0.5] and face.newest == 0
        before = job._connection.session._next_seq
        assert (
            face.poll(out=out) is None and face.poll(0, out=out) is None and job._connection.session._next_seq == before
        )
        again = face.poll(-1, out=out)
        assert again is not None and again.receipt.op_seq == 0
        assert face.wait(deadline="30ms", out=out) is None


def test_results__are_the_callers_to_keep() -> None:
    with slots(1, "solo") as (_, (job,)):
        face = job.partial()
        held = []
        for value in range(5):
            face.give(np.full(8, float(value)))
            result = face.wait()
            assert result is not None
            held.append(result.array)
        assert [array[0] for array in held] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_threads__one_gives_while_another_waits() -> None:
    """RNA's two threads: every gradient is in exactly one op, whatever the interleaving."""
    steps = 300
    said = Options(policy="solo", tau=255)
    with FakeDaemon(3, peer=lambda rank, op_seq, mine: None) as daemon:
        job, other = (daemon.connect(rank, arena="1M", options=said) for rank in range(2))
        witness = Witness(daemon, 2, 64)
        daemon.op_takes(0.002)
        faces = [each.partial(local_reduce="sum", divisor="none") for each in (job, other)]
        sums = [0.0, 0.0]
        done = threading.Event()

        def compute(face: ultima.Partial) -> None:
            for _ in range(steps):
                face.give(np.full(64, 1.0))

        def communicate(rank: int) -> None:
            face = faces[rank]
            while True:
                last = done.is_set() and not any(each.pending for each in faces)
                result = face.wait(deadline="50ms")
                if result is None:
                    if last:
                        return
                    continue
                assert len(set(result.array)) == 1
                sums[rank] += result.array[0]

        readers = [threading.Thread(target=communicate, args=(rank,)) for rank in range(2)]
        for reader in readers:
            reader.start()
        watching = threading.Thread(target=lambda: until(lambda: witness.look() or done.is_set()))
        watching.start()
        at_once(*(lambda face=face: compute(face) for face in faces))
        done.set()
        for thread in (*readers, watching):
            thread.join()
        assert faces[0].newest == faces[1].newest
        assert max(sums) <= 2 * steps and min(sums) > 0
        witness.look()
        assert sum(witness.sums) == 2 * steps
        for each in (job, other):
            each.close()


def test_sticky__every_op_takes_it_until_another_comes() -> None:
    with slots(2, "solo") as (_, (model, other)):
        server, client = model.partial(divisor="none"), other.partial(divisor="none")
        server.give(np.array([100.0]), sticky=True)
        assert server.pending == ()
        seen = server.wait()
        assert seen is not None and seen.array.tolist() == [100.0]
        for value, wanted in ((1.0, 101.0), (2.0, 102.0)):
            client.give(np.array([value]))
            result = client.wait(client._after(None) if client.newest >= 0 else 0)
            assert result is not None and result.array.tolist() == [wanted]
        server.give(np.array([200.0]), sticky=True)
        result = server.wait(2)
        assert result is not None and result.array.tolist() == [200.0], "replaced, not added"


def test_sticky__replaced_while_an_op_reads_it() -> None:
    with slots(2, "solo") as (daemon, (job, _)):
        daemon.op_takes(0.3)
        face = job.partial(divisor="none")
        face.give(np.full(1000, 1.0), sticky=True)
        until(lambda: job._connection.session.words().taken == 1)
        for value in (2.0, 3.0, 4.0):
            face.give(np.full(1000, value), sticky=True)
        daemon.op_takes(0)
        first = face.wait()
        assert first is not None and set(first.array) == {1.0}
        second = face.wait()
        assert second is not None and set(second.array) == {4.0}


def test_give__says_which_op_takes_it() -> None:
    """However many ops others have started meanwhile: only the newest result is there to be read."""
    with slots(2, "solo") as (_, (job, other)):
        mine, theirs = job.partial(divisor="none"), other.partial(divisor="none")
        assert mine.give(np.full(1, 5.0), sticky=True) == 0
        for op in range(1, 4):
            assert theirs.give(np.ones(1)) == op
            assert theirs.wait(op - 1) is not None
        result = mine.wait(-1)
        assert result is not None and (result.receipt.op_seq, result.array[0], result.receipt.stale) == (3, 6.0, (0,))
        assert mine.give(np.full(1, 7.0), sticky=True) == 4
