# SPDX-License-Identifier: Apache-2.0
"""What is shipped beside the code: the service unit, and the generated code of the proto files."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ultima.daemon.base.config import load
from ultima.v1.limits import LANES_MAX

ROOT = Path(__file__).resolve().parents[3]
UNIT = ROOT / "deploy/systemd/ultimad.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_unit__exposure_is_at_most_1_5() -> None:
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(UNIT)], capture_output=True, text=True, timeout=60
    )
    found = re.search(r"Overall exposure level for ultimad.service: ([\d.]+)", result.stdout)
    assert found is not None, result
    assert float(found[1]) <= 1.5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_unit__is_what_systemd_understands(tmp_path: Path) -> None:
    """Not a word is said of it: no unknown name, no value that is wrong. The daemon's path is one that exists here."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/ultimad", sys.executable))
    for wrong, text in ((False, ""), (True, "ProtectSystem=stict\n")):
        copy.write_text(copy.read_text().replace("[Install]\n", f"{text}[Install]\n"))
        done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
        assert bool(done.stderr) is wrong, done.stderr
        assert wrong or done.returncode == 0


def test_unit__keeps_the_check_of_who_attaches_alive() -> None:
    """PrivateUsers= would make SO_PEERCRED tell uid 65534 of everyone."""
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"[A-Za-z]+=", line))
    assert "PrivateUsers" not in settings and "DynamicUser" not in settings
    assert settings["RestrictAddressFamilies"].split() == ["AF_UNIX", "AF_INET", "AF_INET6"]
    assert settings["Type"] == "notify" and int(settings["WatchdogSec"]) == 10
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert settings["RuntimeDirectory"] == "ultima"


def test_unit__binds_the_ports_of_the_daemon_and_no_others() -> None:
    """By the default `port`, with as many lanes as there can be."""
    lines = UNIT.read_text().splitlines()
    assert "SocketBindDeny=any" in lines
    allowed: dict[str, set[int]] = {"tcp": set(), "udp": set()}
    for line in lines:
        if found := re.fullmatch(r"SocketBindAllow=(tcp|udp):(\d+)(?:-(\d+))?", line):
            allowed[found[1]] |= set(range(int(found[2]), int(found[3] or found[2]) + 1))
    config = load({}, {"ULTIMAD_ENGINE_LANES": str(LANES_MAX)}, Path("/nonexistent"))
    assert allowed == {"tcp": {config.port}, "udp": {port for pair in config.udp_ports() for port in pair}}


def test_unit__shows_how_to_name_the_peers_network() -> None:
    """Commented out, because a network that was forgotten looks like one that swallows packets."""
    text = UNIT.read_text()
    assert "#IPAddressDeny=any\n" in text and re.search(r"^#IPAddressAllow=localhost \S+$", text, re.MULTILINE)


def test_generated_code__is_current() -> None:
    """Fails when a .proto file was edited without `make proto`, or the generators are not those that are pinned."""
    spec = importlib.util.spec_from_file_location("proto_generate", ROOT / "proto/generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.stale() == []


def test_generated_code__check_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("proto_generate", ROOT / "proto/generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    shutil.copytree(ROOT / "proto/ultima", tmp_path / "ultima")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    proto = tmp_path / "ultima/v1/types.proto"
    proto.write_text(proto.read_text().replace("HOST_STATE_UP = 2", "HOST_STATE_UP = 7"))
    assert "types_pb2.py" in generate.stale()
