# SPDX-License-Identifier: Apache-2.0
"""`ultima top`: what it counts between two pictures of a daemon."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from ultima.cli import main
from ultima.v1 import admin_pb2

runner = CliRunner()
asked: list[float] = []


def pictures(socket: str, seconds: float, job: str) -> Iterator[admin_pb2.AdminServiceWatchResponse]:
    """A job that does 40 ops between each two of them, while a lane is busy for a tenth of the time."""
    asked.append(seconds)
    for number in range(5):
        answer = admin_pb2.AdminServiceWatchResponse()
        row = answer.status.jobs.add(job="bert", world_size=2, ops_complete_count=1000 + 40 * number)
        row.options.SetInParent()
        lane = answer.status.engine.lanes.add()
        lane.counters["cpu_ns"], lane.counters["kernel_drops"] = round(1e8 * seconds * number), 7
        yield answer


@pytest.mark.parametrize(("interval", "seconds"), [("200ms", 0.2), ("10s", 0.5)])
def test_once__takes_two_pictures_for_its_rates(monkeypatch: pytest.MonkeyPatch, interval: str, seconds: float) -> None:
    monkeypatch.setattr("ultima.admin.operate.watch", pictures)
    result = runner.invoke(main.build(), ["top", "--once", "--interval", interval, "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert asked[-1] == seconds
    assert facts["jobs"][0]["ops_per_s"] == pytest.approx(40 / seconds)
    assert facts["lanes"] == [{"lane": 0, "cpu": pytest.approx(0.1), "kernel_drops": 7}]
