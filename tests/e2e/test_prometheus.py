# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes real daemons: every expression of the Grafana board and of the alerts finds data."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.elastic import enter
from tests.e2e.hosts import Hosts, everywhere, free_port, new_job_name, ranks, running
from tests.prometheus import tool

DEPLOY = Path(__file__).resolve().parents[2] / "deploy/prometheus"
SECONDS = 60.0


def expressions() -> list[str]:
    """Of all panels, with the variables of the board filled in as Grafana does for "All"."""
    board = json.loads((DEPLOY / "ultima.grafana.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(found) > 15
    return [
        expr.replace("$instance", ".*").replace("$ultima_job", ".*").replace("$__rate_interval", "30s")
        for expr in found
    ]


def query(port: int, expression: str) -> list[Any]:
    where = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(where, timeout=20) as answer:
        facts = json.load(answer)
    assert facts["status"] == "success", facts
    result: list[Any] = facts["data"]["result"]
    return result


@pytest.mark.check
@pytest.mark.timeout(180)
def test_prometheus__scrapes_daemons_and_every_panel_has_data(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    with running(2) as hosts:
        for host, port in zip(hosts, ports[:2], strict=True):
            host.stop()
            host.environment["ULTIMAD_METRICS"] = f"127.0.0.1:{port}"
            host.launch()
        for host in hosts:
            host.wait_until_ready()
        targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports[:2])
        text = (DEPLOY / "ultima.prometheus.yml").read_text()
        text = text.replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s")
        text = text.replace("ultima.rules.yml", str(DEPLOY / "ultima.rules.yml"), 2).replace(
            '"127.0.0.1:29519"', targets
        )
        (tmp_path / "prometheus.yml").write_text(text)
        command = [
            tool("prometheus"),
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path}",
        ]
        command.append(f"--web.listen-address=127.0.0.1:{ports[2]}")
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
            try:
                missing = _scraped(hosts, ports[2])
            finally:
                server.terminate()
        assert missing == [], (tmp_path / "log").read_text()


@contextmanager
def state_moves(hosts: Hosts) -> Iterator[None]:
    """An elastic job on two hosts, in which one has handed its state to the other: its metrics stay as long."""
    name = new_job_name()
    jobs = {number: enter(host, hosts[0], name) for number, host in enumerate(hosts)}
    try:
        states = [{"w": np.full(1000, float(number))} for number in jobs]
        with ThreadPoolExecutor() as threads:
            taking = threads.submit(jobs[1].sync_state, states[1])
            until = time.monotonic() + SECONDS
            while not taking.done() and time.monotonic() < until:
                jobs[0].share(states[0], revision=1)
                time.sleep(0.02)
            taking.result(timeout=SECONDS)
        assert states[1]["w"][0] == 0.0
        yield
    finally:
        for job in jobs.values():
            job.close()


@contextmanager
def local_sgd(jobs: list[ultima.Job]) -> Iterator[list[ultima.Outer]]:
    """One part in local SGD for each rank."""
    outers = everywhere(jobs, lambda _, job: ultima.Outer(job, {"w": np.ones(1000, np.float32)}, 1))
    try:
        yield outers
    finally:
        everywhere(outers, lambda _, outer: outer.close())


def _scraped(hosts: Any, port: int) -> list[str]:
    """Runs ops and rounds until every expression has data; those that have none in the end."""
    until = time.monotonic() + SECONDS
    missing = expressions()
    with ranks(hosts) as jobs, state_moves(hosts), local_sgd(jobs) as outers:
        while missing and time.monotonic() < until:
            for _ in range(5):
                everywhere(jobs, lambda _, job: job.allreduce(np.ones(20000, np.float32)))
            everywhere(outers, lambda _, outer: outer.step())
            time.sleep(0.5)
            try:
                missing = [expression for expression in missing if not query(port, expression)]
            except OSError:
                continue
        if not missing:
            stepped = sum(float(row["value"][1]) for row in query(port, 'ultima_rounds_total{outcome="stepped"}'))
            assert 0 < stepped <= sum(outer.summary().rounds for outer in outers)
            assert {row["metric"]["instance"] for row in query(port, "ultima_healthy == 1")} != set()
            assert len(query(port, 'up{job="ultima"} == 1')) == 2
            assert query(port, "ALERTS") == [] or {a["metric"]["alertname"] for a in query(port, "ALERTS")} <= {
                "UltimaHistoryLost"
            }
    return missing
