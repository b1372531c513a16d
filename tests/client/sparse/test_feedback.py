# SPDX-License-Identifier: Apache-2.0
"""Which entries are sent and what is kept: the example of docs/papers.md, section 5.9, a twin in numpy, and that
nothing is ever lost.
"""

import pickle
from typing import Any

import numpy as np
import pytest

from tests.seeds import seeds
from ultima import InvalidArgument
from ultima.sparse import Feedback, Sparse, decode, encode, entries_above, random_entries, top_entries
from ultima.sparse.kernels import Floats


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def told(found: Sparse) -> dict[int, float]:
    return dict(zip(found.indices.tolist(), np.round(found.values.astype(np.float64), 6).tolist(), strict=True))


def test_feedback__spec_vector() -> None:
    memory = Feedback(3, 1 / 3)
    assert told(memory.select(floats(1, 0.4, 0.3))) == {0: 1.0}
    assert memory.residual.tolist() == floats(0, 0.4, 0.3).tolist()
    assert told(memory.select(floats(0.1, 0.4, 0.3))) == {1: 0.8}
    assert np.allclose(memory.residual, [0.1, 0, 0.6])
    assert memory.step == 2


def test_top_entries__ties_fall_to_lower_indices() -> None:
    assert told(top_entries(floats(1, -2, 2, 2, 1), 0.4)) == {1: -2.0, 2: 2.0}
    assert told(top_entries(floats(0, 0, 0), 0.5)) == {0: 0.0}
    assert top_entries(floats(), 0.5).size == 0
    assert told(top_entries(np.array([[5, 1], [-6, 0]], np.float32), 0.5)) == {0: 5.0, 2: -6.0}


def test_feedback__takes_tensors() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.tensor([[1.0, -4.0], [3.0, 0.5]])
    assert told(Feedback(4, 0.5).select(parameter.grad)) == {1: -4.0, 2: 3.0}
    with pytest.raises(InvalidArgument, match="gradient is '4 elements of bfloat16'; allowed: float32"):
        Feedback(4).select(parameter.grad.bfloat16())


@pytest.mark.parametrize("seed", seeds(3))
def test_top_entries__are_those_of_a_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for size in (1, 7, 100, 5000):
        dense = rng.normal(size=size).astype(np.float32).round(int(rng.integers(1, 6)))
        count = max(1, int(0.1 * size))
        want = np.sort(np.lexsort((np.arange(size), -np.abs(dense)))[:count])
        found = top_entries(dense, 0.1)
        assert found.indices.tolist() == want.tolist() and found.values.tolist() == dense[want].tolist()


def test_sparsifiers__random_and_threshold() -> None:
    dense = np.arange(1, 101, dtype=np.float32)
    drawn = random_entries(dense, 0.1, seed=5, scaled=True)
    assert drawn.indices.size == 10 and drawn.values.tolist() == (10 * dense[drawn.indices]).tolist()
    assert drawn.indices.tolist() == random_entries(dense, 0.1, seed=5).indices.tolist()
    assert drawn.indices.tolist() != random_entries(dense, 0.1, seed=6).indices.tolist()
    mean = np.mean([random_entries(dense, 0.1, seed=each, scaled=True).dense() for each in range(3000)], axis=0)
    assert np.max(np.abs(mean - dense) / dense) < 0.35
    assert told(entries_above(floats(0.5, -0.6, np.nan), 0.5)).keys() == {1, 2}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("choose", ["exact", "sampled"])
def test_feedback__sent_and_kept_add_up(choose: str, momentum: float) -> None:
    """Without momentum: all gradients are all that was sent and what is kept. With it: the sum of the velocities, where
    an entry that was sent begins again at zero."""
    rng = np.random.default_rng(3)
    size = 2000 if choose == "exact" else 40_000
    memory = Feedback(size, 0.05, momentum=momentum, choose=choose)
    given, sent = np.zeros(size), np.zeros(size)
    velocity = np.zeros(size, np.float32)
    for _ in range(30):
        gradient = rng.laplace(size=size).astype(np.float32)
        velocity = (np.float64(np.float32(momentum)) * velocity + gradient).astype(np.float32)
        given += velocity
        found = memory.select(gradient)
        sent[found.indices] += found.values
        velocity[found.indices] = 0
        assert found.indices.size == size // 20 or choose == "sampled"
        assert 0 < found.indices.size <= size // 10
    assert np.allclose(sent + memory.residual, given, atol=2e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
def test_feedback__a_sampled_threshold_sends_the_share(ratio: float, momentum: float) -> None:
    """In every step, although what is kept crowds below the threshold, rows differ and gradients jump; the sample is of
    256 entries, so that 1 in 1,000,000 draws misses by more than a third. And what is sent is the largest."""
    size, rng = 600_000, np.random.default_rng(6)
    memory = Feedback(size, ratio, momentum=momentum, choose="sampled")
    rows = np.repeat(np.exp(rng.normal(size=size // 100)), 100)
    for step in range(12):
        given = (rows * rng.normal(size=size) * (3 if step in (5, 6) else 1)).astype(np.float32)
        found = memory.select(given)
        assert 0.66 < found.indices.size / (ratio * size) < 1.33, step
        assert np.abs(found.values).min() >= np.abs(memory.residual).max()


def test_feedback__a_sample_of_few_values() -> None:
    """Zeros are not sent, equal magnitudes are (no threshold is between them), and what is not finite always is."""
    size = 50_000
    few = np.zeros(size, np.float32)
    few[::500] = -1
    assert Feedback(size, 0.02, choose="sampled").select(few).indices.tolist() == list(range(0, size, 500))
    alike = Feedback(size, 0.02, choose="sampled")
    assert alike.select(np.ones(size, np.float32)).indices.size == 2000 and alike.residual.sum() == size - 2000
    wild = np.full(size, np.inf, np.float32)
    assert Feedback(size, 0.02, choose="sampled").select(wild).indices.size == 2000
    wild = few.copy()
    wild[[7, 9]] = np.nan, np.inf
    assert {7, 9} <= set(Feedback(size, 0.02, choose="sampled").select(wild).indices.tolist())


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_feedback__keeps_what_rounding_takes(values: str) -> None:
    memory = Feedback(4, 0.5, values=values)
    gradient = floats(1.0001, -3.14159, 1e-9, 1e6)
    found = memory.select(gradient)
    whole = found.dense().astype(np.float64) + memory.residual
    assert np.allclose(whole, gradient, rtol=1e-6) and found.indices.tolist() == [1, 3]
    small = found.values[found.values < 65504]
    assert np.all(small.astype(np.float16) == small) or values == "bfloat16"
    assert memory.residual[1] != 0 and abs(memory.residual[1]) < 0.02
    back = memory.select(np.zeros(4, np.float32))
    assert 3 in back.indices.tolist() or values == "bfloat16", "what float16 cannot hold follows in the next step"


def test_feedback__nan_is_sent_and_not_kept() -> None:
    for values in ("float32", "float16", "bfloat16"):
        memory = Feedback(100, 0.02, values=values)
        gradient = np.ones(100, np.float32)
        gradient[[40, 60]] = np.nan, -np.inf
        found = memory.select(gradient)
        assert found.indices.tolist() == [40, 60] and np.isnan(found.values[0]) and np.isinf(found.values[1])
        assert np.all(np.isfinite(memory.residual))


def test_feedback__warm_up_sends_less_each_step() -> None:
    memory = Feedback(10_000, 0.001, warmup_steps=4)
    counts = [memory.select(np.random.default_rng(step).normal(size=10_000).astype(np.float32)).indices.size
              for step in range(6)]  # fmt: skip
    assert counts == [2500, 628, 158, 39, 10, 10]
    assert Feedback(10, 0.5, warmup_steps=4).ratio_at(0) == 0.5


def test_feedback__settles_what_a_codec_lost() -> None:
    """A lossy container: what receivers have and what is kept are the gradient again, false members included."""
    rng = np.random.default_rng(9)
    memory, gradient = Feedback(5000, 0.02), rng.laplace(size=5000).astype(np.float32)
    chosen = memory.select(gradient)
    for index, value in (("bloom-p1", "qsgd"), ("delta", "fit-poly")):
        before = memory.residual + chosen.dense()
        packed = encode(chosen.indices, chosen.values, 5000, index=index, value=value, bloom_error=0.01)
        arrived = decode(packed, 5000)
        memory.settle(chosen, arrived)
        assert np.allclose(arrived.dense() + memory.residual, before, atol=1e-5)
        chosen = memory.select(np.zeros(5000, np.float32))
    memory.put_back(chosen.indices, chosen.values)
    assert told(memory.select(np.zeros(5000, np.float32))) == told(chosen)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.8}, {"choose": "sampled", "values": "bfloat16"}])
def test_feedback__survives_a_checkpoint(options: dict[str, Any]) -> None:
    """The next steps send the same entries to the bit, from a state_dict as from a pickle."""
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(10, 60_000)).astype(np.float32)
    memory = Feedback(60_000, 0.02, warmup_steps=3, **options)
    for gradient in gradients[:5]:
        memory.select(gradient)
    state = pickle.loads(pickle.dumps(memory.state_dict()))
    copy, other = pickle.loads(pickle.dumps(memory)), Feedback(60_000, 0.02, warmup_steps=3, **options)
    other.load_state_dict(state)
    for gradient in gradients[5:]:
        found = memory.select(gradient)
        for each in (copy.select(gradient), other.select(gradient)):
            assert each.indices.tobytes() == found.indices.tobytes()
            assert each.values.tobytes() == found.values.tobytes()
    other.reset()
    assert other.step == 0 and not other.residual.any()


BAD_STATES: list[tuple[str, Any]] = [
    ("version", 2), ("size", 7), ("step", -1), ("residual", np.zeros(7, np.float32)),
    ("residual", np.zeros(8)), ("velocity", np.zeros(9, np.float32)),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD_STATES)
def test_feedback__refuses_a_state_of_another(field: str, value: Any) -> None:
    memory = Feedback(8, 0.5, momentum=0.5)
    memory.select(np.arange(8, dtype=np.float32))
    before = pickle.dumps(memory.state_dict())
    with pytest.raises(InvalidArgument) as raised:
        memory.load_state_dict({**memory.state_dict(), field: value})
    assert raised.value.field == field and pickle.dumps(memory.state_dict()) == before


BAD: list[tuple[str, Any]] = [
    ("size", lambda: Feedback(-1)), ("ratio", lambda: Feedback(8, 0.0)), ("ratio", lambda: Feedback(8, float("nan"))),
    ("ratio", lambda: Feedback(8, 1.1)), ("momentum", lambda: Feedback(8, momentum=1.0)),
    ("values", lambda: Feedback(8, values="float8")), ("choose", lambda: Feedback(8, choose="best")),
    ("warmup_steps", lambda: Feedback(8, warmup_steps=-1)), ("gradient", lambda: Feedback(8).select(np.zeros(8))),
    ("gradient", lambda: Feedback(8).select(np.zeros(7, np.float32))),
    ("indices", lambda: Feedback(8).put_back([3, 3], [1.0, 1.0])),
    ("arrived", lambda: Feedback(8).settle(top_entries(np.ones(8, np.float32), 1), top_entries(floats(1), 1))),
    ("threshold", lambda: entries_above(floats(1), float("nan"))), ("threshold", lambda: entries_above(floats(1), -1)),
    ("ratio", lambda: top_entries(floats(1), 2)), ("seed", lambda: random_entries(floats(1), 1, seed=-1)),
]  # fmt: skip


@pytest.mark.parametrize(("field", "call"), BAD)
def test_feedback__names_bad_arguments(field: str, call: Any) -> None:
    with pytest.raises(InvalidArgument) as raised:
        call()
    assert raised.value.field == field
