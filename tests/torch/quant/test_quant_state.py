# SPDX-License-Identifier: Apache-2.0
"""What a QuantState sends and keeps, with ranks that are threads over a fake daemon. The rounding of contributions is
that of the daemon's kernels; test_quantize_hook.py has real daemons."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.fake_group import FakeGroup, on_all  # noqa: E402  # only where torch is
from ultima import InvalidArgument, Options, Unsupported  # noqa: E402
from ultima.quant import Draws, rounded, wire_bytes  # noqa: E402
from ultima.testing import FakeDaemon  # noqa: E402
from ultima.torch import HookState, QuantState, SparseState  # noqa: E402
from ultima.torch.hooks import BucketOptions  # noqa: E402
from ultima.torch.hooks.parts import Part  # noqa: E402
from ultima.torch.sparse.choice import PROBES  # noqa: E402

WORLD = 2
SIZES = (3000, 40, 2000)


class WireGroup(FakeGroup):
    """A group whose contributions are rounded before they are summed."""

    def allreduce_with(
        self, tensor: Any, op: str = "avg", *, mode: Any = None, deadline: Any = None, wire: Any = None
    ) -> Any:
        self.wires = [*getattr(self, "wires", []), wire and (wire.wire, wire.answer, wire.feedback is not None)]
        if wire is not None:
            given = tensor.detach().float().numpy().reshape(-1)
            draws = None if wire.feedback is not None else Draws(len(self.wires), self.rank())
            tensor.copy_(torch.from_numpy(rounded(given, wire.wire, draws, residual=wire.feedback)))
        return super().allreduce_with(tensor, op, mode=mode, deadline=deadline)


class Model:
    """One rank's parameters, which buckets hold in any order."""

    def __init__(self) -> None:
        self.parameters = [torch.zeros(size) for size in SIZES]

    def parts(self, *order: int) -> Callable[[], list[Part]]:
        found, at = [], 0
        for number in order:
            found.append(Part(self.parameters[number], at, SIZES[number], 1))
            at += SIZES[number]
        return lambda: found


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon(WORLD) as found:
        yield found


def made(daemon: FakeDaemon, *words: Any, **options: Any) -> list[QuantState]:
    return [QuantState(*words, WireGroup(daemon.connect(rank)), **options) for rank in range(WORLD)]


def gradient(rank: int, step: int, number: int) -> Any:
    return np.random.default_rng([rank, step, number]).normal(size=SIZES[number]).astype(np.float32)


def step(states: list[QuantState], models: list[Model], number: int, *order: int, dtype: Any = None) -> list[Any]:
    """The averages of the parameters, in the order of the model, on all ranks; the same bits."""

    def act(rank: int, state: QuantState) -> Any:
        bucket = torch.from_numpy(np.concatenate([gradient(rank, number, each) for each in order]))
        bucket = bucket if dtype is None else bucket.to(dtype)
        state.send(bucket, 0, True, models[rank].parts(*order)).future().wait()
        ends = np.cumsum([SIZES[each] for each in order])
        return dict(zip(order, np.split(bucket.float().numpy(), ends[:-1]), strict=True))

    found = on_all(states, act)
    assert all(isinstance(each, dict) for each in found), found
    assert all((found[0][each] == found[1][each]).all() for each in order)
    return [found[0][each] for each in range(3)]


def test_quant_state__nothing_given_is_lost_although_buckets_change(daemon: FakeDaemon) -> None:
    """Of int4, over steps whose buckets differ: what came and what is kept is what was given."""
    states, models = made(daemon, "int4"), [Model() for _ in range(WORLD)]
    came: list[Any] = [0.0, 0.0, 0.0]
    for number, order in enumerate([(0, 1, 2), (0, 1, 2), (2, 0, 1), (2, 0, 1), (1, 2, 0)]):
        came = [
            old + new.astype(np.float64) for old, new in zip(came, step(states, models, number, *order), strict=True)
        ]
    for number in range(3):
        given = sum(gradient(rank, each, number) for rank in range(WORLD) for each in range(5))
        kept = sum(state._memories._held[str(number)] for state in states)
        assert np.allclose(WORLD * came[number] + kept, given, atol=1e-4), number
        assert all(state.kept()[str(number)] > 0.02 * SIZES[number] for state in states)
    assert [wire for wire in states[0].group.wires if wire] == [("int4", "int8", True)] * 5
    assert len(states[0]._memories._buckets) == 1, "residuals of buckets that are gone"
    told = states[0].summary()
    assert (told.quantised_ops, told.ops) == (5, 5)
    assert told.wire_bytes == 5 * wire_bytes(sum(SIZES), "int4", "int8") and "5 buckets quantised, 0 dense" in str(told)


def test_quant_state__residuals_lie_where_the_daemon_reaches_them(daemon: FakeDaemon) -> None:
    """And a bucket without room for one gives back what was kept, and is rounded at random."""
    states, models = made(daemon, "int8", feedback=True), [Model() for _ in range(WORLD)]
    step(states, models, 0, 0, 1, 2)
    for state in states:
        (flat,) = state._memories._buckets.values()
        assert state.group.job is not None and state.group.job.holds(flat.ctypes.data, flat.nbytes)
        assert state._memories._held["1"].base is not None and sum(state.kept().values()) > 0
        state._memories.of = lambda parts, job: None  # type: ignore[method-assign]
    step(states, models, 1, 0, 1, 2)
    assert states[0].group.wires[-1] == ("int8", "int8", False) and not sum(states[0].kept().values())


def test_quant_state__small_buckets_and_other_types_go_dense(daemon: FakeDaemon) -> None:
    states, models = made(daemon, "int8", dense_below=4 * sum(SIZES) + 1), [Model() for _ in range(WORLD)]
    found = step(states, models, 0, 0, 1, 2)
    want = [np.mean([gradient(rank, 0, number) for rank in range(WORLD)], 0) for number in range(3)]
    assert all(np.allclose(one, other, atol=1e-7) for one, other in zip(found, want, strict=True))
    for dtype, wire in ((torch.float64, None), (torch.bfloat16, ("int8", "int8", False))):
        states = made_on(states, "int8", dense_below=0)
        found = step(states, models, 0, 0, 1, 2, dtype=dtype)
        assert states[0].group.wires[-1] == wire
        assert all(np.abs(one - other).max() < 0.06 for one, other in zip(found, want, strict=True))


def test_policy__names_the_form_of_a_bucket(daemon: FakeDaemon) -> None:
    states, models = made(daemon, "int4"), [Model() for _ in range(WORLD)]
    for asked, went in (
        (None, ("int4", "int8", True)),
        ("int16", ("int16", "int16", True)),
        ("int8", ("int8", "int8", True)),
        ("float32", None),
    ):
        states = made_on(states, "int4", policy={"last": BucketOptions(wire=asked)})
        for number in range(2):
            step(states, models, number, 0, 1, 2)
            assert states[0].group.wires[-1] == went
        kept = sum(states[0].kept().values())
        assert (kept > 0) == (asked != "float32")
    auto = made_on(states, "auto", policy={"last": BucketOptions(wire="int16")})
    for number in range(3):
        step(auto, models, number, 0, 1, 2)
        assert on_all(auto, lambda _, state: state.step_ok()) == [True, True]
    assert auto[0].group.wires[-2][0] == "int16", "before the exchange of that step"


def test_policy__of_another_state_refuses_a_form(daemon: FakeDaemon) -> None:
    with pytest.raises(InvalidArgument, match="wire is 'fp8'; allowed: float32, int16, int8, int4"):
        BucketOptions(wire="fp8")
    group = WireGroup(daemon.connect(0))
    for kind in (HookState, SparseState):
        state = kind(group, policy={0: BucketOptions(wire="int8")})
        with pytest.raises(InvalidArgument, match=f"None in the policy of a {kind.__name__}"):
            state.send(torch.zeros(8), 0, False)


def made_on(states: list[QuantState], *words: Any, **options: Any) -> list[QuantState]:
    return [QuantState(*words, state.group, **options) for state in states]


def test_auto__takes_the_form_only_where_it_pays(daemon: FakeDaemon) -> None:
    """Dense and int8 are tried, then what takes less, on all ranks alike. A dense step takes along what was kept."""
    first = made(daemon, "auto", feedback=True)
    for slow in ("int8", "float32"):
        states = made_on(first, "auto", feedback=True)
        models = [Model() for _ in range(WORLD)]
        for state in states:
            count = len(getattr(state.group, "wires", []))
            ended = state._ways.ended
            state._ways.ended = (  # type: ignore[method-assign]
                lambda key, way, _, ended=ended, slow=slow: ended(key, way, 1.0 if way == slow else 0.5)
            )
        given, came = 0.0, 0.0
        for number in range(2 * PROBES + 4):
            came = came + step(states, models, number, 0, 1, 2)[0].astype(np.float64)
            given = given + sum(gradient(rank, number, 0) for rank in range(WORLD))
            assert on_all(states, lambda _, state: state.step_ok()) == [True, True]
        went = [wire for wire in states[0].group.wires[count:] if wire is None or wire[0] == "int8"]
        buckets = went[::2]  # the others are the exchanges of counts
        assert buckets[: 2 * PROBES] == [None] * PROBES + [("int8", "int8", True)] * PROBES
        assert {wire is None for wire in buckets[2 * PROBES :]} == {slow == "int8"}
        kept = sum(state._memories._held["0"] for state in states)
        assert np.allclose(WORLD * came + kept, given, atol=1e-4) and kept.any() == (slow != "int8")


def test_auto__goes_dense_where_there_are_no_such_sums() -> None:
    """A form that is named is refused there, by the job."""
    with FakeDaemon(WORLD) as daemon:
        states = [
            QuantState("auto", FakeGroup(daemon.connect(rank, options=Options(deterministic=True))))
            for rank in range(WORLD)
        ]
        for _ in range(PROBES + 1):
            assert on_all(states, lambda _, state: state.send(torch.ones(5000), 0, True).wait()) == [None, None]
        assert states[0].summary().quantised_ops == 0
        named = on_all(made_on(states, "int8"), lambda _, state: state.send(torch.ones(5000), 0, True).wait())
        assert all(isinstance(each, Unsupported) for each in named), named


def test_state__goes_on_from_a_file_and_from_a_pickle(daemon: FakeDaemon, tmp_path: Any) -> None:
    states, models = made(daemon, "int4"), [Model() for _ in range(WORLD)]
    step(states, models, 0, 0, 1, 2)
    copies = [pickle.loads(pickle.dumps(state)) for state in states]
    for rank, state in enumerate(states):
        torch.save(state.state_dict(), tmp_path / f"{rank}.pt")
    again = made_on(states, "int4")
    for rank, state in enumerate(again):
        state.load_state_dict(torch.load(tmp_path / f"{rank}.pt", weights_only=True))
        copies[rank]._group = state.group
    want = step(states, models, 1, 0, 1, 2)
    for others in (copies, again):
        found = step(others, [Model() for _ in range(WORLD)], 1, 0, 1, 2)
        assert all((one == other).all() for one, other in zip(found, want, strict=True))


def test_state__that_does_not_fit_changes_nothing(daemon: FakeDaemon) -> None:
    (state, _), models = made(daemon, "int4", dense_below=0), [Model(), Model()]
    on_all([state, _], lambda rank, each: each.send(torch.ones(3000), 0, True, models[rank].parts(0)).wait())
    saved, before = state.state_dict(), state.kept()
    bad = [
        ("version", {"version": 2}),
        ("residuals", {"residuals": [1]}),
        ("0", {"residuals": {"0": torch.zeros(5)}}),
        ("0", {"residuals": {"0": torch.full((3000,), torch.inf)}}),
        ("7", {"residuals": {"7": [0.0]}}),
    ]
    for field, change in bad:
        with pytest.raises(InvalidArgument, match=f"^{field}"):
            state.load_state_dict({**saved, **change})
    assert state.kept() == before
    state.load_state_dict(saved)
    assert state.kept() == before


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("wire", lambda: QuantState("int3")),
        ("wire", lambda: QuantState("float32")),
        ("answer", lambda: QuantState("int8", answer="int4")),
        ("answer", lambda: QuantState("auto", answer="int4")),
        ("feedback", lambda: QuantState(feedback="yes")),
        ("dense_below", lambda: QuantState(dense_below=-1)),
        ("hadamard", lambda: QuantState(hadamard=True)),
        ("hadamard", lambda: QuantState()._mixes(BucketOptions(hadamard=True))),
    ],
)
def test_bad_input__is_named(field: str, make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field}"):
        make()
