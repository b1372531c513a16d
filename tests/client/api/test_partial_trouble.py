# SPDX-License-Identifier: Apache-2.0
"""Jobs with a policy on the fake: bad input, and trouble with daemons, arenas, signals and forks."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import ultima
from tests.client.api.slots import SEED, Call, at_once, slots, until
from ultima import InvalidArgument, Job, Options, Status, Trouble, Unsupported
from ultima.testing import FakeDaemon

# Bad input


@pytest.mark.parametrize(
    "call,field,allowed",
    [
        (lambda job: job.partial(local_reduce="mean"), "local_reduce", "one of sum, weighted"),
        (lambda job: job.partial(divisor="some"), "divisor", "one of contributors, world, none"),
        (lambda job: job.allreduce(np.ones(2), "max"), "op", "avg, sum in a job with a policy"),
        (lambda job: job.allreduce(np.ones(2), agree=True), "agree", "False in a job with a policy"),
        (lambda job: job.allreduce(np.ones(2), mode="fast"), "mode", "bounded"),
        (lambda job: job.allreduce(np.ones(2), step=-1), "step", "0 to 4294967295"),
        (lambda job: job.allreduce(np.ones(2), step=1.5), "step", "whole number"),
        (lambda job: job.partial().give(np.ones(2), 2**32), "step", "0 to 4294967295"),
        (lambda job: job.partial().poll("newest"), "newer_than", "number of an op"),
        (lambda job: job.partial().poll(-2), "newer_than", "number of an op"),
        (lambda job: job.partial(local_reduce="weighted").give(np.ones(2, int)), "local_reduce", "'sum' for int64"),
    ],
)
def test_bad_input__names_field_and_what_is_allowed(call: Call, field: str, allowed: str) -> None:
    with slots(2, "solo") as (_, (job, _)), pytest.raises(InvalidArgument) as caught:
        call(job)
    assert caught.value.field == field and allowed in caught.value.allowed


def test_bad_input__another_array_or_an_earlier_step() -> None:
    with slots(1, "solo") as (_, (job,)):
        job.allreduce(np.ones(4), step=5)
        for call, field in (
            (lambda: job.allreduce(np.ones(5)), "array"),
            (lambda: job.allreduce(np.ones(4, np.float32)), "array"),
            (lambda: job.partial().poll(-1, out=np.ones(3)), "out"),
            (lambda: job.allreduce(np.ones(4), step=4), "step"),
        ):
            with pytest.raises(InvalidArgument) as caught:
                call()
            assert caught.value.field == field
        assert job.allreduce(np.ones(4)).op_seq == 1


def test_without_a_policy__there_is_no_slot() -> None:
    with FakeDaemon(1) as daemon, daemon.connect() as job:
        assert job.policy == "none"
        for call in (lambda: job.partial(), lambda: job.allreduce(np.ones(1), step=3)):
            with pytest.raises(InvalidArgument, match="policy is 'none'; allowed: another one"):
                call()
        assert job.allreduce(np.ones(1)).gift is None


def test_with_a_policy__only_allreduce() -> None:
    with slots(1, "solo") as (_, (job,)):
        assert (job.policy, job.collectives) == ("solo", frozenset({"allreduce"}))
        for name, call in (
            ("barrier", job.barrier),
            ("broadcast", lambda: job.broadcast(np.ones(1))),
            ("allreduce_async", lambda: job.allreduce_async(np.ones(1))),
            ("sync_model", lambda: job.sync_model([np.ones(1)])),
        ):
            with pytest.raises(Unsupported, match="open a second job") as caught:
                call()
            assert caught.value.collective == name


def test_ranks_that_say_different_policies() -> None:
    with slots(2, "solo") as (daemon, jobs):
        jobs[1].close()
        with pytest.raises(ultima.Desync) as caught:
            daemon.connect(1, options=Options(policy="full"))
        assert (caught.value.field, caught.value.mine, caught.value.theirs) == ("policy", "full", "solo")


def test_arena__too_small_for_another_contribution() -> None:
    with FakeDaemon(1) as daemon, daemon.connect(arena="8K", options=Options(policy="solo")) as job:
        with pytest.raises(ultima.ResourceExhausted, match=r"another contribution.*five times the largest"):
            job.partial().give(np.ones(2000))
        assert job.partial().pending == ()


# Trouble


def test_daemon_lost__what_no_op_took_is_given_again() -> None:
    with slots(2, "majority", policy_seed=SEED) as (daemon, (late, first)):
        face = late.partial(local_reduce="sum", divisor="none")
        theirs = first.partial(divisor="none")
        face.give(np.array([5.0]))
        daemon.kill()
        with pytest.raises(ultima.DaemonLost):
            until(lambda: face.poll() is not None)
        daemon.restart()
        with pytest.raises(ultima.DaemonLost):
            face.poll()
        with pytest.raises(ultima.DaemonLost):
            theirs.give(np.array([0.0]))
        assert theirs.wait(deadline="20ms", out=np.zeros(1)) is None, "attached again"
        face.give(np.array([7.0]))
        assert late.reconnects == 1 and face.pending == (0, 1)
        theirs.give(np.array([100.0]))
        result = face.wait()
        assert result is not None and result.array.tolist() == [112.0]
        assert result.receipt.peers[0].oldest_step == 0


def test_daemon_lost__what_an_op_took_is_not_given_again() -> None:
    with slots(2, "solo") as (daemon, (job, _)):
        daemon.op_takes(30)
        face = job.partial(local_reduce="sum", divisor="none")
        face.give(np.array([5.0]))
        until(lambda: job._connection.session.words().taken == 1)
        daemon.kill()
        daemon.restart()
        daemon.op_takes(0)
        with pytest.raises(ultima.DaemonLost):
            face.give(np.array([7.0]))
        face.give(np.array([8.0]))
        result = face.wait()
        assert result is not None and result.array.tolist() == [8.0], "5 is in an op, 7 raised"


def test_daemon_frozen__the_call_ends_by_its_deadline() -> None:
    with slots(2, "solo") as (daemon, (job, _)):
        face = job.partial(divisor="none")
        daemon.freeze()
        with pytest.raises(ultima.DaemonLost, match="did not answer"):
            face.give(np.array([5.0]), deadline="50ms")
        daemon.thaw()
        result = face.wait(out=np.zeros(1))
        assert result is not None and result.array.tolist() == [5.0], "it was heard in the end"
        face.give(np.array([7.0]))
        result = face.wait()
        assert result is not None and result.array.tolist() == [7.0]


@pytest.mark.parametrize("overtaken", [False, True])
def test_daemon_frozen__a_swap_whose_answer_nobody_heard(overtaken: bool) -> None:
    """5 waits; 7 is to join it, and raises. Whether an op was quicker or not: 5 is in one op, and 7 in none."""
    with slots(2, "quorum", quorum=2) as (daemon, (job, other)):
        face, theirs = job.partial(local_reduce="sum", divisor="none"), other.partial(divisor="none")
        face.give(np.full(100, 5.0))
        daemon.freeze()
        if overtaken:
            with pytest.raises(ultima.DaemonLost):
                theirs.give(np.full(100, 100.0), deadline="30ms")  # it starts an op as soon as it is heard
        with pytest.raises(ultima.DaemonLost):
            face.give(np.full(100, 7.0), deadline="30ms")
        daemon.thaw()
        if overtaken:
            first = face.wait()
            assert first is not None and set(first.array) == {105.0}
        face.give(np.full(100, 9.0))
        theirs.give(np.full(100, 200.0))
        result = face.wait()
        assert result is not None and set(result.array) == {209.0 if overtaken else 214.0}
        assert face.pending == ()


def test_interrupted_wait__leaves_everything_in_order() -> None:
    """Ctrl-C while the op does not come: the next call goes on, and nothing is given twice."""
    with slots(2, "quorum", quorum=2) as (_, (job, other)):
        face = job.partial(local_reduce="sum", divisor="none")

        def interrupt() -> None:
            until(lambda: job._connection.session._flying)
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            job.allreduce(np.array([5.0]), deadline=20)
        thread.join()
        face.give(np.array([7.0]))
        other.partial(divisor="none").give(np.array([100.0]))
        result = face.wait()
        assert result is not None and result.array.tolist() == [107.0]
        assert face.pending == ()


def test_close__withdraws_what_waits() -> None:
    with slots(2, "quorum", quorum=2) as (daemon, (job, other)):
        job.partial().give(np.ones(1))
        job.close()
        with pytest.raises(ultima.ClosedHandle):
            job.partial().give(np.ones(1))
        with pytest.raises(ultima.ClosedHandle):
            job.partial().poll()
        mine = np.array([3.0])
        receipt = other.allreduce(mine)
        assert (receipt.contributors, mine[0]) == ((1,), 1.5), "two of the ranks that are alive is one"
        with daemon.connect(0, options=Options(policy="quorum", quorum=2)) as again:
            again.partial().give(np.ones(1))
            mine[:] = 3
            assert other.allreduce(mine).included == 2


def test_close__ends_a_wait() -> None:
    with slots(2, "quorum", quorum=2) as (_, (job, _)):
        timer = threading.Timer(0.05, job.close)
        timer.start()
        with pytest.raises(ultima.ClosedHandle):
            job.partial().wait(deadline=20)
        timer.join()


def test_fork__the_child_has_no_slot() -> None:
    with slots(1, "solo") as (_, (job,)):
        face = job.partial()
        with face._giving:  # as if another thread gave just now
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    face.give(np.ones(1))
                except ultima.ForkedHandle:
                    code = 0
                finally:
                    os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        face.give(np.ones(1))
        assert face.wait() is not None


def test_join_in_the_middle__starts_at_the_jobs_next_op() -> None:
    with slots(2, "solo") as (daemon, (job, other)):
        for _ in range(5):
            job.allreduce(np.ones(1))
        other.close()
        with daemon.connect(1, options=Options(policy="solo")) as late:
            assert late.partial().step == 5
            assert late.allreduce(np.ones(1)).op_seq == 5


def test_desync__ranks_that_give_other_sizes() -> None:
    with slots(2, "quorum", quorum=2) as (_, (job, other)):
        other.partial().give(np.ones(3))
        with pytest.raises(ultima.Desync):
            job.allreduce(np.ones(2))
        assert job.partial().pending == ()


def test_desync__ranks_that_divide_by_other_numbers() -> None:
    with slots(2, "quorum", quorum=2) as (_, (job, other)):
        other.partial(divisor="contributors")

        def told(each: Job) -> str:
            with pytest.raises(ultima.Desync) as caught:
                each.allreduce(np.full(2, 1.0), deadline=2)
            return caught.value.field

        assert at_once(lambda: told(job), lambda: told(other)) == ["divisor"] * 2
        other.partial(divisor="world")
        arrays = [np.full(2, 2.0) for _ in range(2)]
        at_once(
            *(
                lambda each=each, array=array: each.allreduce(array)
                for each, array in zip((job, other), arrays, strict=True)
            )
        )
        assert [array.tolist() for array in arrays] == [[2.0, 2.0]] * 2, "and it goes on"


def test_receipt__reads_well() -> None:
    with slots(2, "majority", policy_seed=SEED) as (_, (late, first)):
        first.allreduce(np.ones(1))
        text = str(late.allreduce(np.ones(1)))
        assert "1 of 2 ranks included, started by rank 1 (majority), ours kept for the next" in text
        receipt = first.allreduce(np.ones(1))
        assert "2 of 2 ranks included, rank 0 stale (from step 0)" in str(receipt)
        told = receipt.as_dict()
        assert (told["policy"], told["included"], told["fresh"], told["stale"]) == ("majority", 2, [1], [0])
        assert (told["stale_steps"], told["initiator"], told["gift"], told["kept"]) == ({"0": 0}, [1], "fresh", False)
        assert told["slot"] == "fresh", "the key's old name"
        with pytest.warns(DeprecationWarning, match="Receipt.slot is called Receipt.gift now"):
            assert receipt.slot is ultima.Gift.FRESH
        with pytest.warns(DeprecationWarning, match="ultima.Slot is called ultima.Gift now"):
            assert ultima.Slot is ultima.Gift
        assert told["eta"] == 4


def test_daemon_frozen__allreduce_goes_on_with_own_values() -> None:
    """What waited is in them. While the daemon is silent nothing more is given to it, and later steps meet again."""
    with slots(2, "quorum", quorum=2) as (daemon, (job, other)):
        face, theirs = job.partial(local_reduce="sum", divisor="none"), other.partial(divisor="none")
        face.give(np.array([5.0]))
        daemon.freeze()
        first, second = np.array([7.0]), np.array([9.0])
        with pytest.warns(ultima.UltimaWarning, match="did not answer"):
            receipt = face.allreduce(first, deadline="20ms")
        assert (receipt.status, receipt.contributors, receipt.included) == (Status.INSUFFICIENT, (0,), 1)
        assert (receipt.trouble, receipt.policy) == (Trouble.DAEMON, "quorum")
        assert first.tolist() == [12.0] and face.pending == () and face.step == 2
        flying = job._connection.session._flying.keys()
        outstanding = set(flying)
        assert face.allreduce(second, deadline="20ms").status is Status.INSUFFICIENT and second.tolist() == [9.0]
        with pytest.raises(ultima.DaemonLost, match="did not hang up"):
            face.give(np.array([11.0]), deadline="20ms")
        assert flying == outstanding and face.pending == ()
        assert face.wait(deadline="20ms") is None
        daemon.thaw()
        theirs.give(np.array([100.0]))
        face.give(np.array([13.0]))
        result = face.wait()
        assert result is not None and result.array.tolist() == [113.0], "5 and 7 were taken back, 9 and 11 not given"
