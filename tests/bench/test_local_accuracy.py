# SPDX-License-Identifier: Apache-2.0
"""The study of what local SGD costs: its few bits keep what rounding takes, and it tells what it says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.bench.local_accuracy import WAYS, main, to_ddp, train
from tests.bench.local_models import MODELS
from tests.client.local.net import Net
from ultima.demo import data


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As `main` has it: threads that wait for one another take minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_fed__what_rounding_takes_is_left_and_is_sent_with_the_next() -> None:
    """Over eight ops what arrived and what is left add up to what was given; without it an op is 4 % off."""
    net, job = Net(2, wire="int4"), Net(2, wire="int4").jobs()[0]
    job.net = net
    given, left = np.random.default_rng(5).standard_normal(3000).astype(np.float32), np.zeros(3000, np.float32)
    for _ in range(8):
        job.allreduce_async(given.copy(), feedback=left)
    came = [net.given[op][0] for op in range(8)]
    assert np.abs(sum(came) + left - 8 * given).max() < 1e-4
    assert np.abs(came[0] - given).max() > 0.05 and np.abs(left).max() > 0.01
    assert net.narrow == {(op, 0) for op in range(8)}, "they are not rounded again"


@pytest.mark.check
def test_train__of_fragments_with_delay_is_the_same_for_the_same_seed_and_learns() -> None:
    images = data.load("digits")
    way = next(way for way in WAYS if way.fragments == 4)
    first, again = (train(way, images, 3, 40, "transformer") for _ in range(2))
    assert first == again and first[0] > 0.2 and first[1] < 2.2, "chance is .1, and a loss of 2.3"


def test_models__have_their_sizes_and_ten_scores() -> None:
    sizes = {name: sum(each.numel() for each in make().parameters()) for name, make in MODELS.items()}
    assert sizes == {"lenet": 61_706, "cnn": 41_682, "transformer": 41_146}
    for make in MODELS.values():
        assert make()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.check
def test_main__tells_each_way_and_how_far_it_is_from_ddp(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--data digits --seeds 2 --steps 20 --model lenet --only D".split()
    monkeypatch.setattr("sys.argv", ["local_accuracy", *words])
    monkeypatch.setattr("tests.bench.local_accuracy.WAYS", WAYS[:2])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("lenet        DDP ") and " / " in lines[1] and "to DDP" not in lines[1]
    assert (
        lines[2].startswith("lenet        DiLoCo ") and "loss" in lines[2] and "to DDP" in lines[2] and "+-" in lines[2]
    )
    assert to_ddp([80.0, 82.0], [81.0, 85.0]) == ", to DDP -2.00 +- 1.00" and to_ddp([1.0], [2.0]) == ", to DDP -1.00"
