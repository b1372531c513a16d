# SPDX-License-Identifier: Apache-2.0
"""Local SGD on ranks in one thread: where what each of them did has gone, to the bit, after losses of every kind.

Plain averaging (lr 1, no momentum) of steps that add whole numbers shows that: all that ranks did, divided by the
number of members, is in theta once, and the rest is still in their own parameters.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.local.net import Net, outers, run
from ultima.local.vector import HEAD, Head, Vector, head_of

SIZE = 2000
PLAIN = ultima.Nesterov(lr=1.0, momentum=0.0)


def _add(rank: int, step: int, model: Any) -> None:
    model += 4.0 * 10.0**rank  # 4 ranks: shares are whole numbers


def _done(ranks: int, steps: int) -> float:
    """The mean over the members of all that they did."""
    return sum(4.0 * 10.0**rank * steps for rank in range(ranks)) / ranks


def _equal(made: list[ultima.Outer]) -> np.ndarray:
    thetas = [outer.theta for outer in made]
    for other in thetas[1:]:
        assert (other == thetas[0]).all()
    return thetas[0]


def test_round__moves_all_to_the_mean_and_keeps_the_steps_made_meanwhile() -> None:
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN)
    run(models, made, 3, _add)
    assert (_equal(made) == _done(4, 2)).all()
    for rank, model in enumerate(models):
        assert (model == _done(4, 2) + 4.0 * 10.0**rank).all()
    assert made[0].summary().rounds == 1
    assert made[0].last is not None
    assert made[0].last.inside == (0, 1, 2, 3)


def test_alpha__gives_up_the_steps_made_meanwhile() -> None:
    models, made = outers(Net(4), SIZE, outer=PLAIN, alpha=1.0)
    run(models, made, 3, _add)
    for model in models:
        assert (model == _done(4, 2)).all()


def test_delay__each_result_is_taken_so_many_steps_after_its_send() -> None:
    """Rounds every 4 steps, each taken 3 steps later. Fails if steps are counted from the first one on."""
    models, made = outers(Net(2), SIZE, outer=PLAIN, every=4, delay=3)
    seen = []
    for _ in range(15):
        run(models, made, 1, _add)
        seen.append(made[1].summary().rounds)
    assert seen == [0] * 6 + [1] * 4 + [2] * 4 + [3]


def test_step_without_a_delay__takes_the_mean_at_once() -> None:
    model = np.zeros(SIZE, np.float32)
    outer = ultima.Outer(Net(1).jobs()[0], {"w": model}, 2, fragments=2, outer=PLAIN)
    run([model], [outer], 3, _add)
    outer.meet()
    assert (model == 12.0).all()
    assert (outer.theta == 12.0).all()


def test_missed_round__what_the_rank_did_is_in_the_next_one_once() -> None:
    """Rank 2's data is lost whole in the first round. Fails if it is dropped, added as a slot, or if the divisor is the
    number of ranks that are in the round."""
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN)
    net.lost[0] = [(2, slice(4 * HEAD, None))]
    run(models, made, 3, _add)
    without = (4.0 + 40.0 + 4000.0) * 2 / 4
    assert (_equal(made) == without).all()
    assert (models[2] == without + 400.0 * 3).all()
    assert made[2].last is not None
    assert made[2].last.inside == (0, 1, 3)
    assert made[2].last.members_weight == 4
    assert made[2].summary().missed == 1
    run(models, made, 2, _add)
    assert (_equal(made) == _done(4, 4)).all()
    assert made[2].summary().missed == 1


def test_missed_range__is_given_again_and_no_other() -> None:
    """A run of packets of rank 1 is lost. Each of its elements is in theta or still with rank 1, but at the two edges
    of the run: these ranges, of which some came, stay too."""
    net, packet = Net(4), 352
    models, made = outers(net, 20_000, outer=PLAIN)
    vector = Vector(20_000, 4, "float32")
    lost = slice(4 * HEAD + 10 * packet, 4 * HEAD + 23 * packet)
    net.lost[0] = [(1, lost)]
    run(models, made, 3, _add)
    probe = np.zeros(vector.count, np.float32)
    vector.put(probe, np.ones(20_000, np.float32))
    vector.mark(probe, 1)
    probe[lost] = 0
    came = vector.data(probe, 20_000) > 0
    theta = _equal(made)
    assert (theta == np.where(came, _done(4, 2), _done(4, 2) - 40.0 * 2 / 4)).all()
    stays = models[1] - theta - 40.0  # less the step that was made meanwhile
    assert set(np.unique(stays)) == {0.0, 80.0}
    assert (stays[~came] == 80.0).all()
    twice = int((stays[came] == 80.0).sum())
    assert twice < 2 * vector.range
    assert made[1].last is not None
    assert made[1].last.partly == (1,)
    assert made[1].last.ranges_missed == int((stays == 80.0).sum() / vector.range)
    assert made[1].summary().partly == 1
    run(models, made, 2, _add)
    again = _equal(made) - _done(4, 4)
    assert set(np.unique(again)) <= {0.0, 20.0}
    assert int((again != 0).sum()) == twice


def test_rank_without_a_result__takes_the_state_of_the_others_and_keeps_its_steps() -> None:
    net = Net(4)
    models, made = outers(net, SIZE, fragments=2, outer=ultima.Nesterov(), every=4)
    net.deaf[1] = {3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(models, made, 5, _add)
        assert made[3].behind
        run(models, made, 20, _add)
    assert not made[3].behind
    assert made[3].summary().learned == 1
    run(models, made, 1, lambda *_: None)
    for outer in made:
        outer.finish()
    _equal(made)
    assert len({outer.state_dict()["turn"] for outer in made}) == 1
    states = [outer.state_dict()["momentum"] for outer in made]
    assert all((state == states[0]).all() for state in states)
    with_it = made[3].summary()
    assert with_it.rounds > 3


def test_no_rank_has_a_result__nobody_is_behind_and_nothing_is_lost() -> None:
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN)
    net.deaf[0] = {0, 1, 2, 3}
    run(models, made, 7, _add)
    assert (_equal(made) == _done(4, 6)).all()
    assert not any(outer.summary().learned for outer in made)


def test_quorum__a_round_of_fewer_moves_nobody_and_the_next_has_all_of_it() -> None:
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN, quorum="majority")
    net.lost[0] = [(rank, slice(None)) for rank in (1, 2)]
    run(models, made, 3, _add)
    assert (_equal(made) == 0).all()
    assert made[0].last is not None
    assert made[0].last.outcome == "void"
    assert "2 of 3 ranks gave" in made[0].last.why
    run(models, made, 2, _add)
    assert (_equal(made) == _done(4, 4)).all()


def test_head_lost__what_nobody_can_tell_the_owner_of_is_not_taken() -> None:
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN)
    net.lost[0] = [(2, slice(2 * HEAD, 2 * HEAD + 3))]
    run(models, made, 5, _add)
    assert made[0].summary().empty == 1
    assert (_equal(made) == _done(4, 4)).all()


def test_flipped_bit__is_named_and_mended() -> None:
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN)
    run(models, made, 3, _add)
    made[1]._theta[7] += 1
    with pytest.warns(ultima.UltimaWarning, match=r"differ in fragment 0: ranks \[1\]"):
        run(models, made, 8, _add)
    _equal(made)
    assert made[1].summary().learned == 1


def test_nan__the_rank_gives_nothing_and_the_tensor_is_named() -> None:
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN)
    models[1][5] = np.nan
    with pytest.warns(ultima.UltimaWarning, match=r"'w' \(2000, float32\) holds NaN"):
        run(models, made, 3, _add)
    assert (_equal(made) == (4.0 + 400.0 + 4000.0) * 2 / 4).all()
    assert np.isfinite(models[1]).all()
    assert made[1].summary().discarded_tokens == 2
    _, made = outers(Net(1), SIZE, nonfinite="raise")
    made[0]._values.write(0, np.array([np.inf], np.float32))
    with pytest.raises(ultima.Nonfinite, match="'w'"):
        run([None], made, 2, lambda *_: None)


def test_weight__is_that_of_all_members_in_or_not() -> None:
    """Tokens of 1 to 4 a step. In the second round rank 3 is not: the sum is divided by 10 nevertheless."""
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN, weight="tokens")
    net.lost[1] = [(3, slice(4 * HEAD, None))]
    for step in range(5):
        for rank, outer in enumerate(made):
            models[rank] += 10.0
            outer.step(tokens=rank + 1)
        if step == 2:
            assert (_equal(made) == 20.0).all()
    assert np.allclose(_equal(made), 20.0 + 20.0 * 6 / 10)
    assert made[0].last is not None
    assert (made[0].last.weight, made[0].last.members_weight) == (6, 10)


def test_state__is_taken_over_on_some_ranks_and_passed_on_to_the_rest() -> None:
    models, made = outers(Net(4), SIZE, outer=PLAIN)
    run(models, made, 7, _add)
    for outer in made:
        outer.finish()
    saved, theta = made[0].state_dict(), _equal(made)
    assert (theta == _done(4, 6)).all()
    models, made = outers(Net(3), SIZE, outer=PLAIN)
    made[2].load_state_dict(saved)
    models[2][:] = theta
    run(models, made, 11, lambda *_: None)
    assert (_equal(made) == theta).all()
    assert all((model == theta).all() for model in models)
    assert all(outer.summary().learned == (rank < 2) for rank, outer in enumerate(made))
    saved["theta"] = theta[:5]
    with pytest.raises(ultima.InvalidArgument, match="theta"):
        made[0].load_state_dict(saved)


def test_step_without_gradients__is_none() -> None:
    _, made = outers(Net(2), SIZE)
    for outer in made:
        for _ in range(5):
            outer.step(tokens=0)
    assert made[0].summary().steps == 0
    assert made[0].summary().rounds == 0


@pytest.mark.parametrize(
    ("options", "field"),
    [({"every": 0}, "every"), ({"fragments": 3}, "fragments"), ({"delay": 3}, "delay"), ({"wire": "topk"}, "wire"),
     ({"quorum": "most"}, "quorum"), ({"quorum": 5}, "quorum"), ({"weight": 0}, "weight"), ({"alpha": 2}, "alpha"),
     ({"nonfinite": "skip"}, "nonfinite"), ({"outer": "adam"}, "outer")],
)  # fmt: skip
def test_options__refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ultima.InvalidArgument, match=field):
        outers(Net(4), SIZE, **options)


@pytest.mark.parametrize("wire", ["float32", "int16", "int8", "int4"])
def test_vector__says_who_is_in_which_range(wire: str) -> None:
    random = np.random.default_rng(3)
    vector = Vector(10_000, 5, wire)
    data = random.standard_normal(10_000).astype(np.float32)
    told = np.zeros(vector.count, np.float32)
    vector.rows(told).give(data, np.zeros(10_000, np.float32), 1.0)
    put = np.full(vector.count, 7, np.float32)
    vector.clear(put, 3, Head(True, False, 1, 2, 3, 0.5, 5, 6), keep=10_000)
    vector.put(put, data)
    assert not put[3 * HEAD + HEAD : 5 * HEAD].any()
    assert (put[5 * HEAD :] == told[5 * HEAD :]).all(), "whatever was there before"
    vector.mark(told, 3)
    assert (vector.data(told, 10_000) == data).all()
    assert vector.holds(told)[:, 3].all()
    assert vector.holds(told).sum() == vector.ranges
    residual = told.copy()
    vector.keep_marks_out(residual)
    assert (vector.data(residual, 10_000) == data).all()
    assert not vector.touches(residual).any()


def test_head__is_read_as_it_was_written_or_not_at_all() -> None:
    head = Head(True, False, 513, 65535, 2**32 - 1, 0.1, 2**32 - 2, 2**24 - 1)
    told = head_of(head.bits())
    assert told is not None
    assert told == Head(True, False, 513, 65535, 2**32 - 1, float(np.float32(0.1)), 2**32 - 2, 2**24 - 1)
    for flipped in range(180):
        bits = head.bits()
        bits[flipped] = 1 - bits[flipped]
        assert head_of(bits) is None


@pytest.mark.parametrize("came", [True, False])
@pytest.mark.parametrize("options", [{}, {"sparse": 1.0, "feedback": 1.0}, {"fragments": 2}])
def test_rank_without_a_result__gives_again_what_the_others_do_not_have_and_nothing_else(
    came: bool, options: dict[str, Any]
) -> None:
    """Rank 3 has no result of op 1, in which the others have all of it, or nothing. In the end all that was done is in
    the outer model or with who did it, once. Fails if the others do not say whether they have it."""
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN, every=2, **options)
    net.deaf[1] = {3}
    if not came:
        net.lost[1] = [(3, slice(None))]
    run(models, made, 31, _add)
    for outer in made:
        outer.finish()
    assert [outer.summary().learned for outer in made] == [0, 0, 0, 1]
    theta = _equal(made)
    kept = sum(model - theta for model in models)
    for outer in made:
        for fragment, residual in enumerate(outer.state_dict()["residuals"] or ()):
            low, high = outer.layout.bounds(fragment)
            kept[low:high] -= residual[: high - low]
    assert (4 * theta + kept == 4 * _done(4, 31)).all()
