# SPDX-License-Identifier: Apache-2.0
"""CodedGradient: the exact gradient of all data, whoever is late, and what becomes of a step that fails.

Ranks are threads over fake daemons, which decode by the plan; slow ones wait for an event, no clock is asked.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.client.fake_jobs import FakeJobs, on_all
from ultima.base.errors import Desync, InvalidArgument, RanksGone, Unsupported
from ultima.coded import Plan
from ultima.torch.coded.gradient import CodedGradient
from ultima.torch.coded.sampler import CodedSampler

pytestmark = pytest.mark.timeout(60)
SIZE, WIDTH, RATE = 40, 6, 0.1
X = torch.linspace(-1, 1, SIZE * WIDTH).reshape(SIZE, WIDTH).sin()
Y = X.sum(1, keepdim=True).cos()


def network(seed: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1))


def losses(model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
    """The sum over the points."""
    return ((model(X[indices]) - Y[indices]) ** 2).sum()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def expected(steps: int) -> torch.Tensor:
    """The model after descent on all points, in one process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        (losses(model, torch.arange(SIZE)) / SIZE).backward()
        optimizer.step()
    return flat(model)


def train(coded: CodedGradient, model: nn.Module, rank: int, steps: int,
          before: Callable[[int], None] = lambda step: None) -> torch.Tensor:  # fmt: skip
    """|before| is called with the number of each step, after the first batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sampler = CodedSampler(SIZE, coded.plan, rank, batch=4)
    told = -1
    while coded.number < steps:
        for indices, coefficient in sampler:
            (coefficient * losses(model, indices)).backward()
            if told != coded.number:
                told = coded.number
                before(told)
            if coded.over():
                break
        coded.step(optimizer)
    return flat(model)


@pytest.mark.parametrize("plan", [Plan(4, 1), Plan(3, 1), Plan(6, 1, children=2)], ids=["groups", "linear", "tree"])
def test_step__is_that_of_all_data(plan: Plan) -> None:
    """The models of all ranks begin as that of rank 0, and end where descent on all data ends."""
    models = [network(seed=1 + rank) for rank in range(plan.hosts)]
    with FakeJobs(plan.hosts) as jobs:

        def run(rank: int) -> Any:
            model = models[rank]
            with jobs.base(rank) as job, CodedGradient(model, plan, SIZE, job=job) as coded:
                return train(coded, model, rank, 3), coded.summary()

        for model, summary in on_all(plan.hosts, run):
            assert torch.allclose(model, expected(3), atol=1e-5)
            assert summary.steps == summary.exact == 3 and summary.again == 0


def test_step__goes_on_without_a_late_rank_and_is_as_exact() -> None:
    """Rank 1 is held up in its first batch of step 1 until the others have made three more. It takes their results one
    after another, while the others wait (three are kept), and holds the same model in the end."""
    plan, ahead, level = Plan(4, 1), threading.Barrier(4), threading.Barrier(4)
    models = [network() for _ in range(4)]
    with FakeJobs(4) as jobs:

        def run(rank: int) -> Any:
            model = models[rank]

            def held(step: int) -> None:
                if rank == 1 and step == 1:
                    ahead.wait(30)

            with jobs.base(rank) as job, CodedGradient(model, plan, SIZE, job=job) as coded:
                if rank == 1:
                    train(coded, model, rank, 4, held)
                else:
                    train(coded, model, rank, 4)
                    ahead.wait(30)
                level.wait(30)
                found = train(coded, model, rank, 6)
                return found, coded.summary()

        told = on_all(4, run)
    assert all(torch.equal(model, told[0][0]) for model, _ in told)
    assert torch.allclose(told[0][0], expected(6), atol=1e-5)
    assert told[1][1].over >= 3 and all(summary.exact == 6 for _, summary in told)
    assert told[0][1].late[1] >= 3 and told[0][1].waiting <= 3


def test_over__what_was_not_computed_to_the_end_is_never_given() -> None:
    """A rank that was told that its step is over has half a gradient, and takes the result without giving it."""
    plan, done = Plan(2, 1), threading.Event()
    models = [network(), network()]
    with FakeJobs(2) as jobs:

        def run(rank: int) -> Any:
            model = models[rank]
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            with jobs.base(rank) as job, CodedGradient(model, plan, SIZE, job=job) as coded:
                if rank == 0:
                    train(coded, model, rank, 1)
                    done.set()
                    return flat(model)
                losses(model, torch.arange(3)).backward()
                assert done.wait(30) and coded.over()
                inner: Any = coded._coded
                inner.reduce = lambda *_, **__: pytest.fail("it gave half a gradient")
                coded.step(optimizer)
                del inner.reduce
                assert not coded.over(), "a step that has just begun is not over"
                return flat(model)

        mine, theirs = on_all(2, run)
    assert torch.equal(mine, theirs)


def test_step__gives_the_same_gradient_again_after_a_failure() -> None:
    """Both replicas of half the data are cut off for two attempts. The others compute nothing twice."""
    plan, passes = Plan(4, 1), [0] * 4
    together, failures = threading.Barrier(4), []
    models = [network() for _ in range(4)]
    with FakeJobs(4) as jobs:

        def run(rank: int) -> Any:
            model = models[rank]
            model.register_forward_hook(lambda *_: passes.__setitem__(rank, passes[rank] + 1))
            with jobs.base(rank) as job:
                coded = CodedGradient(model, plan, SIZE, job=job, deadline=0.4, attempts=1)
                fake = next(each for name, each in jobs.daemons.items() if name.endswith("coded0"))
                optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
                for indices, coefficient in CodedSampler(SIZE, plan, rank):
                    (coefficient * losses(model, indices)).backward()
                if together.wait(30) == 0:
                    fake.leave_out(2, 3)
                together.wait(30)
                for _ in range(2 if rank < 2 else 0):
                    with pytest.raises((TimeoutError, RanksGone)):
                        coded.step(optimizer)
                    failures.append(rank)
                if together.wait(30) == 0:
                    fake.leave_out()
                together.wait(30)
                computed, receipt = passes[rank], None
                for _ in range(5):  # a rank that was cut off begins with an op that the others gave up
                    with contextlib.suppress(RanksGone):
                        receipt = coded.step(optimizer)
                        break
                assert passes[rank] == computed, "it computed again what it had"
                assert receipt is not None and receipt.exact
                together.wait(30)
                coded.close()
            return flat(model)

        for model in on_all(4, run):
            assert torch.allclose(model, expected(1), atol=1e-6)
    assert sorted(failures) == [0, 0, 1, 1]


def test_step__an_estimate_for_who_prefers_it() -> None:
    """With exact=False a step whose two replicas are gone has twice the gradient of the other half."""
    plan, begun = Plan(4, 1), threading.Barrier(4)
    models = [network() for _ in range(4)]
    with FakeJobs(4) as jobs:

        def run(rank: int) -> Any:
            model = models[rank]
            with jobs.base(rank) as job:
                coded = CodedGradient(model, plan, SIZE, job=job, exact=False, deadline=0.5)
                begun.wait(30)
                if rank >= 2:
                    coded.close()
                    begun.wait(30)
                    return None
                begun.wait(30)
                for indices, coefficient in CodedSampler(SIZE, plan, rank):
                    (coefficient * losses(model, indices)).backward()
                receipt = coded.step(torch.optim.SGD(model.parameters(), lr=RATE))
                coded.close()
                return flat(model), receipt, coded.summary()

        found = on_all(4, run)[:2]
    reference = network()
    (losses(reference, torch.arange(SIZE // 2)) * 2 / SIZE).backward()
    wanted = flat(reference) - RATE * gradients(reference)
    for model, receipt, summary in found:
        assert torch.allclose(model, wanted, atol=1e-6)
        assert receipt.exact is False and receipt.residual > 0 and summary.exact == 0


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    ("differs", "name"),
    [({"plan": Plan(4, 3)}, "stragglers"), ({"size": SIZE + 1}, "size"), ({"wide": True}, "parameters")],
    ids=["plan", "size", "model"],
)
def test_ranks__that_name_other_things_are_told(differs: dict[str, Any], name: str) -> None:
    with FakeJobs(4) as jobs:

        def run(rank: int) -> Any:
            mine: dict[str, Any] = {"plan": Plan(4, 1), "size": SIZE, "wide": False, **(differs if rank == 2 else {})}
            model = nn.Linear(WIDTH, 2) if mine["wide"] else nn.Linear(WIDTH, 1)
            with jobs.base(rank) as job:
                try:
                    CodedGradient(model, mine["plan"], mine["size"], job=job).close()
                except Desync as error:
                    if name == "stragglers":
                        jobs.give_up(besides="base")
                    return error
                except threading.BrokenBarrierError:
                    return None  # the fake lets nobody in before all are there

        raised = [error for error in on_all(4, run) if error is not None]
    assert raised and all(error.field == name for error in raised)
    assert name == "stragglers" or len(raised) == 4, "a rank was not told"


def test_plan__that_does_not_fit_the_job() -> None:
    with FakeJobs(2) as jobs:

        def run(rank: int) -> None:
            with jobs.base(rank) as job:
                with pytest.raises(InvalidArgument, match="plan is 'one for 4 ranks'; allowed: one for 2"):
                    CodedGradient(network(), Plan(4, 1), SIZE, job=job)
                with pytest.raises(InvalidArgument, match="plan is 'int'"):
                    CodedGradient(network(), 4, SIZE, job=job)  # type: ignore[arg-type]
                with pytest.raises(InvalidArgument, match="size is 0"):
                    CodedGradient(network(), Plan(2, 1), 0, job=job)
                with pytest.raises(Unsupported, match="BatchNorm1d"):
                    CodedGradient(nn.BatchNorm1d(3), Plan(2, 1), SIZE, job=job)

        on_all(2, run)
        assert list(jobs.daemons) == ["base"], "it opened a job before it refused"


def test_collect__leaves_the_gradient_to_the_caller() -> None:
    """For clipping: the mean gradient of all data is in the parameters, and the optimizer has not stepped."""
    plan, models = Plan(2, 1), [network(), network()]
    with FakeJobs(2) as jobs:

        def run(rank: int) -> Any:
            model = models[rank]
            with jobs.base(rank) as job, CodedGradient(model, plan, SIZE, job=job) as coded:
                for indices, coefficient in CodedSampler(SIZE, plan, rank):
                    (coefficient * losses(model, indices)).backward()
                coded.collect()
                found = gradients(model)
                coded.zero_grad()
                assert not gradients(model).any()
                return found

        reference = network()
        (losses(reference, torch.arange(SIZE)) / SIZE).backward()
        for found in on_all(2, run):
            assert torch.allclose(found, gradients(reference), atol=1e-6)
