# SPDX-License-Identifier: Apache-2.0
"""What a SparseState sends and keeps, with ranks that are threads over a fake daemon; each test by a sum in the network
and by containers."""

import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ultima  # noqa: E402  # only where torch is
from tests.torch.fake_group import FakeGroup, on_all  # noqa: E402
from ultima.sparse import Feedback  # noqa: E402
from ultima.testing import FakeDaemon  # noqa: E402
from ultima.torch import SparseState  # noqa: E402
from ultima.torch.backend import entries  # noqa: E402
from ultima.torch.hooks import BucketOptions, LossBudget  # noqa: E402
from ultima.torch.hooks.parts import Part  # noqa: E402
from ultima.torch.sparse.choice import AGAIN, KEPT, PROBES, Choice  # noqa: E402

WORLD = 3
MATRIX, BIAS, TINY = 3000, 40, 12
SIZE = MATRIX + BIAS + TINY


@pytest.fixture(params=["in the network", "by containers"])
def daemon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    if request.param == "by containers":
        monkeypatch.setattr(entries, "NATIVE", "nothing that a job can do")
    with FakeDaemon(WORLD) as found:
        yield found


class Model:
    """One rank's parameters: a matrix, a bias, a matrix with few elements. Buckets hold them in any order."""

    def __init__(self) -> None:
        self.parameters = [torch.zeros(50, 60), torch.zeros(BIAS), torch.zeros(3, 4)]

    def parts(self, *order: int) -> Callable[[], list[Part]]:
        found, at = [], 0
        for number in order or (0, 1, 2):
            parameter = self.parameters[number]
            found.append(Part(parameter, at, parameter.numel(), parameter.dim()))
            at += parameter.numel()
        return lambda: found


def gradient(rank: int, step: int) -> Any:
    return np.random.default_rng([rank, step]).laplace(size=SIZE).astype(np.float32)


def same(found: Any, want: Any) -> bool:
    """The same sums, whose last bits depend on which of three ranks came first."""
    return bool(np.allclose(found, want, rtol=1e-6, atol=1e-7))


def made(daemon: FakeDaemon | list[SparseState], **options: Any) -> list[SparseState]:
    """On a daemon, or on the groups of other states."""
    options = {"ratio": 0.02, "start_step": 0, "dense_below": 20, "choose": "exact", **options}
    if isinstance(daemon, FakeDaemon):
        return [SparseState(FakeGroup(daemon.connect(rank)), **options) for rank in range(WORLD)]
    return [SparseState(state.group, **options) for state in daemon]


def step(states: list[SparseState], models: list[Model], number: int) -> list[Any]:
    """The averages on all ranks, and that they are the same bits."""

    def act(rank: int, state: SparseState) -> Any:
        bucket = torch.from_numpy(gradient(rank, number))
        state.send(bucket, 0, True, models[rank].parts()).future().wait()
        return bucket.numpy()

    found = on_all(states, act)
    assert all(isinstance(each, np.ndarray) and each.tobytes() == found[0].tobytes() for each in found), found
    return found


def test_sparse_state__is_feedback_of_each_parameter(daemon: FakeDaemon) -> None:
    """Against memories of the matrix alone; bias and the small matrix come whole."""
    states, models = made(daemon), [Model() for _ in range(WORLD)]
    twins = [Feedback(MATRIX, 0.02) for _ in range(WORLD)]
    for number in range(4):
        found = step(states, models, number)[0]
        given = [gradient(rank, number) for rank in range(WORLD)]
        want = sum(twin.select(one[:MATRIX]).dense() for twin, one in zip(twins, given, strict=True)) / WORLD
        assert np.allclose(found[:MATRIX], want, atol=1e-6) and np.count_nonzero(found[:MATRIX]) <= 3 * 60
        assert np.allclose(found[MATRIX:], np.mean(given, 0)[MATRIX:], atol=1e-6)
        for state, twin in zip(states, twins, strict=True):
            assert state.kept()["0"] == pytest.approx(float(np.abs(twin.residual).sum()), rel=1e-6)
            assert state.kept()["1"] == state.kept()["2"] == 0
    for state in states:
        told = state.summary()
        assert (told.sparse_ops, told.elements, told.entries) == (4, 4 * SIZE, 4 * (60 + BIAS + TINY))
        assert "4 buckets sparse, 0 dense; sparse: 3.67% of the elements" in str(told)


def test_sparse_state__nothing_given_is_lost(daemon: FakeDaemon) -> None:
    """Sums over steps: what came and what is kept is what was given, also with values that are rounded."""
    states, models = made(daemon, values="float16", choose="sampled"), [Model() for _ in range(WORLD)]
    came = np.sum([step(states, models, number)[0] for number in range(6)], 0, dtype=np.float64)
    kept = [state._memories._held["0"].residual for state in states]
    given = np.sum([gradient(rank, number) for rank in range(WORLD) for number in range(6)], 0, dtype=np.float64)
    left = WORLD * came[:MATRIX] + np.sum(kept, 0, dtype=np.float64) - given[:MATRIX]
    assert np.abs(left).max() < 0.02, "float16 of sums in the network"
    assert all(state.kept()["1"] > 0 for state in states), "what rounding took from the bias"


def test_sparse_state__asks_for_answers_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = ultima.Job.allreduce_sparse_async

    def spy(job: Any, *given: Any, **named: Any) -> Any:
        asked.append((named["form"], named["down"]))
        return real(job, *given, **named)

    monkeypatch.setattr(ultima.Job, "allreduce_sparse_async", spy)
    with FakeDaemon(WORLD) as daemon:
        step(made(daemon, values="float16", down="int8"), [Model() for _ in range(WORLD)], 0)
    assert asked == [("float16", "int8")] * WORLD


def test_sparse_state__start_steps_go_dense_and_momentum_goes_on(daemon: FakeDaemon) -> None:
    """Two dense steps, then sparse ones. With a momentum a parameter that goes whole gets what SGD would make of it."""
    states, models = made(daemon, start_step=2, momentum=0.5), [Model() for _ in range(WORLD)]
    velocity = np.zeros(SIZE, np.float64)
    for number in range(4):
        found = step(states, models, number)[0]
        velocity = 0.5 * velocity + np.mean([gradient(rank, number) for rank in range(WORLD)], 0)
        dense = number < 2
        assert np.allclose(found[MATRIX:], velocity[MATRIX:], atol=1e-5)
        assert np.allclose(found[:MATRIX], velocity[:MATRIX], atol=1e-5) == dense
    assert [states[0].summary().sparse_ops, states[0].summary().ops] == [2, 4]


def test_sparse_state__dense_step_takes_what_was_kept(daemon: FakeDaemon) -> None:
    """`auto` and a loaded state may go dense after they went sparse."""
    states, models = made(daemon), [Model() for _ in range(WORLD)]
    first = step(states, models, 0)[0]
    for state in states:
        state._start_step = 9
    second = step(states, models, 1)[0]
    given = np.sum([gradient(rank, number) for rank in range(WORLD) for number in range(2)], 0)
    assert np.allclose(WORLD * (first + second), given, atol=1e-5)
    assert all(sum(state.kept().values()) == 0 for state in states)


def test_sparse_state__survives_rebuilt_buckets_and_checkpoints(daemon: FakeDaemon, tmp_path: Path) -> None:
    """Three ways to go on after a step: as it was with parameters in other buckets, from a file, from a pickle."""
    models = [Model() for _ in range(WORLD)]

    def rebuilt(states: list[SparseState], fresh: list[Model]) -> list[Any]:
        """Parameters 2 and 1 in one bucket, 0 in the next."""

        def act(rank: int, state: SparseState) -> Any:
            given = torch.from_numpy(gradient(rank, 1))
            low = torch.cat([given[MATRIX + BIAS :], given[MATRIX : MATRIX + BIAS]])
            high = given[:MATRIX].clone()
            sent = [state.send(low, 0, False, fresh[rank].parts(2, 1)), state.send(high, 1, True, fresh[rank].parts(0))]
            for each in sent:
                each.wait()
            return torch.cat([high, low[TINY:], low[:TINY]]).numpy()

        return on_all(states, act)

    states = made(daemon)
    step(states, models, 0)
    files = [tmp_path / str(rank) for rank in range(WORLD)]
    for state, file in zip(states, files, strict=True):
        torch.save(state.state_dict(), file)
    pickled = [pickle.dumps(state) for state in states]
    want = step(states, models, 1)[0]

    def from_files() -> list[SparseState]:
        loaded = made(states, start_step=1)  # over already: the state knows the steps, too
        for state, file in zip(loaded, files, strict=True):
            state.load_state_dict(torch.load(file, weights_only=True))
        return loaded

    copies = [pickle.loads(one) for one in pickled]
    for copy, state in zip(copies, states, strict=True):
        copy._group = state.group
    fresh = [Model() for _ in range(WORLD)]
    assert same(step(copies, fresh, 1)[0], want)
    assert same(step(from_files(), [Model() for _ in range(WORLD)], 1)[0], want)
    again = from_files()
    for state, model in zip(again, models, strict=True):
        for number, parameter in enumerate(model.parameters):  # the order of the first step
            assert state._memories._names.of(Part(parameter, 0, 0, 0)) == str(number)
    assert same(rebuilt(again, models)[0], want)


def test_name_parameters__by_the_models_names() -> None:
    with FakeDaemon(2) as daemon:
        layer = torch.nn.Linear(60, 50)
        state = SparseState(FakeGroup(daemon.connect(0)), start_step=0, choose="exact")
        state.name_parameters(layer)
        parts = [Part(layer.weight, 0, MATRIX, 2)]
        state._memories.choose(torch.ones(MATRIX), parts)
        told = state.state_dict()
        assert list(told["memories"]) == ["weight"] and told["named"]
        other = SparseState(FakeGroup(daemon.connect(1)), choose="exact")
        other.load_state_dict(told)
        with pytest.raises(ultima.InvalidArgument, match="name_parameters"):
            other._memories.choose(torch.ones(MATRIX), parts)
        other.name_parameters(layer)
        other._memories.choose(torch.zeros(MATRIX), parts)
        assert other.kept()["weight"] == pytest.approx(MATRIX - 2 * MATRIX // 100)
        numbered = SparseState(state.group, start_step=0)
        numbered._memories.choose(torch.ones(MATRIX), parts)
        with pytest.raises(ultima.InvalidArgument, match="before the first step"):
            numbered.name_parameters(layer)


def test_sparse_state__what_was_not_delivered_returns(daemon: FakeDaemon) -> None:
    """Rank 0 alone calls a reliable op. It fails, and its gradient is in its memory."""
    states, models = made(daemon, mode="reliable", deadline="100ms"), [Model() for _ in range(WORLD)]
    states[0].group._timeout = timedelta(seconds=0.1)
    bucket = torch.from_numpy(gradient(0, 0))
    with pytest.raises(ultima.DeadlineExceeded):
        states[0].send(bucket, 0, True, models[0].parts()).wait()
    held = states[0]._memories._held
    kept = np.concatenate([held[name].residual for name in "012"])
    assert np.array_equal(kept, gradient(0, 0))
    assert states[0].summary().returned == 60 + BIAS + TINY


def test_sparse_state__what_the_average_lacks_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners that miss every third entry of whatever is sent: it is in the memory again."""

    def third(handle: ultima.Handle) -> Any:
        indices, values = handle._op.layout.sparse.entries_of(handle._op.source)  # type: ignore[union-attr]
        return indices[::3], values[::3]

    monkeypatch.setattr(ultima.Handle, "returned", property(third))
    with FakeDaemon(WORLD) as daemon:
        states, models = made(daemon), [Model() for _ in range(WORLD)]
        step(states, models, 0)
        for rank, state in enumerate(states):
            twin = Feedback(MATRIX, 0.02)
            chosen = twin.select(gradient(rank, 0)[:MATRIX])
            twin.put_back(chosen.indices[::3], chosen.values[::3])
            assert np.array_equal(state._memories._held["0"].residual, twin.residual)
            assert state.summary().returned == (60 + BIAS + TINY + 2) // 3


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_sparse_state__other_elements(daemon: FakeDaemon, kind: str) -> None:
    """Narrow ones are chosen in float32; float64 goes dense."""
    states, models = made(daemon), [Model() for _ in range(WORLD)]

    def act(rank: int, state: SparseState) -> Any:
        bucket = torch.from_numpy(gradient(rank, 0)).to(getattr(torch, kind))
        state.send(bucket, 0, True, models[rank].parts()).wait()
        return bucket

    found = on_all(states, act)
    wide = [torch.from_numpy(gradient(rank, 0)).to(getattr(torch, kind)).double().numpy() for rank in range(WORLD)]
    assert all(torch.equal(each, found[0]) for each in found) and found[0].dtype is getattr(torch, kind)
    assert np.allclose(found[0].double().numpy()[MATRIX:], np.mean(wide, 0)[MATRIX:], atol=0.05)
    assert states[0].summary().sparse_ops == (kind != "float64")


def test_sparse_state__pieces_larger_than_a_bucket() -> None:
    with FakeDaemon(WORLD, bucket_bytes_max=4096) as daemon:
        states, models = made(daemon), [Model() for _ in range(WORLD)]
        found = step(states, models, 0)[0]
        assert len(states[0].group.log.last()) == -(-4 * SIZE // 4096)
    with FakeDaemon(WORLD) as daemon:
        assert same(step(made(daemon), models, 0)[0], found)


def test_sparse_state__a_bucket_without_parts(daemon: FakeDaemon) -> None:
    """One memory for the whole of it, by its index and size."""
    states = made(daemon)
    given = [torch.from_numpy(gradient(rank, 0)) for rank in range(WORLD)]
    found = on_all(states, lambda rank, state: [state.send(given[rank], 0, True).wait(), given[rank].numpy()][1])
    assert np.count_nonzero(found[0]) <= 3 * int(0.02 * SIZE)
    assert list(states[0].kept()) == [f"bucket 0 of {SIZE} elements"]


def test_step_ok__counts_sparse_buckets() -> None:
    with FakeDaemon(2) as daemon:
        states = [SparseState(FakeGroup(daemon.connect(rank)), start_step=0) for rank in range(2)]
        models = [Model() for _ in range(2)]
        for number in range(2):
            for bucket in range(2):
                on_all(
                    states,
                    lambda rank, state, bucket=bucket, number=number: state.send(
                        torch.from_numpy(gradient(rank, number)), bucket, bucket == 1, models[rank].parts()
                    ).wait(),
                )
            assert on_all(states, lambda _, state: state.step_ok()) == [True, True]
        assert [(one.summary().steps, one.summary().missing_bytes) for one in states] == [(2, 0)] * 2
        assert states[0].summary().expected_bytes == states[1].summary().expected_bytes > 0


# Dense or sparse


def settled(dense_s: float, sparse_s: float) -> Choice:
    choice = Choice(("dense", "sparse"))
    for _ in range(2 * PROBES):
        way = choice.way()
        choice.took(way, sparse_s if way == "sparse" else dense_s)
    return choice


def test_choice__measures_both_and_takes_the_faster() -> None:
    assert settled(2.0, 1.0).way() == "sparse" and settled(1.0, 2.0).way() == "dense"
    assert settled(1.0, 1.0).way() == "dense", "dense where it makes no difference"
    choice, names = Choice(("dense", "half", "sparse")), []
    for _ in range(3 * PROBES):
        names.append(choice.way())
        first = len(names) % PROBES == 1
        choice.took(names[-1], 9.0 if first else {"dense": 2.0, "half": 1.0, "sparse": 3.0}[names[-1]])
    assert names == ["dense"] * PROBES + ["half"] * PROBES + ["sparse"] * PROBES and choice.way() == "half"
    assert (choice.seconds("dense"), choice.seconds("sparse")) == (2.0, 3.0), "first ones do not count"


def test_choice__looks_again_and_changes_its_mind() -> None:
    choice = settled(1.0, 2.0)
    ways = []
    for number in range(3 * AGAIN):
        ways.append(choice.way() == "sparse")
        choice.took(choice.way(), (0.5 if number > 100 else 2.0) if ways[-1] else 1.0)
    first = ways.index(True)
    assert not any(ways[:AGAIN]) and first <= AGAIN + 1 and all(ways[first + PROBES : 2 * AGAIN - KEPT])
    assert 3 * AGAIN - sum(ways) < AGAIN + 3 * PROBES


def test_auto__is_alike_on_all_ranks() -> None:
    """Each rank measures something else; the sums decide. Nobody asks for `step_ok`, and there is no budget."""
    with FakeDaemon(2) as daemon:
        states = [
            SparseState(FakeGroup(daemon.connect(rank)), start_step=0, auto=True, budget=None) for rank in range(2)
        ]
        models = [Model() for _ in range(2)]
        ways = []
        for number in range(2 * PROBES + 3):
            before = [state.summary().sparse_ops for state in states]
            found = on_all(
                states,
                lambda rank, state, number=number: state.send(
                    torch.from_numpy(gradient(rank, number)), 0, True, models[rank].parts()
                ).wait(),
            )
            assert found == [None, None]
            went = [state.summary().sparse_ops - one for state, one in zip(states, before, strict=True)]
            assert went[0] == went[1]
            ways.append(went[0])
        assert ways[: 2 * PROBES] == [0] * PROBES + [1] * PROBES
        (one,), (two,) = (state._ways._choices.values() for state in states)
        assert all(one.seconds(way) == two.seconds(way) for way in ("dense", "sparse"))


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("ratio", lambda: SparseState(ratio=0)),
        ("momentum", lambda: SparseState(momentum=1)),
        ("choose", lambda: SparseState(choose="some")),
        ("values", lambda: SparseState(values="int8")),
        ("down", lambda: SparseState(down="int4")),
        ("start_step", lambda: SparseState(start_step=-1)),
        ("warmup_steps", lambda: SparseState(warmup_steps=1.5)),
        ("dense_below", lambda: SparseState(dense_below=-1)),
        ("auto", lambda: SparseState(auto="yes")),
        ("hadamard", lambda: SparseState(hadamard=True)),
        ("budget", lambda: SparseState(budget=0.1)),
        ("version", lambda: SparseState().load_state_dict({"version": 9})),
        ("steps", lambda: SparseState().load_state_dict({"version": 1, "steps": {"0": -1}})),
        ("memories", lambda: SparseState().load_state_dict({"version": 1, "steps": {}, "memories": 3})),
        ("state", lambda: ultima.torch.sparse_hook(ultima.torch.HookState(), None)),
    ],
)
def test_bad_input__is_named(field: str, make: Callable[[], Any]) -> None:
    with pytest.raises(ultima.InvalidArgument) as caught:
        make()
    assert str(caught.value).startswith(f"{field} is ")


def test_bad_input__hadamard_of_a_policy_and_momentum_of_float64() -> None:
    with FakeDaemon(2) as daemon:
        group = FakeGroup(daemon.connect(0))
        state = SparseState(group, policy=lambda bucket: BucketOptions(hadamard=True), budget=LossBudget())
        with pytest.raises(ultima.InvalidArgument, match="hadamard is True"):
            state.send(torch.zeros(3), 0, True)
        with pytest.raises(ultima.InvalidArgument, match="with a momentum"):
            SparseState(group, momentum=0.9).send(torch.zeros(3, dtype=torch.float64), 0, True)
