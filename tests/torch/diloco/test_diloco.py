# SPDX-License-Identifier: Apache-2.0
"""DiLoCo over a torch model: what becomes of parameters, tied ones, buffers and types, by value.

Ranks are threads over fake daemons. What rounds do with losses is tests/client/local's.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ultima
import ultima.torch
import ultima.torch.ft
from tests.client.fake_jobs import FakeJobs, on_all
from ultima.torch import DiLoCo, LocalSGD, SparseLoCo

pytestmark = pytest.mark.timeout(60)


class Model(nn.Module):
    """Two layers that share a weight, a frozen bias, statistics and a counter."""

    def __init__(self, value: float = 0.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, dtype=dtype)
        self.second = nn.Linear(3, 3, bias=False, dtype=dtype)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        nn.init.constant_(self.first.weight, value)
        nn.init.constant_(self.first.bias, value)
        self.register_buffer("mean", torch.full((2,), value))
        self.register_buffer("count", torch.tensor(int(value)))


def _moved(model: Model, by: float) -> None:
    with torch.no_grad():
        model.first.weight += by
        model.mean += by


def test_model__is_that_of_rank_0_and_then_moves_as_torchs_sgd_moves_it() -> None:
    """Two rounds of three ranks, beside torch's own optimizer on the mean of what they did."""
    with FakeJobs(3) as jobs:

        def train(rank: int) -> tuple[Any, ...]:
            model = Model(float(rank))
            with jobs.base(rank) as job, DiLoCo(model, every=2, job=job) as outer:
                for _ in range(4):
                    _moved(model, rank + 1.0)
                    outer.step()
                assert outer.summary().rounds == 2
            return model.first.weight.tolist(), model.first.bias.tolist(), model.mean.tolist(), int(model.count)

        expected = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([expected], lr=0.7, momentum=0.9, nesterov=True)
        for _ in range(2):
            expected.grad = torch.tensor([-4.0])  # two steps, by 2 in the mean
            optimizer.step()
        for rank, (weight, bias, mean, count) in enumerate(on_all(3, train)):
            assert torch.allclose(torch.tensor(weight), expected.expand(3, 3))
            assert bias == [float(rank)] * 3, "a frozen parameter stays each rank's own"
            assert torch.allclose(torch.tensor(mean), torch.tensor(8.0)), "statistics become the average"
            assert count == rank


def test_tied_and_bfloat16__one_entry_that_both_names_see() -> None:
    with FakeJobs(2) as jobs:

        def train(rank: int) -> list[float]:
            model = Model(0.0, torch.bfloat16)
            with jobs.base(rank) as job, LocalSGD(model, every=1, job=job) as outer:
                assert [entry.name for entry in outer.layout.entries] == ["first.weight", "mean"]
                assert [entry.dtype for entry in outer.layout.entries] == ["bfloat16", "float32"]
                _moved(model, 1.0 + rank)
                outer.step()
                assert model.second.weight is model.first.weight
            return [float(each) for each in model.second.weight.detach().flatten()]

        assert on_all(2, train) == [[1.5] * 9] * 2


def test_layouts_that_differ__are_named_before_anything_is_sent() -> None:
    with FakeJobs(2) as jobs:

        def train(rank: int) -> str:
            model = nn.Sequential(nn.Linear(3, 4 + rank))
            with jobs.base(rank) as job, pytest.raises(ultima.InvalidArgument) as refused:
                LocalSGD(model, every=1, job=job)
            return str(refused.value)

        first, second = on_all(2, train)
        assert "tensor 0 is '0.weight' (5 x 3, float32) on rank 1, '0.weight' (4 x 3, float32) here" in first
        assert "tensor 0 is '0.weight' (4 x 3, float32) on rank 0, '0.weight' (5 x 3, float32) here" in second


def test_settings_that_differ__are_named() -> None:
    with FakeJobs(2) as jobs:

        def train(rank: int) -> str:
            with jobs.base(rank) as job, pytest.raises(ultima.InvalidArgument) as refused:
                LocalSGD(nn.Linear(2, 2), every=1 + rank, job=job)
            return str(refused.value)

        assert "every is 2 on rank 1, 1 here" in on_all(2, train)[0]


def test_torchfts_names__say_the_same() -> None:
    with FakeJobs(2) as jobs:

        def train(rank: int) -> list[float]:
            layers = [nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)]
            for layer in layers:
                nn.init.zeros_(layer.weight)
            parameters = [layer.weight for layer in layers]
            inner = torch.optim.SGD(parameters, lr=1.0)
            outer = torch.optim.SGD(parameters, lr=1.0, momentum=0.0)
            with (
                jobs.base(rank) as job,
                ultima.torch.ft.DiLoCo(
                    None, layers, inner, outer, sync_every=2, fragment_sync_delay=0, job=job
                ) as made,
            ):
                assert (made.layout.fragments, made.delay, made.every) == (2, 0, 2)
                for _ in range(2):
                    inner.zero_grad()
                    (parameters[0] + parameters[1]).mul(-(rank + 1.0)).sum().backward()
                    inner.step()
            return [each.item() for each in parameters]

        # The first fragment meets after one step and keeps what comes after, the second after two.
        assert on_all(2, train) == [[2.5, 3.0], [3.5, 3.0]]


def test_alone__a_group_of_one_rank_needs_no_job() -> None:
    from ultima.torch.diloco.diloco import _Alone

    model = Model()
    with LocalSGD(model, every=1, job=_Alone()) as outer:  # type: ignore[arg-type]
        _moved(model, 2.0)
        outer.step()
    assert model.first.weight.tolist() == [[2.0] * 3] * 3
    assert outer.summary().rounds == 1


def test_sparse__gives_the_largest_share_and_keeps_the_rest() -> None:
    from ultima.torch.diloco.diloco import _Alone

    model = Model()
    with SparseLoCo(model, every=1, job=_Alone(), sparse=0.25) as outer:  # type: ignore[arg-type]
        _moved(model, 2.0)
        with torch.no_grad():
            model.first.weight[1, 1] += 6.0
        outer.step()
        (kept,) = outer.state_dict()["residuals"]
    sent = outer.theta != 0
    assert 0 < sent.sum() < sent.size and model.first.weight[1, 1] == 8.0
    assert ((kept != 0) == ~sent).all()
    assert outer.layout.settings["sparse"] == 0.25


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"outer": torch.optim.Adam([torch.zeros(1)])}, ultima.InvalidArgument, "outer is 'Adam"),
        ({"outer": torch.optim.SGD([torch.zeros(1)], momentum=0.9)}, ultima.InvalidArgument, "nesterov=True"),
        ({"grace": "soon"}, ultima.InvalidArgument, "grace is 'soon'; allowed: 'auto', None or"),
        ({"meet": "a.example"}, ultima.Unsupported, "job="),
        ({"hook": True}, ultima.InvalidArgument, "hook"),
    ],
)
def test_options__refused_by_name(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        DiLoCo(Model(), job=object(), **options)  # type: ignore[arg-type]


def test_model__that_has_nothing_to_train_is_refused() -> None:
    with pytest.raises(ultima.InvalidArgument, match="model is"):
        DiLoCo(nn.ReLU(), job=object())  # type: ignore[arg-type]
