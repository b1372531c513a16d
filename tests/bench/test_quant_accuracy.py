# SPDX-License-Identifier: Apache-2.0
"""The study of what few bits cost in accuracy: its averages are as near as a job's, and its trainings alike."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.bench.quant_accuracy import WAYS, WORLD, averaged, main, train
from tests.quantised import drawn
from ultima.demo import data

SIZE = 4000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As `main` has it: threads that wait for one another take minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("way", "most"), [("float32", 1e-13), ("int16", 4e-9), ("int8", 4e-4), ("int4", 8e-2)])
def test_averaged__is_near_the_mean_as_its_form_allows(way: str, most: float) -> None:
    given = [drawn(rank, SIZE) for rank in range(WORLD)]
    exact = np.mean(given, axis=0, dtype=np.float64)
    left = [np.zeros(SIZE, np.float32) for _ in given]
    error = np.sum((averaged(given, WAYS[way], 7, left) - exact) ** 2) / np.sum(exact**2)
    assert error <= most and (way == "float32" or error > most / 100)
    assert not any(each.any() for each in left), "no feedback"


def test_averaged__feedback_sends_later_what_rounding_took() -> None:
    way = WAYS["int4, feedback, answer int8"]
    given = [drawn(rank, SIZE) for rank in range(WORLD)]
    left = [np.zeros(SIZE, np.float32) for _ in given]
    total = np.sum([averaged(given, way, step, left) for step in range(16)], axis=0, dtype=np.float64)
    lacking = np.mean(left, axis=0, dtype=np.float64)
    exact = 16 * np.mean(given, axis=0, dtype=np.float64)
    with_it, without = (np.sum((each - exact) ** 2) / np.sum(exact**2) for each in (total + lacking, total))
    assert with_it < without < 5e-4, "one average alone is 1e-2 off"


def test_train__the_same_seed_is_the_same_training() -> None:
    images = data.load("digits")
    first, again, few = (train(WAYS[way], 1, images, 3) for way in ("float32", "float32", "int16"))
    assert first == again and abs(few - first) < 0.05 and 0 < first < 1


def test_main__tells_each_way_beside_float32(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--data digits --seed 1 --steps 2 --way float32 --way int8".split()
    monkeypatch.setattr("sys.argv", ["quant_accuracy", *words])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["seed 1, float32", "seed 1, int8", "float32", "int8"]
    assert lines[2].endswith("+0.00 points to float32")
