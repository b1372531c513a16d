# SPDX-License-Identifier: Apache-2.0
"""Local SGD over real daemons: all ranks hold the same outer model, to the bit, in every form and after a lost host."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import everywhere, ranks, running

SIZE = 30_000
PLAIN = ultima.Nesterov(lr=1.0, momentum=0.0)


def _train(outer: ultima.Outer, model: Any, rank: int, steps: int) -> None:
    for _ in range(steps):
        model += np.float32(0.25 * (rank + 1))
        outer.step(tokens=8)


@pytest.mark.check
@pytest.mark.parametrize(
    ("wire", "near"), [("float32", 1e-6), ("int16", 1e-3), ("int8", 0.02), ("int4", 0.2)]
)  # fmt: skip
def test_outer__has_the_same_bits_on_all_ranks_in_every_form(wire: str, near: float) -> None:
    """Three ranks, of which rank r moves by r + 1 quarters a step: the mean of a step is half."""
    with running(3) as hosts, ranks(hosts) as jobs:

        def one(rank: int, job: ultima.Job) -> tuple[Any, Any]:
            model = np.full(SIZE, float(rank), np.float32)
            options: dict[str, Any] = {"every": 4, "fragments": 2, "outer": PLAIN, "wire": wire}
            with ultima.Outer(job, {"w": model}, deadline="10s", **options) as outer:
                _train(outer, model, rank, 10)
                outer.finish()
                return outer.theta, outer.summary()

        done = everywhere(jobs, one)
        for each in done:
            assert not isinstance(each, Exception), each
        thetas, told = zip(*done, strict=True)
        assert all((theta == thetas[0]).all() for theta in thetas)
        assert np.abs(thetas[0][: SIZE // 2] - 5.0).max() <= 8 * near  # met after steps 2, 6 and 10
        assert np.abs(thetas[0][SIZE // 2 :] - 4.0).max() <= 8 * near  # after 4 and 8
        assert all(each.rounds == 5 and not each.missed and not each.empty for each in told), told


@pytest.mark.check
def test_sparse__has_the_same_bits_on_all_ranks_and_loses_nothing() -> None:
    """Three ranks give a sixteenth of their elements in each round and keep the rest."""
    with running(3) as hosts, ranks(hosts) as jobs:

        def one(rank: int, job: ultima.Job) -> Any:
            model, random = np.zeros(SIZE, np.float32), np.random.default_rng(rank)
            done, until = np.zeros(SIZE), time.monotonic() + 60
            outer = ultima.Outer(job, {"w": model}, 1, outer=PLAIN, sparse=1 / 16, feedback=1.0, deadline="5s")
            while outer.summary().rounds < 40:
                assert time.monotonic() < until, outer.last
                move = (random.integers(-8, 9, SIZE) * 0.25).astype(np.float32)
                model += move
                done += move
                outer.step()
            return outer.theta, model, done, outer.state_dict()["residuals"][0], outer.summary()

        found = everywhere(jobs, one)
        for each in found:
            assert not isinstance(each, Exception), each
        thetas, models, done, kept, told = zip(*found, strict=True)
        assert all((theta == thetas[0]).all() for theta in thetas)
        assert all(each.rounds == 40 and not each.missed and not each.empty for each in told), told
        left = sum(model - thetas[0] for model in models) - sum(each[:SIZE] for each in kept)
        assert np.abs(3 * thetas[0] + left - sum(done)).mean() < 0.25  # sums are rounded to bfloat16
        assert told[0].received_bytes < 40 * SIZE * 4 / 4


@pytest.mark.check
def test_host_dies_and_comes_back__takes_the_state_and_no_step_is_lost() -> None:
    """Rank 2's daemon is killed between rounds and started again; the others go on meanwhile.

    In the end all are equal to the bit. What all ranks did is in the outer model or still with the rank that did it.
    """
    enough = 60
    with running(3) as hosts, ranks(hosts, timeout=5) as jobs:
        rounds = [0, 0, 0]

        def one(rank: int, job: ultima.Job) -> Any:
            model = np.zeros(SIZE, np.float32)
            outer, until = ultima.Outer(job, {"w": model}, 2, outer=PLAIN, deadline="5s"), time.monotonic() + 60
            digests: dict[int, int] = {}
            outer.on_round = lambda told: digests.update({told.number: told.digest} if told.digest else {})
            while max(digests, default=0) < enough:
                assert time.monotonic() < until, outer.last
                if rank == 2 and outer.summary().steps == 8:
                    hosts[2].kill()
                    gone = rounds[0]
                    while rounds[0] < gone + 3:  # so that there is something that it has missed
                        assert time.monotonic() < until, rounds
                        time.sleep(0.02)
                    hosts[2].launch()
                    hosts[2].wait_until_ready()
                _train(outer, model, rank, 1)
                rounds[rank] = max(digests, default=0)
                time.sleep(0.02)
            return outer, model, digests

        done = everywhere(jobs, one)
        for each in done:
            assert not isinstance(each, Exception), each
        outers, models, digests = zip(*done, strict=True)
        told = [outer.summary() for outer in outers]
        theta = outers[0].theta
        assert all((outer.theta == theta).all() for outer in outers)
        for number in digests[2]:
            assert {each.get(number, digests[2][number]) for each in digests} == {digests[2][number]}
        assert told[2].failed
        assert told[2].learned
        assert told[0].rounds > told[2].rounds
        did = sum(0.25 * (rank + 1) * each.steps for rank, each in enumerate(told))
        assert np.allclose(3 * theta + sum(model - theta for model in models), did, atol=1e-2)


@pytest.mark.check
def test_rank_is_late_for_a_round__it_ends_by_its_deadline_and_no_step_is_lost() -> None:
    """Rank 2 sleeps past the deadlines of rounds, which nobody has then. In the end all are equal to the bit, and what
    all ranks did is in the outer model or still with the rank that did it."""
    enough = 20
    with running(3) as hosts, ranks(hosts) as jobs:

        def one(rank: int, job: ultima.Job) -> Any:
            model = np.zeros(SIZE, np.float32)
            outer, until = ultima.Outer(job, {"w": model}, 2, outer=PLAIN, deadline="1s"), time.monotonic() + 60
            last = 0
            while last < enough:
                assert time.monotonic() < until, outer.last
                if rank == 2 and outer.summary().steps == 9:
                    time.sleep(3)
                _train(outer, model, rank, 1)
                time.sleep(0.02)
                if outer.last is not None and outer.last.outcome == "stepped":
                    last = outer.last.number
            return outer, model

        done = everywhere(jobs, one)
        for each in done:
            assert not isinstance(each, Exception), each
        outers, models = zip(*done, strict=True)
        told = [outer.summary() for outer in outers]
        theta = outers[0].theta
        assert all((outer.theta == theta).all() for outer in outers)
        assert told[0].failed
        assert not any(each.learned for each in told)
        did = sum(0.25 * (rank + 1) * each.steps for rank, each in enumerate(told))
        assert np.allclose(3 * theta + sum(model - theta for model in models), did, atol=1e-2)


@pytest.mark.check
@pytest.mark.parametrize(
    ("delay", "said"), [(0, ultima.Options()), (1, ultima.Options(deterministic=True, split="always"))]
)  # fmt: skip
def test_grace__a_late_rank_costs_the_others_no_round_and_itself_no_step(delay: int, said: ultima.Options) -> None:
    """Rank 2 sits in one step for many rounds of the others, whose deadline is far off. Its thread takes part without
    anything of it, so that all have each result; what it did is in the outer model afterwards, once."""
    enough = 30
    with running(3) as hosts, ranks(hosts, options=said) as jobs:

        def one(rank: int, job: ultima.Job) -> Any:
            model, told = np.zeros(SIZE, np.float32), []
            options: dict[str, Any] = {"quorum": 2, "grace": "50ms", "deadline": "60s", "delay": delay}
            outer, until = ultima.Outer(job, {"w": model}, 2, outer=PLAIN, **options), time.monotonic() + 60
            outer.on_round = told.append
            slept = 0
            while outer.summary().rounds < enough:
                assert time.monotonic() < until, outer.last
                if rank == 2 and outer.summary().steps == 5:
                    slept, before = -outer.summary().rounds, model.copy()
                    deaf_until = time.monotonic() + 40
                    while outer.summary().rounds < 12 and time.monotonic() < deaf_until:
                        time.sleep(0.05)  # its trainer computes: it calls nothing
                    slept += outer.summary().rounds
                    model[:] = before  # as a trainer that holds its parameters elsewhere while it computes
                _train(outer, model, rank, 1)
                time.sleep(0.02)
            outer.meet()
            return outer, model, told, slept

        done = everywhere(jobs, one)
        for each in done:
            assert not isinstance(each, Exception), each
        outers, models, rounds, slept = zip(*done, strict=True)
        summaries = [outer.summary() for outer in outers]
        assert slept[2] >= 8, summaries
        assert not any(each.failed or each.learned or each.empty or each.differed for each in summaries), summaries
        assert summaries[2].late >= 8
        assert summaries[2].late == summaries[2].missed
        for outer, model in zip(outers, models, strict=True):
            outer.close()
            assert (outer.theta == outers[0].theta).all()
            assert (model == outers[0].theta).all()
        for mine, theirs in zip(rounds[0], rounds[2], strict=True):
            assert (mine.number, mine.digest, mine.inside, mine.late) == (
                theirs.number, theirs.digest, theirs.inside, theirs.late)  # fmt: skip
            assert set(mine.inside) | set(mine.late) == {0, 1, 2}
        assert any(each.late == (2,) and each.members_weight == 3 and each.weight == 2 for each in rounds[0])
        did = sum(0.25 * (rank + 1) * each.steps for rank, each in enumerate(summaries))
        assert np.allclose(3 * outers[0].theta, did, rtol=1e-4)
