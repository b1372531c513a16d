# SPDX-License-Identifier: Apache-2.0
"""`ultima status` against a server that answers what the test says."""

import io
import json
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.client.cli import golden
from ultima.admin.calls import get_status
from ultima.base.errors import DaemonUnavailable, ProtocolError
from ultima.cli import main, status
from ultima.cli.common import in_units
from ultima.settings.options import policy_text
from ultima.v1 import admin_pb2, admin_pb2_grpc, partial_pb2, types_pb2

runner = CliRunner()


def an_answer() -> admin_pb2.GetStatusResponse:
    answer = admin_pb2.GetStatusResponse(
        version="0.1.0", incarnation=2**63 + 5, uptime_ms=7_300_000, pid=12, address="127.0.0.1", grpc_port=29520
    )
    answer.engine.gso = True
    answer.engine.simd = "avx2"
    for port in (29521, 29523):
        answer.engine.lanes.add(data_port=port, feedback_port=port + 1)
    answer.engine.counters["packets_sent"] = 2**40
    answer.limits["limits.jobs"] = 16
    job = answer.jobs.add(job="torch-0-1234", world_size=3, host_index=0, ops_complete_count=41, ops_partial_count=1)
    job.options.MergeFrom(types_pb2.JobOptions(algorithm="ALGORITHM_RING", t_b_ns=-1, t_c_ns=2_000_000))
    job.op_p50_us, job.op_p99_us, job.missing_bytes = 1500, 2750, 4096
    for index, ranks in enumerate(([0, 1], [2])):
        host = job.hosts.add(state=types_pb2.HOST_STATE_UP, srtt_us=40, sent_bytes=123456789)
        host.host.index, host.host.address, host.host.grpc_port = index, f"10.0.0.{index + 1}", 29520
        host.host.ranks.extend(ranks)
    return answer


class Servicer(admin_pb2_grpc.AdminServiceServicer):
    def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        if request.job == "slow":
            time.sleep(2)
        if request.job == "nowhere":
            context.abort(grpc.StatusCode.NOT_FOUND, "job = 'nowhere': not here")
        if request.job == "strange":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "never heard of it")
        answer = an_answer()
        if request.job:
            kept = [job for job in answer.jobs if job.job == request.job]
            del answer.jobs[:]
            answer.jobs.extend(kept)
        return answer


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = str(tmp_path / "ultimad.sock")
    server = grpc.server(futures.ThreadPoolExecutor(2))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(Servicer(), server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    monkeypatch.setenv("ULTIMA_SOCKET", f"unix://{path}")
    yield path
    server.stop(None).wait()


def test_status__json_has_every_field_in_its_own_type(socket: str) -> None:
    result = runner.invoke(main.build(), ["status", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    assert facts.pop("schema") == 2
    named = in_units(dict.fromkeys(field.name for field in admin_pb2.GetStatusResponse.DESCRIPTOR.fields))
    assert set(facts) == set(named) and facts["uptime_s"] == 7300
    assert facts["incarnation"] == "8000000000000005", "a number of that size is rounded by most readers of JSON"
    assert facts["engine"]["counters"] == {"packets_sent": 2**40}
    assert facts["engine"]["gro"] is False
    (job,) = facts["jobs"]
    assert job["ops_complete_count"] == 41
    assert {job["options"][name] for name in ("algorithm", "t_b", "t_c")} == {"ring", "off", "2ms"}, "as `ultima set`"
    assert job["op_p99_s"] == 0.00275
    assert [host["state"] for host in job["hosts"]] == ["up", "up"]
    assert job["hosts"][0]["host"]["ranks"] == [0, 1]


def test_status__of_one_job(socket: str) -> None:
    assert json.loads(runner.invoke(main.build(), ["status", "--json", "--job", "other"]).output)["jobs"] == []
    found = json.loads(runner.invoke(main.build(), ["status", "--json", "--job", "torch-0-1234"]).output)["jobs"]
    assert len(found) == 1


def test_status__table_for_people(socket: str) -> None:
    console = Console(width=400, record=True, file=io.StringIO())
    status.show(console, an_answer())
    text = console.export_text()
    assert "ultimad 0.1.0, pid 12, up 2 h" in text
    assert "gRPC 29520, data 29521 and 29523, feedback 29522 and 29524" in text
    assert "options of torch-0-1234: algorithm ring, " in text and "t_b off, t_c 2ms" in text
    for piece in ("torch-0-1234", "41", "1.50 ms", "2.75 ms", "4 KiB", "10.0.0.2:29520", "0-1", "118 MiB", "here"):
        assert piece in text, piece


def test_status__says_what_the_host_may_send_in_all() -> None:
    for rate, lines in ((0, []), (10_000_000, ["sends 80 Mbit/s at most, all jobs together"])):
        answer, console = an_answer(), Console(width=80, record=True, file=io.StringIO())
        answer.limits["engine.rate_bytes_per_s"] = rate
        status.show(console, answer)
        assert [line for line in console.export_text().splitlines() if "at most" in line] == lines


def test_status__says_how_peers_are_known() -> None:
    """As whom, until when, and what to see to; and that nobody is known, if so."""
    answer = an_answer()
    console = Console(width=80, record=True, file=io.StringIO())
    answer.insecure = True
    status.show(console, answer)
    assert "NOT authenticated" in " ".join(console.export_text().split())
    answer.insecure = False
    answer.security.MergeFrom(
        admin_pb2.Security(
            mode="certificates",
            cluster="lab",
            node="n1",
            certificate_not_after_s=1_900_000_000,
            warning="the certificate of node 'n1' expires on 2030-03-17 17:46:40 UTC: put a new one in its place",
        )
    )
    status.show(console, answer)
    text = console.export_text()
    assert "NOT authenticated" not in text
    assert "authenticated by certificates, certificate until 2030-03-17 17:46 UTC:\n  node n1 of lab\n" in text
    assert "WARNING: the certificate of node 'n1' expires on" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("partial", [False, True])
def test_status__is_readable_at_80_columns(partial: bool) -> None:
    """No line is longer, and no figure is lost."""
    answer = a_partial_job() if partial else an_answer()
    answer.jobs[0].job = "torch-4d2c0a-" + "x" * 40
    for index, host in enumerate(answer.jobs[0].hosts):
        host.host.address, host.sent_bytes = f"192.168.100.{200 + index}", 999 << 30
        host.received_bytes, host.lost_bytes, host.window_bytes = 888 << 20, 777 << 10, 666 << 10
    console = Console(width=80, record=True, file=io.StringIO())
    status.show(console, answer)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80, text
    assert "\u2026" not in text, "nothing is cut off"
    pieces = ["torch-4d2c0a-" + "x" * 40]
    pieces += ["100 %", "175"] if partial else ["41 complete, 1 partial", "999 GiB", "888 MiB", "777 KiB", "666 KiB"]
    for piece in pieces:
        assert piece in text, piece


def test_status__of_a_job_that_is_not_here_is_status_2(socket: str) -> None:
    result = runner.invoke(main.build(), ["status", "--job", "nowhere"])
    assert result.exit_code == 2
    assert result.stderr == "ultima: --job is 'nowhere'; allowed: a job on this host (job = 'nowhere': not here)\n"


def test_status__json_is_as_it_was(socket: str) -> None:
    result = runner.invoke(main.build(), ["status", "--json"])
    golden.check("status", json.loads(result.output))


def a_partial_job(**options: Any) -> admin_pb2.GetStatusResponse:
    answer = an_answer()
    del answer.jobs[:]
    job = answer.jobs.add(job="eager", world_size=3, next_op_seq=300, straggler_rank=2, controller_host=1)
    job.options.MergeFrom(types_pb2.JobOptions(algorithm="ALGORITHM_TAR", policy="POLICY_PROBE"))
    job.options.MergeFrom(types_pb2.JobOptions(**options))
    job.partial_ops, job.included_mean, job.waited_p50_us = 200, 2.125, 3450
    for rank, (fresh, stale, null, started, last) in enumerate(
        ((199, 1, 0, 150, 299), (190, 10, 0, 48, 299), (10, 15, 175, 2, 297))
    ):
        job.ranks.add(
            rank=rank,
            fresh_count=fresh,
            stale_count=stale,
            null_count=null,
            initiated_count=started,
            last_op_seq=last,
        )
    return answer


def told(answer: admin_pb2.GetStatusResponse) -> list[str]:
    console = Console(width=400, record=True, file=io.StringIO())
    status.show(console, answer)
    return console.export_text().splitlines()


def test_status__of_a_partial_job_says_who_is_in_its_ops_and_names_the_straggler() -> None:
    text = told(a_partial_job())
    assert (
        "policy of eager: probe of 2, tau 8, eta 4, controlled by host 1; in the last 200 ops 2.12 of 3 ranks, "
        "started 3.45 ms after this host was ready (median)" in text
    )
    assert (
        "straggler of eager: rank 2, in 12 % of the last 200 ops and in time in 5 %; "
        "the median rank in 100 % and 95 %" in text
    )
    rows = [line.split() for line in text if line.split()[:1] == ["eager"]]
    assert ["eager", "0", "100", "%", "199", "1", "0", "150", "299"] in rows
    assert ["eager", "2", "12", "%", "10", "15", "175", "2", "297"] in rows
    assert any(line.startswith("options of eager: ") and "policy probe, quorum auto" in line for line in text)


def test_status__of_a_partial_job_on_its_controller() -> None:
    answer = a_partial_job()
    assert not any("controller of" in line for line in told(answer)), "another host's daemon"
    probes = answer.jobs[0].probes
    probes.sent_count, probes.decided_count, probes.decision_p50_us = 410, 200, 2340
    start = "controller of eager: this host asked 410 ranks"
    rest = "and found the initiators of 200 ops, each within 2.34 ms of its turn (median)"
    assert f"{start} {rest}" in told(answer)
    probes.gone_count = 3
    assert f"{start}, 3 of them gone {rest}" in told(answer)


def test_status__of_a_partial_job_whose_policy_is_about_to_change() -> None:
    answer = a_partial_job(policy="POLICY_QUORUM", quorum=3, tau=2)
    answer.jobs[0].options_from_op_seq = 302
    start = "policy of eager: quorum of 3, tau 2, eta 4, from op 302 on; in the last"
    assert any(line.startswith(start) for line in told(answer))


def test_status__of_a_partial_job_whose_straggler_is_in_all_ops() -> None:
    answer = a_partial_job(policy="POLICY_FULL")
    for row in answer.jobs[0].ranks:
        row.fresh_count, row.stale_count, row.null_count = 200, 0, 0
    line = "straggler of eager: rank 2, for which all others wait most of the time in most ops"
    assert line in told(answer)
    answer.jobs[0].ranks[2].fresh_count = 99
    assert line not in told(answer) and any("straggler of eager: rank 2, in 50 %" in text for text in told(answer))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "POLICY_QUORUM"}, "quorum of 4, tau 8, eta 4"),
        ({"policy": "POLICY_SEEDED", "probes": 3}, "seeded of 3, tau 8, eta 4"),
        ({"policy": "POLICY_SOLO", "tau": 3, "eta": 1, "probes": 3, "quorum": 5}, "solo, tau 3, eta 1"),
    ],
)
def test_policy_text__says_what_counts_under_it(options: dict[str, Any], words: str) -> None:
    assert policy_text(types_pb2.JobOptions(**options), 7) == words


def test_status__of_a_partial_job_without_ops_or_straggler() -> None:
    answer = a_partial_job(policy="POLICY_SOLO")
    answer.jobs[0].straggler_rank = -1
    assert not [line for line in told(answer) if line.startswith("straggler of")]
    answer.jobs[0].partial_ops = 0
    assert "policy of eager: solo, tau 8, eta 4; no op has ended yet" in told(answer)


def test_status__of_a_coded_job_says_how_exact_it_was_and_what_it_did_without() -> None:
    answer = a_partial_job(policy="POLICY_CODED", stragglers=1)
    job = answer.jobs[0]
    job.coded.MergeFrom(
        partial_pb2.CodedStatus(
            exact_count=198, late_count=175, unused_count=40, used_bytes=3 << 20, residual_max=1.41421
        )
    )
    job.ranks[2].late_count, job.ranks[1].unused_count = 175, 40
    steps = "198 of 200 exact, the others at most 1.41 from it (residual); 175 did not wait for some rank, 40 did not "
    steps += "need what some rank gave"
    assert f"steps of eager: {steps}" in told(answer)
    job.coded.redundant_bytes, job.coded.residual_max, job.coded.exact_count = 1 << 20, 0, 200
    text = told(answer)
    (line,) = [line for line in text if line.startswith("steps of eager: ")]
    assert line.startswith("steps of eager: 200 of 200 exact; 175 did")
    assert line.endswith("; 1 MiB redundant, 25 % of what came")
    (head,) = [line.split() for line in text if "started by its host" in line]
    assert head[-2:] == ["late", "unused"]
    rows = [line.split() for line in text if line.split()[:1] == ["eager"]]
    assert [row[-2:] for row in rows] == [["0", "0"], ["0", "40"], ["175", "0"]]


def test_status__of_an_ordinary_job_is_silent_about_policies() -> None:
    answer = an_answer()
    answer.jobs[0].options.policy = types_pb2.POLICY_NONE
    text = "\n".join(told(answer))
    for word in ("policy", "quorum", "tau", "straggler", "Ranks"):
        assert word not in text, word


def test_status__json_of_a_partial_job(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "an_answer", lambda answer=a_partial_job(): answer)
    (job,) = json.loads(runner.invoke(main.build(), ["status", "--json"]).output)["jobs"]
    assert job["options"]["policy"] == "probe" and job["straggler_rank"] == 2 and job["included_mean"] == 2.125
    assert job["ranks"][2] == {
        "rank": 2,
        "fresh_count": 10,
        "stale_count": 15,
        "null_count": 175,
        "initiated_count": 2,
        "last_op_seq": 297,
        "late_count": 0,
        "unused_count": 0,
    }


def test_status__without_jobs(socket: str) -> None:
    answer = an_answer()
    del answer.jobs[:]
    console = Console(width=100, record=True, file=io.StringIO())
    status.show(console, answer)
    assert "no jobs" in console.export_text()


def test_status__no_daemon_is_exit_status_3_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMA_SOCKET", str(tmp_path / "none.sock"))
    for arguments in (["status"], ["status", "--json"]):
        result = runner.invoke(main.build(), arguments)
        assert result.exit_code == 3
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        assert str(tmp_path / "none.sock") in result.stderr


def test_status__wrong_socket_is_exit_status_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMA_SOCKET", "http://localhost")
    result = runner.invoke(main.build(), ["status"])
    assert result.exit_code == 2
    assert "ULTIMA_SOCKET" in result.stderr


def test_get_status__gives_up_in_time(socket: str) -> None:
    with pytest.raises(DaemonUnavailable, match=r"no answer within 0\.2 s"):
        get_status(socket, "slow", timeout_s=0.2)


def test_get_status__a_daemon_that_does_not_know_the_question(socket: str) -> None:
    with pytest.raises(ProtocolError, match="UNIMPLEMENTED: never heard of it"):
        get_status(socket, "strange")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (10 * 86400, "10 days")]
)
def test_duration__as_people_say_it(seconds: float, text: str) -> None:
    assert status.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1000, "1000 B"), (1024, "1 KiB"), (10**9, "954 MiB"), (2**50, "1.02e+03 TiB")]
)
def test_size__with_a_binary_unit(count: int, text: str) -> None:
    assert status.size(count) == text
