# SPDX-License-Identifier: Apache-2.0
"""The flight recorder through real daemons: events, history, explain by time, and dumps that other tools read."""

import json
import pickle
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.client.cli import golden
from tests.client.cli.conftest import published  # noqa: F401
from tests.e2e.elastic import enter, enter_all, whole_soon
from tests.e2e.hosts import Hosts, everywhere, new_job_name, ranks, running
from ultima.cli import main

runner = CliRunner()
STEPS = 12


def run_ops(jobs: list[Any], count: int = STEPS, size: int = 3000) -> None:
    for _ in range(count):
        everywhere(jobs, lambda _, job: job.allreduce(np.ones(size, np.float32)))


def said(host: Any, *arguments: str, status: int = 0) -> str:
    result = runner.invoke(main.build(), [*arguments, "--socket", str(host.socket)])
    assert result.exit_code == status, result.output
    return result.output if status == 0 else result.stderr


def told(host: Any, *arguments: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(said(host, *arguments, "--json"))
    assert facts["schema"] == 2
    return facts


def keys(value: Any) -> Any:
    """The shape of what --json prints: every key, and of a list the first item."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else type(value).__name__


def test_events_and_history__of_a_job(four: Hosts) -> None:
    name = new_job_name()
    with ranks(four[:2], job=name) as jobs:
        run_ops(jobs)
    events = told(four[0], "events", "--job", name)
    golden.check("events", keys(events))
    kinds = [event["kind"] for event in events["events"]]
    assert kinds[0] == "job_begins" and "host_up" in kinds and "rank_joined" in kinds
    text = said(four[0], "events", "--since", "1h")
    assert name in text and max(map(len, text.splitlines())) <= 80
    history = told(four[0], "history", "--job", name)
    golden.check("history", keys(history))
    assert sum(minute["ops_complete_count"] for minute in history["minutes"]) == STEPS
    assert sum(minute["bucket_bytes"] for minute in history["minutes"]) == STEPS * 12000
    assert all(0 < minute["op_p50_s"] <= minute["op_p99_s"] <= minute["op_max_s"] for minute in history["minutes"])
    assert all(len(line) <= 80 for line in said(four[0], "history", "--job", name).splitlines())


@pytest.mark.check
def test_history__how_the_views_of_a_job_changed(tmp_path: Path) -> None:
    """Who came, who left and who was killed; after the daemon was killed, too."""
    name = new_job_name()
    with running(4) as hosts:
        hosts[0].stop()
        hosts[0].environment["ULTIMAD_STATE_DIR"] = str(tmp_path)
        hosts[0].launch()
        hosts[0].wait_until_ready()
        jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[3], name, most=3)
        whole_soon(jobs)
        jobs[2] = enter(hosts[2], hosts[3], name, most=3)
        whole_soon(jobs)
        ranks_of = {number: job.rank for number, job in jobs.items()}
        jobs.pop(1).leave()
        whole_soon(jobs)
        hosts[2].kill()
        jobs.pop(2).close()
        whole_soon(jobs)
        views = told(hosts[0], "history", "--job", name)["views"]
        text = said(hosts[0], "history", "--job", name)
        time.sleep(6)  # summaries and events go to disk every four seconds
        hosts[0].kill()
        hosts[0].launch()
        hosts[0].wait_until_ready()
        assert told(hosts[0], "history", "--job", name)["views"][: len(views)] == views
        after = datetime.fromtimestamp(views[-1]["at_ns"] / 1e9 + 1).strftime("%Y-%m-%d %H:%M:%S")
        later = told(hosts[0], "history", "--job", name, "--since", after)["views"]
        assert all(each["at_ns"] > views[-1]["at_ns"] for each in later)
        for job in jobs.values():
            job.close()
    news = [each for each in views if each["came"] or each["left"] or each["gone"]]
    found = [(each["came"], each["left"], each["gone"], each["hosts"]) for each in news]
    assert found == [([ranks_of[2]], [], [], 3), ([], [ranks_of[1]], [], 2), ([], [], [ranks_of[2]], 1)]
    assert [each["number"] for each in views] == [*range(1, len(views) + 1)] and views[0]["why"] == "the job began"
    assert all(each["seats"] == 3 and each["job"] == name for each in views)
    assert [each["at_ns"] for each in views] == sorted(each["at_ns"] for each in views)
    assert f"views of job {name}" in text and f"host {ranks_of[1]} leaves" in text


def test_explain__the_slowest_op_and_that_of_a_time(four: Hosts) -> None:
    name = new_job_name()
    with ranks(four[:2], job=name) as jobs:
        run_ops(jobs)
        slowest = told(four[0], "explain", "--slowest", "--job", name)["receipt"]
        text = said(four[0], "explain", "--slowest", "--job", name)
        assert f"Op {slowest['op_seq']} ended at " in text and "Nobody is to blame." in text
        now = time.strftime("%H:%M")
        at_now = told(four[0], "explain", "--at", now, "--job", name)
        assert at_now["job"] == name
        assert "was under way" in said(four[0], "explain", "--at", "3h", "--job", name, status=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("events", "--job", "nobody"),
        ("events", "--since", "noon"),
        ("events", "--since", "1h", "--until", "2h"),
        ("history", "--job", "nobody"),
        ("history", "--until", "2199-01-01"),
        ("explain", "--slowest", "--job", "nobody"),
        ("explain", "--at", "25:00"),
        ("explain", "--at", "03:12", "--slowest"),
        ("dump", "/proc/nowhere"),
        ("dump", "/tmp", "--format", "pdf"),
        ("dump", "/tmp", "--job", "nobody"),
    ],
)
def test_verbs__a_wrong_job_time_path_or_format_is_one_sentence(four: Hosts, arguments: tuple[str, ...]) -> None:
    if arguments == ("dump", "/proc/nowhere"):
        with ranks(four[:1]) as jobs:
            run_ops(jobs, 1)
    assert said(four[0], *arguments, status=2).count("\n") == 1


def test_dump__all_hosts_in_all_formats(four: Hosts, tmp_path: Path) -> None:
    name = new_job_name()
    with ranks([four[0], four[1], four[1]], job=name) as jobs:
        run_ops(jobs)
        facts = told(four[0], "dump", str(tmp_path), "--all-hosts", "--job", name)
    golden.check("dump", keys(facts))
    assert facts["ops"] == 2 * STEPS and facts["unreached"] == []
    record = pickle.loads((tmp_path / "ultima_rank_2").read_bytes())
    assert record["pg_config"]["0"]["ranks"] == "[0, 1, 2]" and len(record["entries"]) == STEPS
    entry = record["entries"][3]
    assert entry["profiling_name"] == "gloo:all_reduce" and entry["input_sizes"] == [[3000]]
    assert entry["collective_seq_id"] == 4 and entry["ultima"]["status"] == "COMPLETE"
    trace = json.loads((tmp_path / "ultima.trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1}
    stretches = [event for event in trace if event["ph"] == "X" and event["tid"] < 10_000]
    assert len(stretches) == 2 * STEPS and all(event["dur"] > 0 for event in stretches)
    by_op: dict[int, list[Any]] = {}
    for event in stretches:
        by_op.setdefault(event["args"]["op_seq"], []).append(event)
    for op_seq, (here, there) in by_op.items():
        apart = max(here["ts"], there["ts"]) - min(here["ts"] + here["dur"], there["ts"] + there["dur"])
        assert apart < 1e6, f"op {op_seq} was at the same time on both hosts, by aligned clocks"
    whole = json.loads((tmp_path / "ultima.json").read_text())
    golden.check("dump_file", keys(whole))
    assert [life["host"] for life in whole["lives"]] == [0, 1]
    assert {op["dtype"] for op in whole["lives"][0]["ops"]} == {"float32"}


@pytest.mark.check
def test_dump__torch_reads_it(four: Hosts, tmp_path: Path) -> None:
    with ranks(four[:2]) as jobs:
        run_ops(jobs)
        everywhere(jobs, lambda _, job: job.barrier())
        said(four[0], "dump", str(tmp_path), "--all-hosts", "--format", "fr")
        said(four[0], "dump", str(tmp_path / "one"), "--format", "fr")
    command = [str(Path(sys.executable).parent / "torchfrtrace"), "--prefix", "ultima_rank_"]
    output = ["-o", str(tmp_path / "db")]
    whole = subprocess.run([*command, *output, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert whole.returncode == 0, whole.stderr
    _, database = pickle.loads((tmp_path / "db").read_bytes())
    assert len(database.collectives) == STEPS + 1
    assert all(collective.pass_check for collective in database.collectives), whole.stderr
    alone = subprocess.run([*command, str(tmp_path / "one")], capture_output=True, text=True, timeout=100)
    assert alone.returncode != 0 and "Missing dump files" in alone.stderr
    some = [*command, str(tmp_path / "one"), "--allow-incomplete-ranks"]
    assert subprocess.run(some, capture_output=True, timeout=100).returncode == 0


@pytest.mark.check
def test_history__survives_kill_9(tmp_path: Path) -> None:
    """Ten seconds after an op has ended, no way of dying takes it back."""
    with running(1, ULTIMAD_STATE_DIR=str(tmp_path)) as hosts:
        name = new_job_name()
        with ranks(hosts, job=name) as jobs:
            run_ops(jobs)
            time.sleep(10)
            hosts[0].kill()
        hosts[0].launch()
        hosts[0].wait_until_ready()
        minutes = told(hosts[0], "history", "--job", name)["minutes"]
        assert sum(minute["ops_complete_count"] for minute in minutes) == STEPS
        kinds = [event["kind"] for event in told(hosts[0], "events")["events"]]
        assert kinds.count("daemon_started") == 2 and "job_begins" in kinds
        assert told(hosts[0], "explain", "--slowest", "--job", name)["receipt"]["status"] == "COMPLETE"
