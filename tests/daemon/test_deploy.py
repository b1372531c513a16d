# SPDX-License-Identifier: Apache-2.0
"""What is shipped beside the code: the service unit, and the generated code of the proto files."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy/systemd/ultimad.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_unit__exposure_is_at_most_2() -> None:
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(UNIT)], capture_output=True, text=True, timeout=60
    )
    found = re.search(r"Overall exposure level for ultimad.service: ([\d.]+)", result.stdout)
    assert found is not None, result
    assert float(found[1]) <= 2.0


def test_unit__keeps_the_check_of_who_attaches_alive() -> None:
    """PrivateUsers= would make SO_PEERCRED tell uid 65534 of everyone."""
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"[A-Za-z]+=", line))
    assert "PrivateUsers" not in settings and "DynamicUser" not in settings
    assert settings["RestrictAddressFamilies"].split() == ["AF_UNIX", "AF_INET", "AF_INET6"]
    assert settings["Type"] == "notify" and int(settings["WatchdogSec"]) == 10
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["RuntimeDirectory"] == "ultima"


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
