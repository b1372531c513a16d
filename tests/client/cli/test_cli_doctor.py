# SPDX-License-Identifier: Apache-2.0
"""`ultima doctor` against a server that answers what the test says; tests/lab has it find real faults."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from tests.client.attach_server import AttachServer, token
from tests.client.cli import golden
from ultima.cli import doctor, main
from ultima.v1 import admin_pb2, admin_pb2_grpc, installed

runner = CliRunner()
Check = admin_pb2.Check


def checks() -> list[admin_pb2.Check]:
    return [
        Check(name="gso", verdict=Check.VERDICT_OK, finding="in use"),
        Check(
            name="clock", subject="10.0.0.2:29520", verdict=Check.VERDICT_WARNING, finding="3 s off", remedy="chrony"
        ),
        Check(
            name="udp data port",
            subject="10.0.0.2:29520",
            verdict=Check.VERDICT_FAILURE,
            finding="UDP 29521 from here to 10.0.0.2: none of 8 datagrams arrived, though TCP gets through",
            remedy="open UDP 29521 in the firewall of 10.0.0.2, and on the way",
        ),
    ]


class Servicer(admin_pb2_grpc.AdminServiceServicer):
    answer: list[admin_pb2.Check]
    asked: list[list[str]]

    def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        return admin_pb2.GetStatusResponse(version=installed.version())

    def Examine(self, request: admin_pb2.ExamineRequest, context: Any) -> admin_pb2.ExamineResponse:
        self.asked.append(list(request.peers))
        if "nonsense" in request.peers:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a numeric address, or ADDRESS:PORT of its daemon")
        return admin_pb2.ExamineResponse(checks=self.answer)


@pytest.fixture
def servicer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servicer]:
    made = Servicer()
    made.answer, made.asked = checks(), []
    with AttachServer(tmp_path, token(), admin=made) as server:
        monkeypatch.setenv("ULTIMA_SOCKET", f"unix://{server.socket}")
        yield made


def test_doctor__what_is_wrong_first_with_its_remedy_and_status_1(servicer: Servicer) -> None:
    result = runner.invoke(main.build(), ["doctor", "--peer", "10.0.0.2", "--peer", "10.0.0.3:1"])
    assert result.exit_code == 1 and servicer.asked == [["10.0.0.2", "10.0.0.3:1"]], result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("FAILURE: udp data port (10.0.0.2:29520): UDP 29521 from here to")
    assert any(line.startswith("  do: open UDP 29521 in the firewall of 10.0.0.2") for line in lines)
    assert lines[-1] == "4 ok, 1 warning, 1 failure"
    assert "gso" not in result.output


def test_doctor__all_is_well(servicer: Servicer) -> None:
    servicer.answer = checks()[:2]
    result = runner.invoke(main.build(), ["doctor", "-v"])
    assert result.exit_code == 0 and "ok: gso: in use" in result.output.splitlines(), result.output


def test_doctor__json(servicer: Servicer) -> None:
    result = runner.invoke(main.build(), ["doctor", "--json"])
    told = json.loads(result.output)
    assert result.exit_code == 1 and told["schema"] == 2 and told["well"] is False
    golden.check("doctor", {"checks": told["checks"][-3:]})


def test_doctor__a_wrong_peer_is_status_2(servicer: Servicer) -> None:
    result = runner.invoke(main.build(), ["doctor", "--peer", "nonsense"])
    assert result.exit_code == 2
    assert result.stderr == "ultima: --peer is 'nonsense'; allowed: a numeric address, or ADDRESS:PORT of its daemon\n"


def test_doctor__no_daemon_is_status_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMA_SOCKET", str(tmp_path / "none.sock"))
    assert runner.invoke(main.build(), ["doctor"]).exit_code == 3


def test_report__words_of_a_later_release_are_unknown() -> None:
    assert doctor.report([Check(name="x", finding="y", verdict=9)], False)[0] == "unknown: x: y"  # type: ignore[arg-type]
