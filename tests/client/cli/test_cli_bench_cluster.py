# SPDX-License-Identifier: Apache-2.0
"""`ultima bench-cluster` without a cluster: what it asks of hosts, and what it makes of what they say."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.client.cli import golden
from ultima.admin.pairs import SLURM, SSH, Ask, Pair, common_host, line_of, one_pair, worst
from ultima.cli import bench_cluster, main

runner = CliRunner()
REPORT = {"results": [{"in_place": {"p50_us": 2000.0, "p99_us": 3000.0, "loss_percent": 5.0, "bus_bw": 1.25}}]}


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """A shell for hosts: "slow" takes ten times as long, "whole" lose nothing, "down" cannot be reached, "old" has
    no report."""
    (tmp_path / "report").write_text(json.dumps(REPORT))
    (tmp_path / "slow").write_text(json.dumps(REPORT).replace("000.0", "0000.0"))
    (tmp_path / "whole").write_text(json.dumps(REPORT).replace("5.0", "0.0"))
    script = tmp_path / "rsh"
    script.write_text(f"""#!/bin/sh
case "$1" in down) echo "no route to host" >&2; exit 255;; stuck) exec sleep 60;; esac
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


def test_json__keys_stay(fake: str) -> None:
    result = runner.invoke(main.build(), ["bench-cluster", "a", "b", "--via", fake, "--json"])
    found = json.loads(result.stdout)
    assert (found["pairs"][0]["p50_s"], found["pairs"][0]["missing_share"]) == (0.002, 0.05)
    kinds = {key: type(value).__name__ for key, value in found["pairs"][0].items()}
    golden.check("bench-cluster", {"schema": found["schema"], "keys": sorted(found), "pair": kinds})


def test_pair__that_does_not_end_is_ended(fake: str) -> None:
    ask = Ask(tuple(fake.split()), "1M", 1, 0.3)
    assert one_pair("stuck", "b", ask, 1).error == "no end within 0 s"


def test_line__is_quoted_and_leaves_no_file() -> None:
    line = line_of(Ask(SSH, "25M", 20, 60), "a; rm -rf /", 0, 20001)
    assert "MASTER_ADDR='a; rm -rf /' MASTER_PORT=20001 ultima perf -b 25M -n 20" in line
    assert line.endswith('rm -rf "$d"; exit $s')
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
    ],
)
def test_usage__what_cannot_be_is_named(arguments: list[str], named: str) -> None:
    result = runner.invoke(main.build(), ["bench-cluster", *arguments])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and named in result.stderr
