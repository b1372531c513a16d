# SPDX-License-Identifier: Apache-2.0
"""The demo on a long path: plain DDP beside DiLoCo, through the relay."""

import json

import pytest
from typer.testing import CliRunner

from ultima.cli import main

pytest.importorskip("torch")


@pytest.mark.check
@pytest.mark.timeout(300)
def test_demo__puts_plain_ddp_and_diloco_side_by_side_on_a_long_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sites one leaves DiLoCo after its first step, and the others go on without it."""
    monkeypatch.delenv("ULTIMA_SOCKET", raising=False)
    options = ["--data", "digits", "--sites", "3", "--epochs", "1", "--wan", "20ms,1%,100Mbit", "--every", "6"]
    result = CliRunner().invoke(main.build(), ["demo", *options, "--leave", "1:1ms", "--json"])
    assert result.exit_code == 0, result.output
    plain, local = json.loads(result.stdout)["runs"]
    assert (plain["network"]["delay"], local["network"]["delay"]) == (0.01, 0.01)
    assert (plain["every"], local["every"]) == (0, 6)
    assert (plain["stayed"], local["stayed"]) == ([0, 1, 2], [0, 2])
    assert plain["replicas_equal"] and local["replicas_equal"]
    assert plain["train_s"] > 24 * 0.02, "each step waits for a round trip"
    steps = [rank["steps"] for rank in local["ranks"]]
    assert (steps[0], steps[2]) == (24, 24) and 1 <= steps[1] < 6
    assert "rounds in 24 steps" in local["ranks"][0]["summary"]
    assert local["ranks"][0]["last"].startswith("round")
    assert sum(receipt["ops"] for receipt in local["receipts"]) < sum(receipt["ops"] for receipt in plain["receipts"])
