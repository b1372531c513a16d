# SPDX-License-Identifier: Apache-2.0
"""The memory of an accelerator's gradient against the host's, to the bit: on the CPU, and on CUDA if there is one."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.seeds import seeds  # noqa: E402  # only where torch is
from ultima.sparse import Feedback  # noqa: E402
from ultima.torch.hooks.parts import Part  # noqa: E402
from ultima.torch.sparse.device import DeviceFeedback  # noqa: E402
from ultima.torch.sparse.memory import Memories  # noqa: E402

SIZE = 60_000  # enough for a sample


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> "torch.device":
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device(request.param)


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("choose", ["exact", "sampled"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_device_feedback__is_feedback(device: "torch.device", seed: int, choose: str, momentum: float) -> None:
    """Ties, gradients that jump, a dense step, NaN, and a state that moves over."""
    rng = np.random.default_rng(seed)
    rules = Feedback(0, 0.01, momentum=momentum, choose=choose, warmup_steps=3)
    host = Feedback(SIZE, 0.01, momentum=momentum, choose=choose, warmup_steps=3)
    there = DeviceFeedback(SIZE, device, rules)
    for number in range(12):
        given = (rng.laplace(size=SIZE) * (10 if number == 7 else 1)).astype(np.float32).round(number % 3 + 1)
        if number == 9:
            given[17] = np.nan
        if number == 5:
            taken = torch.empty(SIZE, device=device)
            there.take_all(torch.from_numpy(given).to(device), taken)
            assert taken.cpu().numpy().tobytes() == host.take_all(given).tobytes()
        else:
            want = host.select(given)
            indices, values = there.select(torch.from_numpy(given).to(device))
            assert indices.cpu().numpy().tolist() == want.indices.tolist()
            assert values.cpu().numpy().tobytes() == want.values.tobytes()
        if number == 6:
            back = np.array([3, 4], np.uint32), np.array([1.5, -2.5], np.float32)
            host.put_back(*back)
            there.put_back(torch.tensor([3, 4], device=device), torch.from_numpy(back[1]).to(device))
        assert there.residual.cpu().numpy().tobytes() == host.residual.tobytes()
        if number == 8:
            moved = DeviceFeedback(SIZE, device, rules)
            moved.load_state_dict(host.state_dict())
            host.load_state_dict(there.state_dict())
            there = moved


def test_memories__of_a_device(device: "torch.device", monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of three parameters: the same entries as on the host, and what comes back goes to the same places."""
    weights = [torch.zeros(50, 60), torch.zeros(40), torch.zeros(20, 100)]
    parts, at = [], 0
    for weight in weights:
        parts.append(Part(weight, at, weight.numel(), weight.dim()))
        at += weight.numel()
    given = torch.from_numpy(np.random.default_rng(7).laplace(size=at).astype(np.float32))
    rules = Feedback(0, 0.01)
    host, there = Memories(rules, 100, "float16"), Memories(rules, 100, "float16")
    monkeypatch.setattr(there, "_made", lambda size, device: DeviceFeedback(size, device, rules))
    want, found = host.choose(given, parts), there.choose(given.to(device), parts)
    assert found.indices.tolist() == want.indices.tolist() and found.indices.dtype == np.uint32
    assert found.values.tobytes() == want.values.tobytes() and found.expected == want.expected == 30 + 40 + 20
    for chosen in (want, found):
        chosen.put_back(slice(10, 80))
    for name in "012":
        assert there._held[name].residual.cpu().numpy().tobytes() == host._held[name].residual.tobytes()
    dense = given.clone(), given.to(device, copy=True)
    host.take_all(dense[0], parts)
    there.take_all(dense[1], parts)
    assert dense[1].cpu().numpy().tobytes() == dense[0].numpy().tobytes() and sum(there.kept().values()) == 0
