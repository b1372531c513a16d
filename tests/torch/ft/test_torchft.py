# SPDX-License-Identifier: Apache-2.0
"""torchft itself on Ultima: its own tests of process groups, and its Manager in `examples/torchft_ddp.py`.

make torchft        puts torchft 0.2.0 into build/torchft, and runs these
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
if importlib.util.find_spec("torchft") is None:  # see conftest.py
    pytest.skip("torchft is not installed: `make torchft` runs these", allow_module_level=True)

import torch  # noqa: E402
from parameterized import parameterized  # noqa: E402
from torchft import process_group_test as theirs  # noqa: E402
from torchft.coordination import LighthouseServer  # noqa: E402

from ultima import UltimaError  # noqa: E402
from ultima.demo.cluster import Cluster  # noqa: E402
from ultima.torch.ft import ProcessGroupUltima  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
OURS = "cannot take part|by its deadline|was closed|did not come"
ALL = theirs._ALL_COLLECTIVES


@pytest.fixture(scope="module", autouse=True)
def _daemon(cluster: Cluster) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ULTIMA_SOCKET", str(cluster.sockets[0]))
        yield


class TestSeveral(theirs.MultiPgBaseTest):
    """torchft's tests of several ranks. They list the words of Gloo and NCCL for a peer that is gone; ours are beside
    them."""

    __test__ = True
    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend: str) -> Any:
        return ProcessGroupUltima(timedelta(seconds=10))

    def assertRaisesRegex(self, kind: Any, pattern: str, *more: Any, **named: Any) -> Any:
        return super().assertRaisesRegex((kind, UltimaError), f"{pattern}|{OURS}", *more, **named)

    @parameterized.expand(ALL)
    def test_collective(self, collective: str) -> None:
        self._run_parallel(collective)

    @parameterized.expand(ALL)
    def test_collective_with_resiliency(self, collective: str) -> None:
        self._run_with_resiliency(collective)


def store() -> Any:
    return theirs.TCPStore(host_name="localhost", port=0, is_master=True, wait_for_workers=False)


def test_apis__of_one_rank() -> None:
    kept, group = store(), ProcessGroupUltima()
    group.configure(f"localhost:{kept.port}/prefix", "0", 0, 1)
    assert group.size() == 1
    theirs._test_pg(group, torch.tensor([2]))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 4), process_group=group)
    model(torch.rand(2, 3))
    group.shutdown()


def test_functional_collectives__of_a_registered_group() -> None:
    theirs.dummy_init_pg()
    kept, group = store(), ProcessGroupUltima().register("ultima_functional")
    group.configure(f"localhost:{kept.port}/prefix", "0", 0, 1)
    try:
        assert theirs._resolve_process_group(group.group_name) is group
        theirs._functional_collectives.all_reduce(torch.zeros(10), "sum", group).wait()
    finally:
        group.unregister()


def test_example__a_replica_is_killed_in_a_step_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    """It never computes a step of its own again: it heals from the other, and both end with the same weights."""
    house = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=3000, quorum_tick_ms=50, heartbeat_timeout_ms=1000
    )
    files = [(tmp_path / f"{replica}.txt").open("ab+") for replica in range(2)]

    def start(replica: int, *more: str) -> subprocess.Popen[bytes]:
        own = {"TORCHFT_LIGHTHOUSE": house.address(), "REPLICA": str(replica), "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **own, "ULTIMA_SOCKET": str(cluster.sockets[replica])}
        command = [sys.executable, "examples/torchft_ddp.py", "--steps", "1000", "--pause", "0.03", *more]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=files[replica], stderr=subprocess.DEVNULL)

    running = [start(0), start(1, "--die-at", "400")]
    try:
        assert running[1].wait(120) == -signal.SIGKILL
        running[1] = start(1)
        assert [each.wait(150) for each in running] == [0, 0]
    finally:
        for each in running:
            each.kill()
            each.wait()
        house.shutdown()
        for file in files:
            file.close()
    said = [(tmp_path / f"{replica}.txt").read_text() for replica in range(2)]
    ends = [re.findall(r"^weights (\S+) after 1000 steps$", text, re.MULTILINE) for text in said]
    assert len(ends[0]) == 1 and ends[0] == ends[1], ends
    together = [len(re.findall(r"^step \d+ of 2 ", text, re.MULTILINE)) for text in said]
    assert min(together) > 400, together
