# SPDX-License-Identifier: Apache-2.0
"""`ultima status --all` and `top --all`: what they make of the answer of all hosts."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.client.cli import golden
from ultima.cli import main
from ultima.v1 import admin_pb2, types_pb2

runner = CliRunner()


def an_answer(ops: int = 100) -> admin_pb2.GetClusterResponse:
    """Two hosts of a job, of which the second lacks the third, which says nothing."""
    answer = admin_pb2.GetClusterResponse()
    for index, node in enumerate(("n0", "n1", "n2")):
        row = answer.hosts.add(address=f"10.0.0.{index + 1}", grpc_port=29520, node=node, here=not index)
        if node == "n2":
            row.unreached = "no answer within 2.0 s"
            continue
        row.version, row.uptime_ms, row.took_us = "0.1.0", 60_000, 1500 * index
        job = row.jobs.add(job="bert", world_size=3, host_index=index, ops_complete_count=ops - index)
        job.ops_partial_count, job.op_p50_us, job.op_p99_us = index, 1500, 2500
        job.options.SetInParent()
        for other in range(3):
            gone = node == "n1" and other == 2
            host = job.hosts.add(state=types_pb2.HOST_STATE_ABSENT if gone else types_pb2.HOST_STATE_UP)
            host.host.index, host.host.node, host.host.address = other, f"n{other}", f"10.0.0.{other + 1}"
            host.host.ranks.append(other)
    return answer


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers two views, with 40 ops between them."""
    answers = [an_answer(), an_answer(140)]
    monkeypatch.setattr("ultima.admin.operate.get_cluster", lambda socket, job="": answers.pop(0))
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.usefixtures("daemon")
def test_status_all__names_the_host_that_does_not_answer_and_ends_with_1() -> None:
    result = runner.invoke(main.build(), ["status", "--all"])
    assert result.exit_code == 1
    rows = result.stdout.splitlines()
    assert rows[1].split() == ["n0", "here", "60", "s", "0.1.0"]
    assert rows[2].split() == ["n1", "1.5", "60", "s", "0.1.0"]
    assert "n2 did not answer: no answer within 2.0 s" in rows
    assert next(row for row in rows if row.startswith("  n1")).split() == [
        *("n1", "1", "100", "99.0%", "1.50", "2.50", "1")
    ]
    assert "  n1: n2 is not connected" in rows
    assert all(len(row) <= 80 for row in rows)


@pytest.mark.usefixtures("daemon")
def test_status_all__as_json() -> None:
    result = runner.invoke(main.build(), ["status", "--all", "--json"])
    facts: dict[str, Any] = json.loads(result.stdout)
    golden.check("status_all", facts)
    assert [host["name"] for host in facts["hosts"] if not host["answered"]] == ["n2"]


@pytest.mark.usefixtures("daemon")
def test_top_all__has_the_rate_of_each_host() -> None:
    result = runner.invoke(main.build(), ["top", "--all", "--once", "--json"])
    assert result.exit_code == 0, result.output
    rates = [job["ops_per_s"] for host in json.loads(result.stdout)["hosts"] for job in host["jobs"]]
    assert len(rates) == 2 and rates[0] == rates[1] > 0
