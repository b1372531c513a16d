# SPDX-License-Identifier: Apache-2.0
"""A model and what its optimizer keeps, as arrays: where they lie, what is copied, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ultima.base.errors import InvalidArgument
from ultima.state.listing import Arrays
from ultima.torch.elastic.torch_state import TorchState
from ultima.torch.elastic.training import ElasticTraining

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MAKES: dict[str, Make] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
}


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))


def bits(arrays: dict[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(each).tobytes() for name, each in arrays.items()}


def step(of: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    of(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_arrays__bring_one_model_and_its_optimizer_to_where_another_is(make: Make) -> None:
    """Of a newcomer whose optimizer has kept nothing yet. From there on both go the same way, to the bit."""
    one, two = model(1), model(2)
    there, here = make(list(one.parameters())), make(list(two.parameters()))
    for seed in range(3):
        step(one, there, seed)
    first, second = TorchState(one, there), TorchState(two, here)
    before = bits({name: each for name, each in second.arrays().items() if name.startswith("module/")})
    second.prepare()
    taken = second.arrays()
    assert {name: each for name, each in bits(taken).items() if name in before} == before, "the model stays as it is"
    given, into = Arrays(first.arrays(), writable=True), Arrays(taken, writable=True)
    assert given.outline() == into.outline()
    into.fill(memoryview(b"".join(given.part(number) for number in range(1 + given.size // (512 << 10)))))
    second.put_back()
    assert bits(second.arrays()) == bits(first.arrays())
    for seed in range(3, 6):
        step(one, there, seed)
        step(two, here, seed)
    assert bits(second.arrays()) == bits(first.arrays())
    assert any("optimizer/0.weight/" in name for name in taken) is (make is not MAKES["sgd"])


def test_arrays__lie_where_the_tensors_do_or_are_put_back() -> None:
    of = nn.Linear(3, 2)
    of.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())
    optimizer = torch.optim.SGD(of.parameters(), lr=0.1)
    optimizer.state[of.bias] = {"count": 3, "scale": 0.5, "none": None, "zero": torch.tensor(4.0)}
    state = TorchState(of, optimizer)
    found = state.arrays()
    assert sorted(found) == [
        "module/bias", "module/weight", "optimizer/bias/count", "optimizer/bias/scale", "optimizer/bias/zero"
    ]  # fmt: skip
    found["module/bias"][1] = 7.0
    found["optimizer/bias/zero"][0] = 8.0
    assert of.bias[1] == 7.0 and optimizer.state[of.bias]["zero"] == 8.0, "the same memory"
    found["module/weight"][1, 2] = 9.0
    found["optimizer/bias/count"][0], found["optimizer/bias/scale"][0] = 5, 0.25
    assert of.weight[1, 2] == 5.0, "a copy, as it is not contiguous"
    state.put_back()
    assert of.weight[1, 2] == 9.0 and optimizer.state[of.bias]["none"] is None
    assert (optimizer.state[of.bias]["count"], optimizer.state[of.bias]["scale"]) == (5, 0.25)


def test_state__what_is_refused() -> None:
    of = nn.Linear(2, 2)
    with pytest.raises(InvalidArgument, match=r"optimizer.param_groups\[0\]\['params'\]\[1\]"):
        TorchState(of, torch.optim.SGD([of.weight, nn.Parameter(torch.ones(3))], lr=0.1))
    with pytest.raises(InvalidArgument, match=r"module/weight.*meta"):
        TorchState(meta := nn.Linear(2, 2, device="meta"), torch.optim.SGD(meta.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(of.parameters(), lr=0.1)
    optimizer.state[of.bias] = {"history": []}
    with pytest.raises(InvalidArgument, match=r"optimizer.state\['bias'\]\['history'\].*list"):
        TorchState(of, optimizer).arrays()


def test_training__arguments_that_are_refused() -> None:
    of = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(of.parameters(), lr=0.1)
    job: Any = object()
    with pytest.raises(InvalidArgument, match=r"job.*one of connect"):
        ElasticTraining(job, of, optimizer)

    class Job:
        follow = None

    job = Job()
    for wrong in (7, True, "25M"):
        with pytest.raises(InvalidArgument, match=r"bucket_bytes.*8 or more"):
            ElasticTraining(job, of, optimizer, bucket_bytes=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"optimizer.*LBFGS"):
        ElasticTraining(job, of, torch.optim.LBFGS(of.parameters()))
