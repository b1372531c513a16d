# SPDX-License-Identifier: Apache-2.0
"""The study of what few bits cost in accuracy: its averages are as near as a job's, and its trainings alike."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.bench.quant_accuracy import WAYS, WORLD, Trained, averaged, main, table, train, whole_s
from tests.bench.quant_tasks import manual, of_images, transformer
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
    task = of_images("lenet", data.load("digits"))
    first, again, few = (train(task, WAYS[way], 1, 3).judged for way in ("float32", "float32", "int16"))
    assert first == again and abs(few - first) < 5 and 0 < first < 100


def test_transformer__learns_what_follows() -> None:
    """The gradient of a rank is that of its own texts, and the judge's text is none of them."""
    task = transformer()
    torch.manual_seed(1)
    untrained = task.judge(task.model())
    short = train(task, WAYS["int8"], 1, 12).judged
    assert abs(untrained - np.log(manual()[1])) < 0.4 and short < untrained - 0.5
    model = task.model()
    shares = [float(task.share(model, 1, 9, step, rank).detach()) for step in (0, 1) for rank in (0, 1)]
    assert len(set(shares)) == 4


def test_table__says_how_much_worse_and_how_sure() -> None:
    def of(*judged: float) -> list[Trained]:
        return [Trained(each, 0.5, 2.0) for each in judged]

    found = {"lenet": {"float32": of(80, 82), "int8": of(79, 82)}, "transformer": {"float32": of(2), "int8": of(2.01)}}
    lines = table(found, {"lenet": "%", "transformer": "nats"})
    assert lines[3] == "| lenet | int8 | 79.00, 82.00 % | 80.50 | +0.50 +- 0.50 points |"
    assert lines[5] == "| transformer | int8 | 2.0100 nats | 2.0100 | +0.50 +- nan % of the loss |"
    assert whole_s(found, {"lenet": 10, "transformer": 20}) == 3 * (2 * (5 + 2) + 2 * (10 + 2))


def test_main__tells_each_task_and_way_beside_float32(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--data digits --quick --steps 2 --seed 1 --task lenet --task transformer --way float32 --way int8".split()
    monkeypatch.setattr("sys.argv", ["quant_accuracy", *words])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [
        f"{task}, seed 1, {way}" for task in ("lenet", "transformer") for way in ("float32", "int8")
    ]
    assert sum(line.startswith("| ") for line in lines) == 5 and "int8" in lines[-2]
    assert lines[-1].startswith("all of it (3 seeds; steps: lenet 1000, transformer 1000) takes about ")
