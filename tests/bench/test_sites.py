# SPDX-License-Identifier: Apache-2.0
"""The bench of training between sites: its arithmetic, and a short run in a lab whose hosts are apart."""

from __future__ import annotations

import re

import pytest

from tests.bench.sites import main as sites


def test_wire__four_sites_send_one_and_a_half_times_the_model() -> None:
    assert sites.wire_s(25_000_000) == 6.0 and sites.wire_s(100_000_000) == 24.0


@pytest.mark.root
@pytest.mark.check
@pytest.mark.timeout(300)
def test_share__is_told_of_each_way(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A small model, without loss: rounds take about what their wire takes, and computing is most of the time."""
    monkeypatch.setattr(sites, "MODEL_BYTES", 1_000_000)
    monkeypatch.setattr(sites, "LOSSES", (0.0,))
    assert sites.main(["--only", "share", "--rounds", "2"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("0 %")]
    assert [line.split(",")[1].strip() for line in lines] == ["float32", "float32", "int8", "int8"]
    for line in lines:
        shares = re.findall(r"([0-9.]+) %", line)
        assert 20 < float(shares[2]) <= float(shares[1]) <= 100, line
