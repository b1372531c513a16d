# SPDX-License-Identifier: Apache-2.0
"""The memory of an accelerator's gradient against the host's, to the bit: on the CPU, and on CUDA if there is one. A
NaN is one whatever its bits: CUDA's arithmetic gives 0x7fffffff, that of x86 keeps those that it was given.
"""

from typing import Any

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


class NanOfCuda(DeviceFeedback):
    """On the CPU, with the NaN that CUDA's arithmetic gives."""

    def _add(self, gradient: "torch.Tensor") -> None:
        super()._add(gradient)
        for memory in (self._kept, self._velocity):
            if memory is not None:
                memory.view(torch.int32)[memory.isnan()] = 0x7FFFFFFF


def apart(what: str, there: Any, host: Any) -> str:
    """What differs, and where first; nothing where these are the same to the bit, or NaN."""
    found, want = np.asarray(there.cpu()), np.asarray(host)
    if found.shape != want.shape:
        return f"{what}: {found.size} elements, not {want.size}"
    kind = np.int64 if want.dtype.kind in "iu" else np.uint32
    differs = found.astype(kind) != want.astype(kind) if kind is np.int64 else found.view(kind) != want.view(kind)
    if kind is np.uint32:
        differs &= ~(np.isnan(found) & np.isnan(want))
    if not differs.any():
        return ""
    at = int(differs.argmax())
    first = [f"{each[at]} ({each[at].tobytes()[::-1].hex()})" for each in (found, want)]
    return f"{what}: {int(differs.sum())} of {want.size} differ, first [{at}]: {first[0]}, not {first[1]}"


FIRST_SEED, *MORE_SEEDS = seeds(2)


@pytest.mark.parametrize("seed", [FIRST_SEED, *(pytest.param(seed, marks=pytest.mark.check) for seed in MORE_SEEDS)])
@pytest.mark.parametrize("choose", ["exact", "sampled"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_device_feedback__is_feedback(device: "torch.device", seed: int, choose: str, momentum: float) -> None:
    is_feedback(DeviceFeedback, device, seed, choose, momentum)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("choose", ["exact", "sampled"])
def test_device_feedback__is_feedback_where_a_nan_has_other_bits(seed: int, choose: str) -> None:
    is_feedback(NanOfCuda, torch.device("cpu"), seed, choose, 0.9)


def is_feedback(kind: Any, device: "torch.device", seed: int, choose: str, momentum: float) -> None:
    """Ties, gradients that jump, a dense step, NaN, and a state that moves over."""
    rng = np.random.default_rng(seed)
    rules = Feedback(0, 0.01, momentum=momentum, choose=choose, warmup_steps=3)
    host = Feedback(SIZE, 0.01, momentum=momentum, choose=choose, warmup_steps=3)
    there = kind(SIZE, device, rules)
    for number in range(12):
        given = (rng.laplace(size=SIZE) * (10 if number == 7 else 1)).astype(np.float32).round(number % 3 + 1)
        if number == 9:
            given[17] = np.nan
        wrong = []
        if number == 5:
            taken = torch.empty(SIZE, device=device)
            there.take_all(torch.from_numpy(given).to(device), taken)
            wrong.append(apart("all", taken, host.take_all(given)))
        else:
            want = host.select(given)
            indices, values = there.select(torch.from_numpy(given).to(device))
            wrong += [apart("indices", indices, want.indices), apart("values", values, want.values)]
        if number == 6:
            back = np.array([3, 4], np.uint32), np.array([1.5, -2.5], np.float32)
            host.put_back(*back)
            there.put_back(torch.tensor([3, 4], device=device), torch.from_numpy(back[1]).to(device))
        wrong.append(apart("residual", there.residual, host.residual))
        assert [text for text in wrong if text] == [], f"step {number}: {'; '.join(filter(None, wrong))}"
        if number == 8:
            moved = kind(SIZE, device, rules)
            moved.load_state_dict(host.state_dict())
            host.load_state_dict(there.state_dict())
            there = moved
    assert number == 11 and not np.isnan(host.residual).any(), "the NaN was sent"


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
