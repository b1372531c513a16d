# SPDX-License-Identifier: Apache-2.0
"""`ultima simulate`: the core in virtual time, through the module that a wheel brings."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.client.cli import golden
from ultima.admin import simulator
from ultima.base.errors import UltimaError
from ultima.cli import main, simulate

ROOT = Path(__file__).resolve().parents[3]
runner = CliRunner()
SMALL = ["simulate", "--hosts", "3", "--bucket", "200K", "--ops", "28"]


def told(*more: str) -> dict[str, object]:
    result = runner.invoke(main.build(), [*SMALL, "--json", *more])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    (facts["row"],) = facts["rows"]
    return facts["row"]  # type: ignore[no-any-return]


@pytest.mark.check
def test_simulate__predicts_and_stays_above_the_wire() -> None:
    clean, lossy, slow = told(), told("--loss", "2%"), told("--slow-host", "10")
    for row in (clean, lossy, slow):
        assert row["ops"] == 28 and row["bound_s"] < row["p50_s"] <= row["p99_s"]  # type: ignore[operator]
    assert clean["lost_share"] == 0 and 0.01 < lossy["lost_share"] < 0.03  # type: ignore[operator]
    assert slow["p50_s"] > 5 * clean["p50_s"] and slow["bound_s"] == pytest.approx(10 * clean["bound_s"], 0.01)  # type: ignore[operator]
    assert told("--loss", "2%") == lossy, "virtual time: the same seed gives the same figures"
    assert told("--loss", "2%", "--seed", "2") != lossy


def test_simulate__few_bits_take_a_share_of_the_time() -> None:
    """Packets are as many as a quantised op has; the bucket is told as it is given."""
    dense, few = told("--bucket", "200K"), told("--bucket", "200K", "--wire", "int4")
    assert few["bucket_bytes"] == dense["bucket_bytes"] == 200 << 10
    assert 0.1 < few["bound_s"] / dense["bound_s"] < 0.2 and few["p50_s"] < 0.5 * dense["p50_s"]  # type: ignore[operator]


def test_simulate__of_hosts_far_apart_is_held_against_the_wire_and_two_round_trips() -> None:
    """The simulator's judge says what a round trip and the bound are, and what an op is of both."""
    far = ["--hosts", "2", "--rate", "100Mbit", "--delay", "25ms", "--bucket", "1M", "--loss", "1%"]
    result = runner.invoke(main.build(), ["simulate", *far, "--ops", "28", "--json"])
    (row,) = json.loads(result.stdout)["rows"]
    knobs = {
        "hosts": 2,
        "rate_mbit": 100,
        "delay_us": 25000,
        "loss_ppm": 10000,
        "bytes": 1 << 20,
        "queue_bytes": 1 << 20,
    }
    judged = simulator._world({**knobs, "deadline_us": 60_000_000, "seed": 1})["judged"]
    assert row["round_trip_s"] == pytest.approx(0.05 + 4 * 1514 * 8 / 100e6 + 20e-6, rel=1e-3)
    assert row["goal_s"] == pytest.approx((judged["bound_us"] + 2 * judged["round_trip_us"]) / 1e6, rel=1e-5)
    assert row["p50_s"] / row["goal_s"] == pytest.approx(judged["goal"], rel=0.05) and row["missing_share"] == 0
    # One connection at 50 ms and 1 % carries 2.8 Mbit/s: half a MiB each way, twice, and the way of the last byte.
    assert row["tcp_flow_mbit"] == pytest.approx(2.81, abs=0.02)
    assert row["tcp_s"] == pytest.approx(8 * 2**20 / 2.81e6 + 0.025, rel=0.01)


def test_simulate__a_cap_of_hosts_is_what_ops_take() -> None:
    """It counts headers of IP and UDP, and all jobs; TCP has no more either."""
    free, capped, two = told(), told("--host-cap", "20Mbit"), told("--host-cap", "20Mbit", "--jobs", "2")
    bound_s = 2 * 2 / 3 * (200 << 10) * 8 * 1500 / 1440 / 20e6
    assert capped["bound_s"] == pytest.approx(bound_s, rel=1e-3)
    assert two["bound_s"] == pytest.approx(2 * bound_s, rel=1e-3)
    assert free["p50_s"] < 0.1 * bound_s < 0.9 * bound_s < capped["p50_s"] < 1.1 * bound_s  # type: ignore[operator]
    assert capped["tcp_flow_mbit"] == pytest.approx(free["tcp_flow_mbit"] / 50, rel=0.01)  # type: ignore[operator]
    assert told("--host-cap", "2Gbit")["bound_s"] == free["bound_s"]


def test_simulate__jitter_holds_packets_back() -> None:
    still, late = told("--delay", "5ms"), told("--delay", "5ms", "--jitter", "20ms")
    assert late["missing_share"] == 0 and late["p50_s"] > still["p50_s"] + 0.01  # type: ignore[operator]
    assert late["goal_s"] == still["goal_s"]


def test_simulate__for_people_and_for_scripts() -> None:
    result = runner.invoke(main.build(), [*SMALL, "--bucket", "4K"])
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and len(lines) == 6 and all(len(line) <= 80 for line in lines[2:5]), result.output
    assert "two round trips of 0.118 ms" in lines[1] and "a connection carry 956 Mbit/s at most" in lines[5]
    assert lines[3].split()[:3] == ["200", "KiB", "28"] and lines[4].split()[:2] == ["4", "KiB"]
    facts = json.loads(runner.invoke(main.build(), [*SMALL, "--json"]).output)
    kinds = {key: type(value).__name__ for key, value in facts["rows"][0].items()}
    golden.check("simulate", {"schema": facts["schema"], "network": sorted(facts["network"]), "row": kinds})


@pytest.mark.parametrize(
    "wrong",
    [
        ("--hosts", "1"),
        ("--hosts", "65"),
        ("--rate", "10"),
        ("--rate", "200Gbit"),
        ("--rate", "0Mbit"),
        ("--host-cap", "0Mbit"),
        ("--delay", "2s"),
        ("--delay", "25"),
        ("--jitter", "2s"),
        ("--jitter", "0ms"),
        ("--jitter", "much"),
        ("--buffer", "1"),
        ("--loss", "0.1"),
        ("--loss", "101%"),
        ("--bucket", "65M"),
        ("--slow-host", "0"),
        ("--mode", "swift"),
        ("--jobs", "3"),
        ("--ops", "0"),
        ("--seed", "-1"),
        ("--wire", "int3"),
    ],
)
def test_simulate__what_cannot_be_is_named(wrong: tuple[str, str]) -> None:
    result = runner.invoke(main.build(), ["simulate", *wrong])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert wrong[0] in result.stderr and wrong[1] in result.stderr and "allowed" in result.stderr


def test_world__that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UltimaError, match=r"bogus=1 seed=1 failed: study: bogus=1 is neither"):
        simulator.predict({"bogus": 1}, 1, 1)
    monkeypatch.setattr(simulator, "WORLD_S", 0.001)
    with pytest.raises(UltimaError, match="longer than 0 s"):
        simulator.predict({"hosts": 3}, 1, 1)


def test_summed__takes_the_slowest_host_and_leaves_out_the_warm_up() -> None:
    def op(*us: float, status: int = 1, missing: int = 0) -> dict[str, object]:
        return {"hosts": [{"elapsed_us": each, "expected": 10, "missing": missing, "status": status} for each in us]}

    world = {"sent": 100, "lost": 3, "judged": {"bound_us": 1.5, "round_trip_us": 0.25}}
    warm = [op(1e6)] * simulator.WARM_EACH
    one = world | {"ops": [*warm, op(1.0, 4.0), op(2.0, 1.0)]}
    two = world | {"ops": [*warm, op(9.0, 1.0, status=2, missing=5)]}
    found = simulator.summed([one, two])
    assert found == simulator.Predicted(3, 4.0, 9.0, 1.5, 10 / 60, 0.03, 1, 0.25) and found.goal_us == 2.0
    line = simulate.line(1 << 20, found, simulate.Tcp(8e8, 0.1))
    assert " 2.00 " in line and "   800000 " in line and " 67%" in line and "33%" not in line


def test_world__hosts_keep_as_much_in_their_own_queue_as_the_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that fills the queue before its link answers late: at 100 Mbit/s that was 7 % of an op."""
    header = (ROOT / "transport_c/udp/backlog.h").read_text()
    (kept,) = re.findall(r"UT_BACKLOG_NS = (\d+) \* 1000,", header)
    asked: list[list[str]] = []

    def run(command: list[str], **rest: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, '{"failure": ""}', "")

    monkeypatch.setattr("ultima.admin.simulator.subprocess.run", run)
    simulator._world({"hosts": 2})
    assert f"send_us={kept}" in asked[0] and "hosts=2" in asked[0]
