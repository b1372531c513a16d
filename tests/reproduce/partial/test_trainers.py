# SPDX-License-Identifier: Apache-2.0
"""Real trainers in the small: three daemons, three processes, one request after another. No verdict of a clock."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from tests.reproduce.eager import real as eager_real
from tests.reproduce.partial import learning
from tests.reproduce.partial.blocking import run
from tests.reproduce.partial.trainer import Plane
from tests.reproduce.partial.trainers import Trainers, TrainersError, trainers
from tests.reproduce.partial.workload import Values
from tests.reproduce.rna import real as rna_real

TINY = {"size": 8, "batch": 16, "noise": 0.5, "rate": 0.1, "seed": 4, "base_s": 0.02, "extra_s": 0.02, "sync_every": 4}


@pytest.fixture(scope="module")
def gang() -> Iterator[Trainers]:
    with trainers(3, lead_s=3.0) as made:
        yield made


@pytest.mark.check
def test_skew__solo_takes_the_first_and_full_takes_all(gang: Trainers) -> None:
    """A quarter of a second between the ranks' calls, so that no machine is too slow to keep their order."""
    request = {"do": "skew", "iterations": 2, "step_s": 0.25, "period_s": 1.0, "elements": 16, "policy_seed": 1}
    full = gang.ask({**request, "policy": "full"}, 60)
    assert eager_real.active_of(full) == 3
    solo = gang.ask({**request, "policy": "solo"}, 60)
    assert eager_real.active_of(solo) == 1 and eager_real.initiators_of(solo) == [0, 0]
    assert [receipt["op_seq"] for receipt in solo[2]["receipts"]] == [0, 1], "late calls start no op of their own"


def test_train__full_learns_what_the_replay_learns(gang: Trainers) -> None:
    """The same data, the same ranks: what real daemons average is what the model in virtual time averages."""

    class Same:
        rate = float(TINY["rate"])

        def __init__(self) -> None:
            self._planes = [Plane(TINY, rank) for rank in range(3)]

        def start(self) -> Values:
            return np.zeros(TINY["size"])

        def gradient(self, flat: Values, rank: int, step: int) -> Values:
            return self._planes[rank].gradient(flat)

        def loss(self, flat: Values) -> float:
            return Plane.excess(TINY, flat)

    answers = gang.ask({"do": "train", "policy": "full", "steps": 6, **TINY}, 60)
    expected = learning.eager(Same(), run(np.ones((6, 3)), "full")).replicas[0]
    for one in answers:
        assert np.allclose(one["model"], expected, atol=1e-4)
    assert Plane.excess(TINY, expected) < Plane.excess(TINY, np.zeros(TINY["size"]))


@pytest.mark.check
def test_rna__rounds_hold_what_was_given(gang: Trainers) -> None:
    request = {"do": "rna", "policy": "probe", "base_s": 0.05, "extra_s": 0.05, "seconds": 2, "seed": 1, "elements": 16}
    found = rna_real.found(gang.ask(request, 60))
    assert found.rounds > 3 and 1 <= found.contributors <= 3 and found.computed >= found.rounds


def test_trainers__a_request_that_fails_names_the_rank_and_its_last_words() -> None:
    with trainers(2) as made:
        pids = [rank.pid for rank in made._ranks]
        with pytest.raises(TrainersError, match=r"rank . ended") as caught:
            made.ask({"do": "skew", "policy": "fastest", "policy_seed": 1, "iterations": 1}, 60)
        assert "policy is 'fastest'" in str(caught.value)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
