# SPDX-License-Identifier: Apache-2.0
"""`ultima bench-cluster` without a cluster: what it asks of hosts, and what it makes of what they say."""

import json
import re
from dataclasses import replace
from pathlib import Path as File

import pytest
from typer.testing import CliRunner

from tests.client.cli import golden
from ultima.admin.pairs import SLURM, SSH, Ask, Pair, common_host, line_of, one_pair, told_by, worst
from ultima.admin.paths import FLYING_PACKETS, Path
from ultima.cli import bench_cluster, main

ROOT = File(__file__).resolve().parents[3]
runner = CliRunner()
REPORT = {"results": [{"in_place": {"p50_us": 2000.0, "p99_us": 3000.0, "loss_percent": 5.0, "bus_bw": 1.25}}]}


def counted(sent: int, lost: int, spurious: int, rate: int, wanted: int) -> dict[str, object]:
    """What `ultima status --json` says, as far as it matters."""
    counters = {"data_sent": sent, "lost_packets": lost, "spurious_losses": spurious}
    counters |= {"arrival_rate": rate, "receive_wanted": wanted}
    return {"version": "1", "engine": {"counters": counters, "receive_buffer_bytes": 208 << 10, "packet_bytes": 1472}}


@pytest.fixture
def fake(tmp_path: File) -> str:
    """A shell for hosts: "slow" takes ten times as long, "whole" lose nothing, "down" cannot be reached, "old" has
    no report."""
    (tmp_path / "report").write_text(json.dumps(REPORT))
    (tmp_path / "slow").write_text(json.dumps(REPORT).replace("000.0", "0000.0"))
    (tmp_path / "whole").write_text(json.dumps(REPORT).replace("5.0", "0.0"))
    # Both daemons have sent 50,000 packets more, of which 700 were lost, and 200 of these came late.
    ping, before = {"rtt_min_s": 0.05, "rtt_median_s": 0.06}, counted(1000, 5, 0, 0, 0)
    told = [before, REPORT, counted(51_000, 605, 200, 12_500_000, 150 << 10), ping]
    (tmp_path / "far_0").write_text("\n".join(json.dumps(each, indent=2) for each in told))
    told = [before, counted(51_000, 105, 0, 25_000_000, 640 << 10)]
    (tmp_path / "far_1").write_text("".join(json.dumps(each) for each in told))
    script = tmp_path / "rsh"
    script.write_text(f"""#!/bin/sh
case "$1" in down) echo "no route to host" >&2; exit 255;; stuck) exec sleep 60;; esac
case "$1 $2" in far*RANK=1*) cat {tmp_path}/far_1; exit 0;; far*) cat {tmp_path}/far_0; exit 0;; esac
case "$2" in *RANK=0*) ;; *) exit 0;; esac
case "$1" in old) echo "1.0";; slow | whole*) cat {tmp_path}/"${{1%-*}}";; *) cat {tmp_path}/report;; esac
""")
    script.chmod(0o755)
    return f"{script} {{host}}"


def told(fake: str, *hosts: str, status: int = 0) -> str:
    result = runner.invoke(main.build(), ["bench-cluster", *hosts, "--via", fake])
    assert result.exit_code == status, result.output
    return str(result.stdout)


def test_matrix__names_the_worst_link(fake: str) -> None:
    text = told(fake, "slow", "b", "c")
    assert "worst link: slow - b, 20.00 ms, 1.8 times the median of the others, 5 % of the bytes missing\n" in text
    assert "all pairs of slow are slow or fail: look at that host and its link\n" in text
    assert "  0 slow                    -    20.00    20.00\n" in text
    alike = told(fake, "whole-a", "whole-b", "whole-c")
    assert "all links look alike; the slowest: whole-a - whole-b, 2.00 ms, 1.0 times" in alike and "worst" not in alike
    broken = told(fake, "a", "b", "down", status=1)
    assert "worst link: a - down failed: down: no route to host\n" in broken and "  failed" in broken
    old = told(fake, "old", "b", status=1)
    assert "old: printed no report" in old


def test_distance__what_the_path_allows_and_what_a_sysctl_would_bring(fake: str) -> None:
    # 200,000 bytes at 12.5 MB/s, 1472 for each 1440, take 16.36 ms, and two round trips of 50 ms 100.
    result = runner.invoke(main.build(), ["bench-cluster", "far-a", "far-b", "--via", fake, "-b", "200000", "--json"])
    (pair,) = json.loads(result.stdout)["pairs"]
    assert pair["round_trip_s"] == 0.05 and pair["path_mbit"] == 100 and pair["lost_share"] == pytest.approx(0.005)
    assert pair["goal_s"] == pytest.approx(0.116356, rel=1e-4) and pair["to_goal"] == pytest.approx(0.0172, abs=1e-4)
    (small,) = json.loads(result.stdout)["small_buffers"]
    assert (small["host"], small["granted_bytes"], small["wanted_bytes"]) == ("far-b", 208 << 10, 640 << 10)
    held = 12_500_000 * 0.05
    assert small["shorter_share"] == pytest.approx(1 - (held + (104 << 10)) / (held + (320 << 10)))
    text = told(fake, "far-a", "far-b")
    assert (
        "all pairs are near what their paths allow; the farthest from it: far-a - far-b, 0.00 of 2243.76 ms, " in text
    )
    assert "which 100 Mbit/s and two round trips of 50.00 ms allow; 0.5 % of the packets were lost\n" in text
    assert "far-b: its kernel grants 208 KiB to receive, and 640 KiB are needed; ops between far-a and far-b" in text
    assert "would take up to 23 % less: sysctl -w net.core.rmem_max=655360, for good in /etc/sysctl.d" in text
    slow = runner.invoke(main.build(), ["bench-cluster", "far-a", "far-b", "--via", fake, "-b", "4", "--rate", "1Gbit"])
    assert "of 100.00 ms, which 1000 Mbit/s and two round trips" in slow.stdout


def test_path__of_which_nothing_is_known_or_too_much(fake: str) -> None:
    assert "allow" not in told(fake, "whole-a", "whole-b"), "an older version prints its report alone"
    result = runner.invoke(main.build(), ["bench-cluster", "whole-a", "whole-b", "--via", fake, "--json"])
    assert json.loads(result.stdout)["pairs"][0]["goal_s"] is None
    assert Path().goal_us(1000) is None and not Path().flying_full()
    # 32,768 packets of 1472 B are 48.2 MB: what 1 Gbit/s holds in 386 ms.
    assert not Path(round_trip_us=340_000, rate=125e6).flying_full()
    full = Pair("a", "b", p50_us=1e6, path=Path(round_trip_us=386_000, rate=125e6))
    said = " ".join(bench_cluster.distance([full], 10_000_000))
    assert "a - b: 1000.00 ms, 1.17 of 853.78 ms" in said and "no more under way to another than 48.2 MB" in said
    header = (ROOT / "transport_c/core/base/ut.h").read_text()
    assert re.findall(r"UT_SENT_MAX = (\d+)", header) == [str(FLYING_PACKETS)]
    many = [replace(full, b=str(number)) for number in range(7)]
    assert bench_cluster.distance(many, 10_000_000)[5] == "2 more pairs take above 1.15 of what their paths allow"


def test_told__objects_in_a_row_and_nothing_else() -> None:
    assert told_by(b'{"a": 1}\n{"b": {"c": 2}}{"d": 3}') == [{"a": 1}, {"b": {"c": 2}}, {"d": 3}]
    assert told_by(b"") == told_by(b"1.0\n") == told_by(b"\xff{") == []
    assert told_by(b'motd {"a": 1} {broken} {"b": 2}') == [{"a": 1}]


def test_json__keys_stay(fake: str) -> None:
    result = runner.invoke(main.build(), ["bench-cluster", "far-a", "far-b", "--via", fake, "--json"])
    found = json.loads(result.stdout)
    assert (found["pairs"][0]["p50_s"], found["pairs"][0]["missing_share"]) == (0.002, 0.05)
    kinds = {key: type(value).__name__ for key, value in found["pairs"][0].items()}
    golden.check("bench-cluster", {"schema": found["schema"], "keys": sorted(found), "pair": kinds})


def test_pair__that_does_not_end_is_ended(fake: str) -> None:
    ask = Ask(tuple(fake.split()), "1M", 1, 0.3)
    assert one_pair("stuck", "b", ask, 1).error == "no end within 0 s"


def test_line__is_quoted_and_leaves_no_file() -> None:
    line = line_of(Ask(SSH, "25M", 20, 60), "a; rm -rf /", "b; reboot", 0, 20001)
    assert "MASTER_ADDR='a; rm -rf /' MASTER_PORT=20001 ultima perf -b 25M -n 20" in line
    assert '; s=$?; rm -rf "$d"; ' in line and line.endswith("ultima ping 'b; reboot' --json 2>/dev/null; exit $s")
    assert line_of(Ask(SSH, "25M", 20, 60), "a", "b", 1, 20001).endswith("status --json 2>/dev/null; exit $s")
    assert bench_cluster.words_of("slurm") == SLURM and bench_cluster.words_of("ssh") == SSH


def test_common_host__is_one_whose_pairs_are_all_slow() -> None:
    def pairs(*us: float, spread: float = 1.5) -> list[Pair]:
        names = ["ab", "ac", "bc"] if len(us) == 3 else ["ab", "ac", "ad", "bc", "bd", "cd"]
        return [Pair(*name, p50_us=each, p99_us=spread * each) for name, each in zip(names, us, strict=True)]

    assert common_host(pairs(9, 9, 9, 1, 1, 1), 1.5) == "a"
    assert common_host(pairs(9, 1, 1, 1, 1, 1), 1.5) == ""
    slowest = worst(pairs(9, 1, 1, 1, 1, 1))
    assert slowest is not None and slowest[0].b == "b" and slowest[1] == 9
    # Three equal hosts on a busy machine: the ops of each link differ by more than the links do.
    assert common_host(pairs(1.0, 1.71, 1.89, spread=2), 1.5) == ""
    assert common_host(pairs(1.0, 1.71, 1.89, spread=1.2), 1.5) == "c"
    assert common_host(pairs(1.0, 1.4, 1.4, spread=1.1), 1.5) == "", "less than half as much again is not slow"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["a"], "HOST..."),
        (["a", "a"], "HOST..."),
        (["a", "b c"], "HOST..."),
        (["a", "b", "--via", "rsh"], "--via"),
        (["a", "b", "--via", "'{host}"], "--via"),
        (["a", "b", "--size", "12Q"], "--size"),
        (["a", "b", "--iters", "0"], "--iters"),
        (["a", "b", "--timeout", "soon"], "--timeout"),
        (["a", "b", "--rate", "fast"], "--rate"),
    ],
)
def test_usage__what_cannot_be_is_named(arguments: list[str], named: str) -> None:
    result = runner.invoke(main.build(), ["bench-cluster", *arguments])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and named in result.stderr
