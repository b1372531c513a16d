# SPDX-License-Identifier: Apache-2.0
"""`Job.sync_model`: all ranks hold the average afterwards, and know how far apart they were."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ultima import InvalidArgument, Job, SyncResult
from ultima.api import sync
from ultima.testing import FakeDaemon


def synced(tensors: list[Any], **options: Any) -> list[SyncResult]:
    """Each rank syncs its own."""
    with FakeDaemon(world_size=len(tensors)) as daemon:
        jobs = [daemon.connect(rank, **options) for rank in range(len(tensors))]
        with ThreadPoolExecutor(len(jobs)) as pool:
            results = list(pool.map(lambda job, given: job.sync_model(given, deadline="10s"), jobs, tensors))
        for job in jobs:
            job.close()
    return results


def test_sync__averages_and_measures() -> None:
    models = [
        {"w": np.full((3, 4), rank, np.float32), "steps": np.array([5, 5], np.int64), "b": np.arange(5.0)}
        for rank in (0, 1, 5)
    ]
    models[1]["b"][3] += 0.75
    results = synced(list(models))
    for model in models:
        np.testing.assert_array_equal(model["w"], np.full((3, 4), 2, np.float32))
        np.testing.assert_array_equal(model["steps"], [5, 5])
        np.testing.assert_array_equal(model["b"], [0, 1, 2, 3.25, 4])
    assert [result.divergence for result in results] == [3.0] * 3, "rank 2 was 3 above the average, and all know it"
    assert {(result.tensors, result.elements) for result in results} == {(3, 19)}


def test_sync__in_pieces_that_cut_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "PIECE_BYTES_MAX", 64)
    models = [[np.arange(size, dtype=np.float32) + rank for size in (7, 40, 1, 0, 16)] for rank in (0, 2)]
    results = synced(list(models))
    for model in models:
        for array in model:
            np.testing.assert_array_equal(array, np.arange(array.size, dtype=np.float32) + 1)
    assert [result.divergence for result in results] == [1.0, 1.0]


def test_sync__equal_replicas_have_no_divergence_even_with_nan() -> None:
    models = [[np.array([1.5, np.nan, np.inf], np.float32)] for _ in range(2)]
    assert [result.divergence for result in synced(list(models))] == [0.0, 0.0]
    models[0][0][1] = 2.0
    assert [result.divergence for result in synced(list(models))] == [np.inf, np.inf]


def test_sync__torch_module() -> None:
    torch = pytest.importorskip("torch")

    def model(value: float, kind: Any) -> Any:
        layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(kind)
        for tensor in [*layer.parameters(), *layer.buffers()]:
            tensor.data.fill_(value)
        return layer

    for kind in (torch.float32, torch.bfloat16):
        models = [model(value, kind) for value in (1, 3)]
        results = synced(models)
        for layer in models:
            for tensor in [*layer.parameters(), *layer.buffers()]:
                assert bool((tensor == 2).all()), f"{tensor}"
        assert [result.divergence for result in results] == [1.0, 1.0]


@pytest.mark.parametrize("tensors", [np.zeros(3, np.float32), 5, None])
def test_sync__what_is_no_collection_is_refused(tensors: Any) -> None:
    with FakeDaemon(world_size=1) as daemon, daemon.connect(0) as job:
        assert isinstance(job, Job)
        with pytest.raises(InvalidArgument, match="tensors"):
            job.sync_model(tensors)
        with pytest.raises(InvalidArgument, match=r"tensors\[1\]"):
            job.sync_model([np.zeros(3, np.float32), np.zeros(3, np.complex64)])
