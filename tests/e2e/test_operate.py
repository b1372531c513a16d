# SPDX-License-Identifier: Apache-2.0
"""The verbs of whoever runs a daemon, through real daemons: jobs, peers, top, options, log level, waiting, reports."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ultima
from tests.client.cli import golden
from tests.client.cli.conftest import published  # noqa: F401
from tests.e2e.hosts import Hosts, everywhere, new_job_name, ranks, running
from tests.e2e.test_past import keys, run_ops, runner, said, told
from ultima.admin.operate import watch
from ultima.cli import main, rows, top
from ultima.v1 import admin_pb2


def test_jobs_peers_and_top__of_a_job_that_runs(four: Hosts) -> None:
    name = new_job_name() + "-with-a-name-that-is-longer-than-its-column"
    with ranks(four[:2], job=name) as jobs:
        run_ops(jobs)
        for verb in ("jobs", "peers"):
            assert all(len(line) <= 80 for line in said(four[0], verb).splitlines())
        facts = {verb[0]: told(four[0], *verb) for verb in (("jobs",), ("peers",), ("top", "--once"))}
    for verb, found in facts.items():
        golden.check(verb, keys(found))
    (job,) = [job for job in facts["jobs"]["jobs"] if job["job"] == name]
    assert (job["state"], job["world_size"], job["hosts_up"], job["ops"]["complete"]) == ("running", 2, 2, 12)
    peer = next(peer for peer in facts["peers"]["peers"] if peer["port"] == four[1].port)
    assert peer["state"] == "up" and name in peer["jobs"] and peer["sent_bytes"] > 12 * 6000
    assert {lane["lane"] for lane in facts["top"]["lanes"]} == {0, 1}


def test_status_and_doctor__name_the_rank_for_which_the_others_wait(four: Hosts) -> None:
    """All ops are whole, so nobody is to blame for any."""
    name = new_job_name()

    def one(rank: int, job: ultima.Job) -> None:
        for _ in range(8):
            time.sleep(0.2 if rank == 2 else 0)
            assert job.allreduce(np.ones(1000, np.float32), deadline=20.0).complete

    with ranks(four[:3], job=name) as jobs:
        assert everywhere(jobs, one) == [None] * 3
        (early,) = told(four[0], "status", "--job", name)["jobs"]
        (own,) = told(four[2], "status", "--job", name)["jobs"]
        text = " ".join(said(four[0], "status", "--job", name).split())
        asked = ["doctor", "--json", "--socket", str(four[0].socket)]
        checks = json.loads(runner.invoke(main.build(), asked).output)["checks"]
    assert (early["straggler_rank"], early["late_host"]) == (2, 2)
    assert 0.15 < early["late_s"] <= early["late_of_s"]
    assert own["late_host"] == own["straggler_rank"] == -1, "there nothing shows"
    assert f":{four[2].port} (rank 2) calls an op" in text
    (found,) = [each for each in checks if each["subject"] == f"job {name}"]
    assert found["name"] == "slow rank" and f":{four[2].port}" in found["finding"] and found["remedy"]


def test_watch__goes_on_and_tells_each_event_once(four: Hosts) -> None:
    name = new_job_name()
    stream = watch(str(four[0].socket), 0.2)
    first = next(stream)
    with ranks(four[:2], job=name):
        seen: list[admin_pb2.HostEvent] = []
        until = time.monotonic() + 20
        while not any(event.kind == "job_begins" and event.job == name for event in seen):
            assert time.monotonic() < until
            answer = next(stream)
            seen.extend(answer.events)
        assert name in {job.job for job in answer.status.jobs} and len(first.events) <= 20
    mine = [(event.at_ns, event.kind) for event in seen if event.job == name]
    assert len(mine) == len(set(mine))
    stream.close()  # type: ignore[attr-defined]


def test_top__rates_are_since_the_picture_before() -> None:
    def answer(ops: int, cpu_ns: int) -> admin_pb2.GetStatusResponse:
        status = admin_pb2.GetStatusResponse(version="1", pid=2)
        status.engine.lanes.add().counters.update({"cpu_ns": cpu_ns, "kernel_drops": 3})
        status.jobs.add(job="j", ops_complete_count=ops, ops_partial_count=1)
        return status

    first = top.picture(answer(10, 10**9), None, 2.0)
    assert first["jobs"][0]["ops_per_s"] == 0 and first["lanes"] == [{"lane": 0, "cpu": 0, "kernel_drops": 3}]
    second = top.picture(answer(30, 2 * 10**9), answer(10, 10**9), 2.0)
    assert second["jobs"][0]["ops_per_s"] == 10 and second["lanes"][0]["cpu"] == 0.5
    assert top.picture(answer(3, 10**9), answer(30, 10**9), 2.0)["jobs"][0]["ops_per_s"] == 0, "a job of the same name"


def test_rows__a_peer_of_several_jobs_is_one_row_with_its_worst_state() -> None:
    status = admin_pb2.GetStatusResponse()
    for number, state in enumerate(("HOST_STATE_UP", "HOST_STATE_ABSENT")):
        job = status.jobs.add(job=f"j{number}", host_index=0)
        job.hosts.add().host.index = 0
        row = job.hosts.add(state=state, srtt_us=100 * (number + 1), lost_bytes=7)
        row.host.index, row.host.address, row.host.grpc_port = 1, "10.0.0.2", 29520
    (peer,) = rows.peer_facts(status.jobs)
    assert (peer["state"], peer["jobs"], peer["srtt_us"], peer["lost_bytes"]) == ("gone", ["j0", "j1"], 200, 14)
    assert rows.job_facts(status.jobs[0])["state"] == "forming", "options are in force from the start of a job on"


def test_config__says_where_each_value_comes_from(four: Hosts) -> None:
    facts = told(four[0], "config", "show")
    assert facts["config"]["engine.lanes"] == {"value": 2, "origin": "ULTIMAD_ENGINE_LANES"}
    assert facts["config"]["port"] == {"value": four[0].port, "origin": "--port"}
    assert facts["config"]["limits.jobs"]["origin"] == "default"
    text = said(four[0], "config", "show", "--origin")
    assert f"port = {four[0].port}  # --port\n" in text and "# " not in said(four[0], "config", "show")
    golden.check("config", {key: sorted(value) for key, value in facts["config"].items()} | {"schema": 2})


def test_log_level__changes_and_changes_back(four: Hosts) -> None:
    facts = told(four[3], "log-level", "debug", "--for", "250ms")
    golden.check("log-level", keys(facts))
    assert (facts["level"], facts["before"]) == ("debug", "info")
    until = time.monotonic() + 20
    while told(four[3], "log-level", "debug", "--for", "300ms")["before"] != "info":
        assert time.monotonic() < until, "it did not go back"
        time.sleep(0.4)
    assert said(four[3], "log-level", "info").startswith("log level is info; it was ")
    assert "log level is now debug" in four[3].log()


def test_wait__until_a_daemon_is_there_and_healthy(four: Hosts, tmp_path: Path) -> None:
    facts = told(four[0], "wait")
    golden.check("wait", keys(facts))
    nobody = runner.invoke(main.build(), ["wait", "--healthy", "--timeout", "300ms", "--socket", str(tmp_path / "s")])
    assert nobody.exit_code == 3 and nobody.stderr.count("\n") == 1
    four[3].suspend()
    try:
        threading.Timer(0.5, lambda: four[3].signal(signal.SIGCONT)).start()
        assert "healthy after" in said(four[3], "wait", "--healthy")
    finally:
        four[3].signal(signal.SIGCONT)


def test_drain__ends_the_daemon() -> None:
    with running(1) as (host,):
        facts = told(host, "drain")
        assert facts["ended"] and facts["window_s"] == 10.0
        assert host.stop() == 0
        assert "drain uid=" in host.log() and "stopped" in host.log()
    golden.check("drain", keys(facts))


def test_bugreport__has_what_the_verbs_show(four: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultima.cli.bugreport.LOG", ("printf", "a line\nof the daemon\n"))
    file = tmp_path / "report.tar.gz"
    with ranks(four[:2]) as jobs:
        run_ops(jobs)
        facts = told(four[0], "bugreport", str(file))
    golden.check("bugreport", keys(facts))
    assert facts["failed"] == {} and file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        members = {Path(name).name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]  # fmt: skip
    assert sorted(members) == facts["parts"]
    assert json.loads(members["status.json"])["pid"] == four[0].pid
    assert len(json.loads(members["ops.json"])["lives"][0]["ops"]) == 12
    assert b"ultima_ops_total" in members["metrics.prom"]
    assert {check["name"] for check in json.loads(members["doctor.json"])["checks"]} >= {"group", "versions", "udp"}
    assert members["log.txt"] == b"a line\nof the daemon\n"
    assert b"lo:" in members["net_dev.txt"] and b"Udp: " in members["net_snmp.txt"] and int(members["rmem_max.txt"])
    for command in (("printf", "nothing\n"), ("/no/such/journalctl",)):
        monkeypatch.setattr("ultima.cli.bugreport.LOG", command)
        facts = told(four[0], "bugreport", str(tmp_path / f"{len(command)}.tar.gz"))
        assert "log.txt" in facts["failed"] and "log.txt" not in facts["parts"], "told, and no reason to have no report"


@pytest.mark.parametrize(
    "arguments",
    [
        ("peers", "--job", "nobody"),
        ("top", "--once", "--job", "nobody"),
        ("top", "--interval", "5ms"),
        ("top", "--interval", "soon"),
        ("log-level", "loud"),
        ("log-level", "debug", "--for", "never"),
        ("config", "edit"),
        ("wait", "--healthy", "--timeout", "0"),
        ("bugreport", "/tmp/report.zip"),
        ("bugreport", "/nowhere/report.tar.gz"),
        ("metrics", "read"),
        ("metrics", "write", "/tmp/metrics.txt"),
        ("metrics", "write", "/nowhere/metrics.prom"),
    ],
)
def test_verbs__asked_wrongly_is_one_sentence(four: Hosts, arguments: tuple[str, ...]) -> None:
    assert said(four[0], *arguments, status=2).count("\n") == 1


def test_metrics__printed_and_written_at_once(four: Hosts, tmp_path: Path) -> None:
    file = tmp_path / "ultima.prom"
    file.write_text("old")
    facts = told(four[0], "metrics", "write", str(file))
    golden.check("metrics", {"schema": facts["schema"], "metrics": keys(facts["metrics"])})
    assert "ultima_build_info{" in file.read_text() and list(tmp_path.iterdir()) == [file]
    assert "ultima_healthy 1.0" in said(four[0], "metrics")


def test_completion__of_verbs_and_options_in_each_shell() -> None:
    ultima = str(Path(sys.executable).parent / "ultima")
    asked = {
        "bash": {"COMP_WORDS": "ultima log", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "ultima log"},
        "fish": {"_TYPER_COMPLETE_ARGS": "ultima log", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    for shell, variables in asked.items():
        script = runner.invoke(main.build(), ["completion", shell])
        assert script.exit_code == 0 and f"complete_{shell}" in script.output
        environment = os.environ | variables | {"_ULTIMA_COMPLETE": f"complete_{shell}"}
        done = subprocess.run(ultima, env=environment, capture_output=True, text=True, timeout=60)
        assert "log-level" in done.stdout and "history" not in done.stdout, shell
        further = {name: "ultima status --al" for name in variables if name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")}
        environment |= further | {"COMP_CWORD": "2"}
        done = subprocess.run(ultima, env=environment, capture_output=True, text=True, timeout=60)
        assert "--all" in done.stdout and "--job" not in done.stdout, shell
    assert runner.invoke(main.build(), ["completion", "tcsh"]).exit_code == 2
    assert json.loads(runner.invoke(main.build(), ["completion", "bash", "--json"]).output)["schema"] == 2


def test_jobs__one_that_forms_says_whom_it_waits_for(four: Hosts) -> None:
    name = new_job_name()

    def come(rank: int) -> None:
        ultima.connect(name, rank, 2, four[0].socket, four[0].rendezvous, timeout=30).close()

    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(come, 0)
        until = time.monotonic() + 30
        while True:
            found = [job for job in told(four[0], "jobs")["jobs"] if job["job"] == name]
            if found and found[0]["waiting_for"]:
                break
            assert time.monotonic() < until and not waiting.done()
            time.sleep(0.2)
        come(1)
        waiting.result()
    assert (found[0]["state"], found[0]["world_size"]) == ("forming", 2) and "rank 1" in found[0]["waiting_for"]
