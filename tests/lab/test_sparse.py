# SPDX-License-Identifier: Apache-2.0
"""Containers between real network stacks that lose packets: whole, and the same sums everywhere, or the test fails.

It can fail: an exchange over a bounded mode would come with holes, and a container with one does not decode.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.cluster import Cluster
from tests.lab.lab import Lab
from tests.lab.sparse_rank import STEPS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(180)]


@pytest.mark.parametrize("loss", [1, 5])
def test_exchange__with_loss(loss: int, tmp_path: Path) -> None:
    with Lab(3, 200, loss, unit="packet") as lab, Cluster(lab) as cluster:
        ranks = []
        for rank in range(3):
            with (tmp_path / f"{rank}.out").open("wb") as out:
                command = [sys.executable, "-m", "tests.lab.sparse_rank", str(tmp_path / f"{rank}.json")]
                ranks.append(lab.host(rank).popen(command, cluster.environment(rank), cwd=ROOT, stdout=out,
                                                  stderr=subprocess.STDOUT))  # fmt: skip
        limit = time.monotonic() + 120
        for number, rank in enumerate(ranks):
            status = rank.wait(max(0.1, limit - time.monotonic()))
            assert status == 0, f"rank {number}: {(tmp_path / f'{number}.out').read_text()}"
        events, taken = lab.dropped()
    assert events > 0 and taken > 0, "nothing was lost: this run says nothing"
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [len(steps) for steps in told] == [STEPS] * 3
    for steps in zip(*told, strict=True):
        assert all(one["same"] for one in steps) and len({one["digest"] for one in steps}) == 1
