# SPDX-License-Identifier: Apache-2.0
"""`ultima perf`: sizes and flags, the table to the letter, and measuring on ranks that are threads over a fake
daemon.
"""

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ultima.api.job import Job
from ultima.base.errors import InvalidArgument
from ultima.cli import main, perf, perf_table, perf_values
from ultima.cli.perf_bench import Bench, Plan
from ultima.cli.perf_table import Half, Report, Row, Tail
from ultima.quant import Draws, rounded
from ultima.testing import FakeDaemon

runner = CliRunner()

# What nccl-tests 2.19 prints, trailing blanks included.
HEADER = [
    f"#{' ' * 62}out-of-place                       in-place          ",
    "#       size         count      type   redop    root" + "     time   algbw   busbw  #wrong" * 2 + " ",
    "#        (B)    (elements)                          " + "     (us)  (GB/s)  (GB/s)        " * 2 + " ",
]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("25000000", 25_000_000),
        ("64K", 65536),
        ("64k", 65536),
        ("25M", 25 * 2**20),
        ("1G", 2**30),
        ("1.5M", 3 * 2**19),
        ("4KiB", 4096),
    ],
)
def test_size_of__as_nccl_tests_counts(text: str, size: int) -> None:
    assert perf.size_of("-b", text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "12Q", "M", "4G", "1e6", "0.1"])
def test_size_of__refuses(text: str) -> None:
    with pytest.raises(InvalidArgument, match="-b"):
        perf.size_of("-b", text)


def test_sizes_of__factor_step_and_single() -> None:
    assert perf.sizes_of("1K", "8K", "1M", 2) == [1024, 2048, 4096, 8192]
    assert perf.sizes_of("1K", "9K", "1M", 3) == [1024, 3072, 9216]
    assert perf.sizes_of("1K", "3K", "1K", 1) == [1024, 2048, 3072]
    assert perf.sizes_of("25M", None, "1M", 1) == [25 * 2**20]
    with pytest.raises(InvalidArgument, match="-e is '1K'; allowed: at least 2048"):
        perf.sizes_of("2K", "1K", "1M", 2)


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0, 7, "   0.00"),
        (0.004, 6, "  0.00"),
        (9.999, 6, " 10.00"),
        (999.99, 6, "999.99"),
        (1347.57, 7, "1347.57"),
        (12345.67, 7, "12345.7"),
        (123456.7, 7, " 123457"),
        (1234567, 7, "1234567"),
        (12345678, 7, "1.2e+07"),
        (99999999, 6, " 1e+08"),
    ],
)
def test_number__as_many_decimals_as_fit(value: float, width: int, text: str) -> None:
    assert perf_table.number(value, width) == text


def test_header__to_the_letter() -> None:
    assert perf_table.header(False).split("\n") == HEADER
    with_tail = perf_table.header(True).split("\n")
    assert [line.startswith(plain.rstrip()) for line, plain in zip(with_tail, HEADER, strict=True)] == [True] * 3
    assert with_tail[1].endswith("#wrong      p50      p99  p99/p50    loss%")


def a_row(**changes: Any) -> Row:
    first = Half(time_us=1347.57, algorithm_gbs=0.049, bus_gbs=0.073, wrong=0)
    second = Half(**{**first.__dict__, **changes})
    return Row(65536, 16384, "float", "sum", 20, first, second)


def test_line__to_the_letter() -> None:
    line = perf_table.line(a_row())
    half = "  1347.57    0.05    0.07       0"
    assert line == "       65536         16384     float     sum      -1" + half * 2
    names = HEADER[1].replace("#", " ", 1).rstrip()
    assert len(line) == len(names), "columns end where their names end"


def test_line__of_values_that_were_not_compared() -> None:
    assert perf_table.line(a_row(wrong=None)).endswith("     n/a")
    assert perf_table.line(a_row(wrong=None, checked=False)).endswith("     N/A")
    assert perf_table.line(a_row(wrong=12)).endswith("      12")


def test_line__with_the_tail_of_the_in_place_half() -> None:
    line = perf_table.line(a_row(tail=Tail(p50_us=1000, p99_us=2500, loss_percent=0.125)))
    assert line.endswith("       0  1000.00  2500.00    2.500   0.1250")
    assert len(line) == len(perf_table.header(True).split("\n")[1])


def test_footer__and_json_of_a_report() -> None:
    report = Report({"mode": "reliable"}, [])
    report.rows = [a_row(), a_row(bus_gbs=0.173, wrong=3, tail=Tail(1000, 2500, 0.125))]
    assert perf_table.footer(report).split("\n") == [
        "# Out of bounds values : 1 FAILED",
        "# Avg bus bandwidth    : 0.098 ",
        "#",
        "# Collective test concluded: all_reduce_perf",
    ]
    facts = perf_table.to_json(report, ["ultima", "perf"])
    assert {"version", "config", "results", "out_of_bounds", "average_bus_bandwidth", "errors"} <= set(facts)
    assert facts["out_of_bounds"] == {"count": 1, "okay": "false"}
    assert facts["average_bus_bandwidth"]["bandwidth"] == pytest.approx(0.098)
    plain, tailed = facts["results"]
    assert plain["out_of_place"] == {"time": 1347.57, "alg_bw": 0.049, "bus_bw": 0.073, "nwrong": 0.0}
    assert "p50_us" not in plain
    assert (tailed["p50_us"], tailed["p99_us"], tailed["loss_percent"]) == (1000, 2500, 0.125)
    assert tailed["in_place"]["p99_us"] == 2500
    assert tailed["in_place"]["nwrong"] == 3.0
    json.dumps(facts)


def test_quantile__is_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert perf_table.quantile(values, 50) == 50
    assert perf_table.quantile(values, 99) == 99
    assert perf_table.quantile(values[:20], 99) == 20
    assert perf_table.quantile([7.0], 50) == 7


@pytest.mark.parametrize("op", perf_values.OPS)
@pytest.mark.parametrize("type_name", [name for name in perf_values.TYPES if name != "bfloat16"])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_expected__is_what_the_contributions_give(world: int, type_name: str, op: str) -> None:
    """Against double precision, rounded once; also past the period with which values repeat."""
    count = 2500
    parts = np.array([perf_values.contribution(rank, world, count, type_name, op) for rank in range(world)], float)
    assert world == 1 or not (parts[0] == parts[1]).all()
    total = {
        "sum": parts.sum(0),
        "prod": parts.prod(0),
        "min": parts.min(0),
        "max": parts.max(0),
        "avg": parts.sum(0) / world,
    }[op]
    want = perf_values.expected(world, count, type_name, op)
    assert len(want) == count
    if op == "avg" and type_name.startswith("int"):
        total = np.trunc(total)
    assert perf_values.wrong(total.astype(want.dtype), want) == 0
    assert perf_values.wrong((total + 1).astype(want.dtype), want) == count


def test_expected__bfloat16_is_the_upper_half_of_float32_rounded() -> None:
    want = perf_values.expected(3, 100, "bfloat16", "avg")
    exact = perf_values.expected(3, 100, "double", "avg")
    got = (want.astype(np.uint32) << 16).view(np.float32)
    assert np.abs(got - exact).max() <= 2**-8 * np.abs(exact).max()
    whole = perf_values.expected(4, 100, "bfloat16", "sum")
    assert ((whole.astype(np.uint32) << 16).view(np.float32) == perf_values.expected(4, 100, "double", "sum")).all()


def measure(daemon: FakeDaemon, plan: Plan, size: int, type_name: str, op: str) -> list[Row]:
    """One row, on each rank of |daemon|, measured in step."""
    jobs = [daemon.connect(rank, arena="4M") for rank in range(daemon.world_size)]
    rows: list[Row | None] = [None] * daemon.world_size

    def run(rank: int) -> None:
        bench = Bench(jobs[rank], plan, size)
        rows[rank] = bench.row(size // perf_values.TYPES[type_name][1], type_name, op)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(daemon.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for job in jobs:
        job.close()
    assert None not in rows, "a rank failed or hangs; its trace is above"
    return [row for row in rows if row is not None]


@pytest.mark.parametrize(
    ("type_name", "op"), [("float", "sum"), ("bfloat16", "avg"), ("int64", "max"), ("half", "prod")]
)
@pytest.mark.parametrize("loss_columns", [False, True])
def test_bench__ranks_agree_and_nothing_is_wrong(type_name: str, op: str, loss_columns: bool) -> None:
    plan = Plan(iterations=6, warmup=1, checks=2, mode="bounded", deadline="5s", loss_columns=loss_columns)
    with FakeDaemon(world_size=3) as daemon:
        rows = measure(daemon, plan, 6000, type_name, op)
    assert all(row == rows[0] for row in rows), "every rank must hold the figures of all"
    for half in (rows[0].out_of_place, rows[0].in_place):
        assert half.wrong == 0
        assert half.time_us > 0
        assert half.bus_gbs == pytest.approx(half.algorithm_gbs * 4 / 3)
        assert (half.tail is not None) == loss_columns
        if half.tail:
            assert 0 < half.tail.p50_us <= half.tail.p99_us
            assert half.tail.loss_percent == 0


def test_bench__missing_bytes_are_not_wrong_values() -> None:
    """A rank that is cut off: what is missing is counted as loss, and no value is called wrong or right."""
    plan = Plan(iterations=2, warmup=0, checks=1, mode="bounded", deadline="150ms", loss_columns=True)

    def peer(rank: int, op_seq: int, mine: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        # What the ranks tell one another (int32 tokens, counts, times) comes through, the timed op does not.
        return None if mine.dtype == np.float32 else mine

    with FakeDaemon(world_size=2, peer=peer) as daemon, daemon.connect(0, arena="1M") as job:
        row = Bench(job, plan, 4096).row(1024, "float", "sum")
    assert row.in_place.wrong is None and row.in_place.checked
    assert row.in_place.tail is not None and row.in_place.tail.loss_percent > 0
    assert perf_table.line(row).count("n/a") == 2


def test_perf__one_rank_prints_the_whole_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    output = tmp_path / "out.json"
    with FakeDaemon(world_size=1) as daemon, daemon.installed():
        arguments = ["perf", "-b", "1K", "-e", "4K", "-f", "2", "-n", "3", "-d", "all", "-o", "all", "-J", str(output)]
        result = runner.invoke(main.build(), arguments)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[lines.index(HEADER[0]) :][:3] == HEADER
    rows = [line.split() for line in lines if re.match(r"\s+\d", line)]
    assert len(rows) == 3 * 6 * 5
    assert all(len(row) == 13 and row[8] == row[12] == "0" for row in rows)
    assert {row[2] for row in rows} == set(perf_values.TYPES)
    assert lines[-1] == "# Collective test concluded: all_reduce_perf"
    facts = json.loads(output.read_text())
    assert [result["size"] for result in facts["results"][:3]] == [1024, 2048, 4096]
    assert facts["config"]["step_factor"] == 2


def test_perf__feedback_is_kept_from_op_to_op_and_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in place grow with each op, and so does what rounding leaves of them: the check must not see that."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    kept: list[float] = []
    reduce = Job.allreduce

    def watched(job: Job, array: Any, *args: Any, **said: Any) -> Any:
        receipt = reduce(job, array, *args, **said)
        if said.get("feedback") is not None:
            assert said["feedback"].shape == array.shape
            kept.append(float(np.abs(said["feedback"]).max()))
        return receipt

    monkeypatch.setattr(Job, "allreduce", watched)
    words = ["perf", "-b", "4K", "-n", "2", "-w", "0", "-c", "2", "--wire", "int4", "--feedback"]
    with FakeDaemon(world_size=1) as daemon, daemon.installed():
        result = runner.invoke(main.build(), words)
    assert result.exit_code == 0, result.output
    assert "# elements travel as int4, results as int4, with feedback; a dense op before each" in result.output
    assert len(kept) == 8 and all(kept), "two halves of two ops and two checks"


@pytest.mark.parametrize("alone", [False, True])
def test_row__dense_ops_take_turns_with_those_of_few_bits(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    called: list[tuple[str | None, float]] = []
    reduce = Job.allreduce

    def watched(job: Job, array: Any, *args: Any, **said: Any) -> Any:
        if array.size == 65536:
            called.append((said.get("wire"), float(array[0])))
        return reduce(job, array, *args, **said)

    monkeypatch.setattr(Job, "allreduce", watched)
    plan = Plan(3, 0, 1, "reliable", None, alone, wire="int8")
    with (
        FakeDaemon(world_size=2, peer=lambda rank, op_seq, mine: mine) as daemon,
        daemon.connect(0, arena="4M") as job,
    ):
        row = Bench(job, plan, 262144).row(65536, "float", "sum")
    given = perf_values.contribution(0, 2, 65536, "float", "sum")[0]
    assert called == 2 * [*3 * [(None, given), ("int8", given)], ("int8", given)], "and a check, of each half"
    for half in (row.out_of_place, row.in_place):
        assert half.dense is not None and half.dense.time_us > 0
        assert half.dense.time_ratio == pytest.approx(half.time_us / half.dense.time_us)
        assert 0.25 < half.dense.bytes_ratio < 0.27
    text = perf_table.line(row).split()
    assert len(text) == len(perf_table.header(alone, True).split("\n")[1].split()) - 1, "a name for each number"
    assert text[-1] == f"{row.in_place.dense.bytes_ratio:.3f}"  # type: ignore[union-attr]
    told = perf_table.to_json(perf_table.Report({}, [], rows=[row]), [])["results"][0]["in_place"]
    assert (told["time_to_dense"], told["bytes_to_dense"]) == (half.dense.time_ratio, half.dense.bytes_ratio)


def test_perf__wrong_values_are_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that brings zeros: the check must notice, or it checks nothing."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    peer = lambda rank, op_seq, mine: np.zeros_like(mine)  # noqa: E731
    with FakeDaemon(world_size=2, peer=peer) as daemon, daemon.installed():
        result = runner.invoke(main.build(), ["perf", "-b", "1K", "-n", "1", "--mode", "reliable"])
    assert result.exit_code == 1
    assert "# Out of bounds values : 2 FAILED" in result.stdout
    assert "2 measurements held wrong values" in result.stderr


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize(("wire", "answer"), [("int16", "int16"), ("int8", "int8"), ("int4", "int4"), ("int4", "int8")])
def test_slack__is_what_rounding_may_do_and_no_more_than_a_few_steps(wire: str, answer: str, op: str) -> None:
    """For three hosts, rounded by the daemon's kernels: nothing is beyond it, and an eighth of it is exceeded."""
    given = [perf_values.contribution(rank, 3, 4000, "float", op) for rank in range(3)]
    sums = sum(rounded(each, wire, Draws(1, rank)) for rank, each in enumerate(given))
    got = rounded(sums if op == "sum" else sums / np.float32(3), answer, Draws(1, answer=True))
    want, slack = perf_values.expected(3, 4000, "float", op), perf_values.slack(3, op, wire, answer)
    assert perf_values.wrong(got, want, slack) == 0 < perf_values.wrong(got, want, slack / 8)
    assert perf_values.wrong(np.full_like(got, np.nan), want, slack) == 4000


def test_perf__other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with FakeDaemon(world_size=2, peer=lambda rank, op_seq, mine: mine) as daemon, daemon.installed():
        result = runner.invoke(main.build(), ["perf", "-b", "1K", "-n", "1", "-c", "0"])
    assert result.exit_code == 0
    assert result.output == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-d", "float8"], "-d"),
        (["-o", "xor"], "-o"),
        (["-b", "2K", "-e", "1K"], "-e"),
        (["--deadline", "soon"], "--deadline"),
        (["-J", "/no/such/folder/x.json"], "-J"),
        (["--wire", "int3"], "--wire"),
        (["--answer", "int8"], "--answer"),
        (["--feedback"], "--feedback"),
        (["--wire", "int8", "--answer", "int4"], "--answer"),
        (["--wire", "int8", "-d", "double"], "-d"),
        (["--wire", "int8", "-o", "max"], "-o"),
    ],
)
def test_perf__names_the_flag_that_is_wrong(arguments: list[str], named: str) -> None:
    result = runner.invoke(main.build(), ["perf", *arguments])
    assert result.exit_code == 2
    assert named in result.stderr


def test_perf__no_daemon_is_exit_status_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMA_SOCKET", str(tmp_path / "none.sock"))
    result = runner.invoke(main.build(), ["perf", "-b", "1K"])
    assert result.exit_code == 3
    assert result.stderr.splitlines()[:-1] == [perf.ALONE], "one rank by itself is seldom what was meant"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    result = runner.invoke(main.build(), ["perf", "-b", "1K"])
    assert result.stderr.count("\n") == 1 and "`ultima run -- PROGRAM` starts" in result.stderr


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("--algorithm", "tree", "tar, ring, bcube, ps"),
        ("--congestion", "bbr", "swift, dctcp, timely, none"),
        ("--hadamard", "yes", "off, on, auto"),
        ("--incast", "99", "1 to 15"),
        ("--early-percent", "0", "1 to 100"),
        ("--t-b", "3 parsecs", "auto, off, or a duration"),
        ("--t-b", "0", "auto, off, or a duration"),
        ("--t-c", "-1ms", "auto, off, or a duration"),
        ("--delay-target", "off", "auto, or a duration"),
        ("--deadline", "300 m s", "ten years"),
        ("--deadline", "-1", "none"),
        ("--deadline", "1e400s", "ten years"),
        ("--mode", "lossy", "best_effort"),
    ],
)
def test_perf__a_bad_value_is_named_before_anything_is_sent(flag: str, value: str, allowed: str) -> None:
    with FakeDaemon() as daemon, daemon.installed():
        result = runner.invoke(main.build(), ["perf", "-b", "64", flag, value])
    assert result.exit_code == 2, result.output
    assert flag in result.output and value in result.output and allowed in result.output


def test_perf__json_has_options_percentiles_bytes_and_statuses(tmp_path: Path) -> None:
    out = tmp_path / "perf.json"
    words = ["perf", "-b", "4K", "-n", "30", "-w", "0", "-c", "0", "--loss-columns", "--agree", "--algorithm", "ps"]
    words += ["--incast", "1", "--t-b", "300ms", "--deadline", "2s", "-J", str(out)]
    with FakeDaemon(2, peer=lambda rank, op_seq, mine: mine) as daemon, daemon.installed():
        environment = {"RANK": "0", "WORLD_SIZE": "2"}
        result = runner.invoke(main.build(), words, env=environment)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    options = report["config"]["options"]
    assert (options["algorithm"], options["incast"], options["t_b"]) == ("ps", "1", "300ms")
    assert report["config"]["agree"] is True and report["config"]["deadline"] == "2s"
    row = report["results"][0]
    times = [row[name] for name in ("p50_us", "p90_us", "p99_us", "p99_9_us", "max_us")]
    assert times == sorted(times) and times[0] > 0 and row["in_place"]["max_us"] == row["max_us"]
    # The peer that nobody connected mirrors what it is given: counts over the ranks come out doubled.
    for half in (row["out_of_place"], row["in_place"]):
        assert half["bytes_missing"] == 0 and half["statuses"] == {"COMPLETE": 60, "PARTIAL": 0, "INSUFFICIENT": 0}


def test_quantile__of_a_tenth_of_a_percent() -> None:
    values = [float(number) for number in range(1, 2001)]
    assert [perf_table.quantile(values, percent) for percent in (50, 99, 99.9)] == [1000, 1980, 1998]
    assert perf_table.quantile([7.0], 99.9) == 7.0


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("insecure", "# peers: INSECURE, not authenticated (--insecure)\n"),
        ("certificates", "# peers: authenticated by certificates\n"),
        ("alone", ""),
        ("", ""),
    ],
)
def test_preamble__says_whether_peers_are_authenticated(mode: str, line: str) -> None:
    config = dict(
        step_factor=2, minimum_bytes=1, maximum_bytes=1, warmup_iters=1, iterations=1, validation=1, mode="bounded",
        deadline=None, agree=False, loss_columns=False, options={"algorithm": "tar"},
    )  # fmt: skip
    said = perf.preamble({**config, "authentication": mode}, []).replace(perf.preamble(config, []), "")
    assert ("# peers" in said) is bool(line) and line in said
