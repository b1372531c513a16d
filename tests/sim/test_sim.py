# SPDX-License-Identifier: Apache-2.0
"""The simulator: whole clusters in virtual time around the same core objects as the UDP driver.

A seed is a world with its own hosts, links, jobs and faults; transport_c/sim says what is checked in each. Here the
worlds become tests: hundreds of them under sanitizers, every kind of fault really struck, the same seed gives the same
trace at every optimisation level, and a transfer keeps its performance floor. `test_mutants.py` shows that bugs are
found.

A failing seed prints `replay: ...`, which runs that world alone; add `--trace` for all its events.
"""

import json
import re
import subprocess
from datetime import date
from pathlib import Path

import pytest

from tests.making import BUILD, make

ROOT = Path(__file__).resolve().parents[2]
SLICED_SEEDS, FEW_FROM, FEW_SEEDS = 100, 9, 12
CANARY_SEEDS = 200
# So many under sanitizers, which take three times as long, and all in all.
SEEDS_CAREFUL, SEEDS, SEEDS_LONG = 240, 800, 5000
PARTIAL_SEEDS_CAREFUL, PARTIAL_SEEDS, PARTIAL_SEEDS_LONG = 80, 240, 5000
SPARSE_SEEDS_CAREFUL, SPARSE_SEEDS, SPARSE_SEEDS_LONG = 30, 120, 2000
QUANT_SEEDS_CAREFUL, QUANT_SEEDS, QUANT_SEEDS_LONG = 10, 70, 2000
PARTIAL_QUANT_CAREFUL, PARTIAL_QUANT_SEEDS = 10, 100
CODED_SEEDS, LINEAR_SEEDS, CODED_SEEDS_LONG, CODED_LIARS = 120, 60, 600, 40
TREE_SEEDS = 200
SEATS_SEEDS_CAREFUL, SEATS_SEEDS = 10, 100
MOVING_SEEDS_CAREFUL, MOVING_SEEDS = 10, 70
FAR_SEEDS_CAREFUL, FAR_SEEDS = 8, 40
FRESH = {"--partial": 1000, "--sparse": 500, "--coded": 1000, "--linear": 1000, "--tree": 1000, "--hostile": 400,
         "--coded --hostile": 250, "--linear --hostile": 250, "--partial --hostile": 100,
         "--sparse --hostile": 100, "--quant": 500, "--quant --hostile": 100, "--partial --quant": 500,
         "--seats": 500, "--moving": 500, "--far": 500, "--far --hostile": 200, "--far --quant": 200}  # fmt: skip
# Worlds that miss what is asked, and are looked for to do so: seed and oracle, by the words that choose their kind.
KNOWN: dict[tuple[str, ...], dict[str, str]] = {}
# Whichever test comes first builds the simulator.
pytestmark = pytest.mark.timeout(600)
# Worlds that once showed a bug, and which. A change of plan.c draws other worlds for them.
ONCE_FAILED = {
    "194": "what was taken for lost had only been late, so that its repair used credit twice, and a probe had none",
    "600": "an op that nobody could make room for stayed in the ring past its deadline",
    "1527": "two hosts died, one came back, and who saw it kept the other one among the owners",
    "2417": "a host four ops ahead forgot a shard that a slower one was still getting",
    "3911": "an op waited without end for the masks of a host that thought all was said",
    "4128": "as 2417, by a feedback that overtook the data",
    "4265": "a host that had been cut off took another out of the owners; the oracle gave them no ops to agree again",
    "5942": "a late answer of a daemon that had died brought its host back to life; a real daemon waits for none",
    "3701 --partial": "what a host did not give was missing, for the others had taken it out of the owners",
    "207006 --coded": "a host that left out steps took the place of a result that another one was still getting",
    "420025 --partial": "an op of the calm had the microseconds of a contribution that was left long before",
    "135 --coded --hostile": "who came back began where its former life had lied that the job was",
    "567012 --coded --hostile": "as 135",
    "800187 --seats": "each op was kept for a newcomer that was no member yet, and the op four numbers later waited",
    "910020835": "two epochs came before an op that others had opened under an earlier one: nothing of it came",
    "910021460 --moving": "a host that had slept was asked each half second for its new address, and ops took 2.5 s",
    "920010398 --moving": "a rank whose calls were refused came four ops ahead, into the place of an op to come",
    "950111131 --moving": "an address that had been left again was asked three times, then nothing for a second: 1.9 s",
    "950011926 --moving": "a data port that only received had moved, and its host's feedback did not tell: 1.5 s",
    "950030550 --partial": "a host was to have ranks ready for an op that its earlier life had started",
    "910040596 --coded": "hosts that ran an op under two epochs were to have the same estimate",
    "910051760 --linear": "hosts that failed at a step in turn used its 1,023 attempts in a minute, not in a day",
    "910020396": "an expected time was set by hand, a hundredth of what a stage took, and ended it",
    "950111096 --moving": "as 910020396",
    "950060034 --far": "as 910020396",
    "940000147 --hostile": "in the calm ops were held back for an epoch before all hosts knew the one before it",
    "960101276 --hostile": "a host that lied gave Inf, which the transform spread; nobody else had given any",
    "800056 --partial --hostile": "29 hosts whose secrets change every few ms had all events of a world for that alone",
}


def built(target: str) -> list[Path]:
    """Builds a program of transport_c/Makefile."""
    make(target)
    return [BUILD / target]


def run(program: Path, *arguments: str | int, seconds: int = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=seconds, cwd=ROOT)


def hold(program: Path, *which: str, first: int = 1, count: int, seconds: int = 600) -> dict[str, int]:
    """Runs |count| worlds from |first| on; all must hold, but those in KNOWN. Returns how often each kind of thing was
    met."""
    result = run(program, *which, "--from", first, "--count", count, "--jobs", 2, seconds=seconds)
    of_kind = KNOWN.get(tuple(sorted(which)), {})
    known = [(seed, oracle) for seed, oracle in of_kind.items() if first <= int(seed) < first + count]
    assert re.findall(r"^FAILED seed (\d+): oracle (\w+ \w+)", result.stdout, re.MULTILINE) == known, told(result)
    assert result.returncode == bool(known), told(result)
    assert f"{count} seeds, {len(known)} failed, " in result.stdout
    return numbers(r"^cover (\w+) (\d+)$", result.stdout)


def hold_some_carefully(*which: str, careful: int, count: int) -> dict[str, int]:
    """As hold, of |count| worlds, the first |careful| of them under sanitizers."""
    (watched,), (plain,) = built("sim-asan"), built("sim")
    first = hold(watched, *which, count=careful)
    rest = hold(plain, *which, first=careful + 1, count=count - careful)
    return {name: times + rest[name] for name, times in first.items()}


def told(result: subprocess.CompletedProcess[str]) -> str:
    """The end of what a run printed: the failure, its last events, and the replay command."""
    return f"exit status {result.returncode}\n{result.stdout[-8000:]}\n{result.stderr[-8000:]}"


def numbers(pattern: str, text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(pattern, text, re.MULTILINE)}


def test_selftest() -> None:
    """The judge first: random numbers, the heap, the fingerprints, the network alone."""
    (program,) = built("sim")
    result = run(program, "--selftest")
    assert result.returncode == 0, told(result)
    assert result.stdout.endswith("selftest: 0 failures\n")


@pytest.mark.parametrize(
    "which",
    [
        "",
        "--partial",
        "--coded",
        "--linear",
        "--tree",
        "--sparse",
        "--quant",
        "--seats",
        "--moving",
        "--partial --quant",
        "--hostile",
        "--far",
    ],
)
def test_seeds__a_few_hold(which: str) -> None:
    """The rest, under sanitizers, sliced and with planted bugs, is for `make check`. None of these takes a second."""
    (program,) = built("sim")
    result = run(program, *which.split(), "--from", FEW_FROM, "--count", FEW_SEEDS, "--jobs", 2, seconds=100)
    assert result.returncode == 0, told(result)
    assert f"{FEW_SEEDS} seeds, 0 failed, " in result.stdout


@pytest.mark.parametrize("which", ["--coded", "--tree"])
def test_seeds__a_leap_of_thousands_of_steps_loses_no_data(which: str) -> None:
    """Data tells half of its op's number: after such a leap that of the new op seems to be of one that is over."""
    (program,) = built("sim")
    result = run(program, which, "--from", 210021, "--count", 1)
    assert "1 seeds, 0 failed, " in result.stdout, told(result)


@pytest.mark.parametrize("hosts, loss_ppm", [(11, 0), pytest.param(64, 0, marks=pytest.mark.check), (40, 20000)])
def test_study__any_number_of_hosts_up_to_the_core_s_can_be_told_apart(hosts: int, loss_ppm: int) -> None:
    """Float32 has no room for so many ranks in one element: the elements of a packet take turns to tell of them."""
    (program,) = built("sim")
    result = run(program, "--study", f"hosts={hosts}", "bytes=65536", "ops=2", f"loss_ppm={loss_ppm}", "mode=2")
    assert result.returncode == 0, told(result)
    study = json.loads(result.stdout)
    assert study["failure"] == ""
    receipts = [host for op in study["ops"] for host in op["hosts"]]
    assert len(receipts) == 2 * hosts
    assert (study["lost"] > 0) == (loss_ppm > 0)
    assert loss_ppm > 0 or {receipt["status"] for receipt in receipts} == {1}


@pytest.mark.check
def test_moving__a_peer_is_followed_and_no_thief_is() -> None:
    """Addresses change in the middle of ops, and somebody has copies of a host's packets there before they come."""
    struck = hold_some_carefully("--moving", careful=MOVING_SEEDS_CAREFUL, count=MOVING_SEEDS)
    assert [name for name, times in struck.items() if times == 0] == []


@pytest.mark.check
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["", "--partial", "--coded", "--sparse", "--quant", "--hostile", "--moving"])
def test_far__packets_are_made_of_parity_and_all_hold(which: str) -> None:
    """The same worlds with milliseconds between hosts: what was made of parity comes too, or is repaired, all the same,
    and a host that lies of its parity spoils no result but its own."""
    met = hold_some_carefully("--far", *which.split(), careful=FAR_SEEDS_CAREFUL, count=FAR_SEEDS)
    of_kind = {"": ["came_too", "late_too"], "--hostile": ["parity_lied"]}
    names = ["parity_sent", "parity_came", "rebuilt", *of_kind.get(which, [])]
    assert all(met[name] for name in names), {name: met[name] for name in names}


@pytest.mark.check
@pytest.mark.timeout(900)
def test_seeds__all_hold_and_every_fault_strikes() -> None:
    struck = hold_some_carefully(careful=SEEDS_CAREFUL, count=SEEDS)
    assert len(struck) > 60
    assert [name for name, times in struck.items() if times == 0] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_seeds__thousands_all_hold() -> None:
    """Those beyond the first ones, at full speed."""
    (program,) = built("sim")
    hold(program, first=SEEDS + 1, count=SEEDS_LONG - SEEDS, seconds=880)


@pytest.mark.check
@pytest.mark.timeout(900)
def test_partial__seeds_all_hold_and_everything_is_met() -> None:
    """Worlds with partial jobs: policies, slots, controllers, trainers that are slow, gone or never call."""
    met = hold_some_carefully("--partial", careful=PARTIAL_SEEDS_CAREFUL, count=PARTIAL_SEEDS)
    assert len(met) > 40
    assert [name for name, times in met.items() if times == 0] == []


@pytest.mark.check
@pytest.mark.timeout(900)
def test_partial__gifts_in_few_bits_all_hold() -> None:
    """The same worlds, where sums are read after rounding: in forms and of digits whose error is below one third."""
    hold_some_carefully("--partial", "--quant", careful=PARTIAL_QUANT_CAREFUL, count=PARTIAL_QUANT_SEEDS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_partial__thousands_all_hold() -> None:
    (program,) = built("sim")
    hold(program, "--partial", first=PARTIAL_SEEDS + 1, count=PARTIAL_SEEDS_LONG - PARTIAL_SEEDS, seconds=880)


@pytest.mark.check
@pytest.mark.timeout(900)
def test_sparse__seeds_under_sanitizers_all_hold_and_most_is_met() -> None:
    """Worlds with sparse allreduces: each granule says which ranks are in it. Few, for each entry is looked at; hosts
    that are gone for long are met in more of them, without sanitizers."""
    met = hold_some_carefully("--sparse", careful=SPARSE_SEEDS_CAREFUL, count=SPARSE_SEEDS)
    assert len(met) > 35
    assert {name for name, times in met.items() if times == 0} <= {"desync", "owner_gone", "late"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_sparse__thousands_all_hold_and_everything_is_met() -> None:
    (program,) = built("sim")
    met = hold(program, "--sparse", count=SPARSE_SEEDS_LONG, seconds=880)
    assert [name for name, times in met.items() if times == 0] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_sparse__every_pass_over_a_bucket_may_be_cut_anywhere() -> None:
    (program,) = built("sim-sliced")
    hold(program, "--sparse", count=SLICED_SEEDS, seconds=880)


@pytest.mark.check
@pytest.mark.timeout(900)
def test_seats__seeds_all_hold_and_everything_is_met() -> None:
    """Worlds whose hosts leave, vanish, come late and take a seat that another one had: who is in a result had a seat
    in the epoch that its receipt names, and who is not may be missing but is never wrong."""
    met = hold_some_carefully("--seats", careful=SEATS_SEEDS_CAREFUL, count=SEATS_SEEDS)
    assert len(met) == 13 and all(met.values()), met


@pytest.mark.check
@pytest.mark.timeout(900)
def test_quant__seeds_all_hold_and_most_is_met() -> None:
    """Worlds with quantised allreduces: each slot is, to the bit, what its owner makes of the ranks that it shows."""
    met = hold_some_carefully("--quant", careful=QUANT_SEEDS_CAREFUL, count=QUANT_SEEDS)
    assert len(met) > 20
    assert {name for name, times in met.items() if times == 0} <= {"desync", "late"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_quant__thousands_all_hold_and_everything_is_met() -> None:
    (program,) = built("sim")
    met = hold(program, "--quant", count=QUANT_SEEDS_LONG, seconds=880)
    assert [name for name, times in met.items() if times == 0] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_quant__every_pass_over_a_bucket_may_be_cut_anywhere() -> None:
    (program,) = built("sim-sliced")
    hold(program, "--quant", count=SLICED_SEEDS, seconds=880)


@pytest.mark.check
@pytest.mark.timeout(900)
def test_coded__seeds_all_hold_and_everything_is_met() -> None:
    """Worlds with a coded job: ranks that stall, that die with or without the others of their group, that come back
    with an old step. Sums are exact whenever they can be, and are never said to be where they are not."""
    (program,) = built("sim")
    met = hold(program, "--coded", count=CODED_SEEDS)
    assert len(met) > 20
    assert [name for name, times in met.items() if times == 0] == ["honest_again"], "that is of worlds with a liar"


@pytest.mark.check
@pytest.mark.timeout(900)
def test_coded__among_liars_all_hold() -> None:
    """One host lies. The others keep their deadlines, books and shards; once it is honest again each rank comes to a
    result, and sums that are said to be exact hold one contribution of each group."""
    (program,) = built("sim")
    for which in ("--coded", "--linear"):
        met = hold(program, which, "--hostile", first=9, count=CODED_LIARS)  # 7 and 8 are as long as all of these
        assert met["honest_again"] > CODED_LIARS


@pytest.mark.parametrize("which, seed", [("--coded", 12), ("--coded", 26), ("--coded", 71), ("--linear", 3)])
def test_coded__a_lie_ends_with_the_liar(which: str, seed: int) -> None:
    """The steps that a host of two told of, which nobody has come to, once outlived it: all others were behind for
    good. And of three hosts the only other one that was left was not believed."""
    (program,) = built("sim")
    result = run(program, which, "--hostile", "--seed", seed)
    assert result.returncode == 0, told(result)


def test_coded__a_host_of_which_nothing_is_needed_is_waited_for() -> None:
    """World 26 has more hosts than elements: punctual ones that own nothing once missed the results of steps."""
    (program,) = built("sim")
    result = run(program, "--coded", "--seed", 26)
    assert result.returncode == 0, told(result)


@pytest.mark.check
def test_coded__seeds_with_linear_codes_all_hold() -> None:
    """The same worlds where any n - s hosts have the sum: it is what it should be, by value."""
    (program,) = built("sim")
    met = hold(program, "--linear", count=LINEAR_SEEDS)
    assert all(met[name] for name in ("exact", "late", "unused", "redundant", "timeout", "absent", "behind", "joined"))


@pytest.mark.check
def test_coded__seeds_with_trees_all_hold() -> None:
    """The same worlds where the coded job is a tree, with groups or with a linear code."""
    (program,) = built("sim")
    met = hold(program, "--tree", count=TREE_SEEDS)
    names = ("exact", "late", "unused", "redundant", "timeout", "absent", "behind", "joined", "calm_without_hosts")
    assert all(met[name] for name in names)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["--coded", "--linear"])
def test_coded__more_all_hold(which: str) -> None:
    (program,) = built("sim")
    hold(program, which, first=CODED_SEEDS + 1, count=CODED_SEEDS_LONG - CODED_SEEDS, seconds=880)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", FRESH)
def test_fresh__worlds_that_nobody_has_drawn(which: str) -> None:
    """Others each day, for the tests above always draw the same; what fails prints its replay."""
    (program,) = built("sim")
    hold(program, *which.split(), first=1000 * date.today().toordinal(), count=FRESH[which], seconds=880)


@pytest.mark.parametrize("ranks, step_us, ops", [
    (8, 10000, 250), *(pytest.param(*each, marks=pytest.mark.check) for each in ((8, 10000, 1000), (32, 1000, 64))),
])  # fmt: skip
def test_skew__who_waits_for_whom(ranks: int, step_us: int, ops: int) -> None:
    """Claim E1: what each policy makes a rank wait, and how many are active. The majority's rank is drawn."""
    (program,) = built("sim")
    result = run(program, "--skew", f"ranks={ranks}", f"step_us={step_us}", f"ops={ops}")
    assert result.returncode == 0, told(result)
    study = json.loads(result.stdout)
    assert study["failure"] == ""
    policies, ratio, expected = study["policies"], study["ratio"], study["expected"]
    assert {row["answered"] for row in policies.values()} == {ops * ranks}
    assert {row["complete"] for row in policies.values()} == {ops}
    assert policies["full"]["latency_ms"] == pytest.approx(expected["full_ms"], rel=0.05)
    assert policies["majority"]["latency_ms"] == pytest.approx(expected["majority_ms"], rel=2 / ops**0.5)
    spread = 1 + 2 / ops**0.5  # of the mean over so many draws
    assert 2.2 <= ratio["majority"] <= spread * expected["ratio_majority"]
    assert ratio["solo"] >= 20
    assert policies["full"]["active"] == ranks
    assert policies["solo"]["active"] <= 1.5
    assert abs(policies["majority"]["active"] - expected["active_majority"]) <= expected["active_tolerance"]
    assert policies["quorum"]["active"] == ranks // 2


@pytest.mark.check
@pytest.mark.parametrize("which", ["", "--partial"])
def test_sliced__every_pass_over_a_bucket_may_be_cut_anywhere(which: str) -> None:
    """Turns so small (core/base/work.h) that ops open and end in many of them, with packets and deaths in between."""
    (program,) = built("sim-sliced")
    result = run(program, *which.split(), "--from", 1, "--count", SLICED_SEEDS, "--jobs", 2, seconds=250)
    assert result.returncode == 0, told(result)
    assert f"{SLICED_SEEDS} seeds, 0 failed, " in result.stdout


@pytest.mark.check
@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_seed__that_once_failed(seed: str) -> None:
    (program,) = built("sim-asan")
    result = run(program, "--seed", *seed.split())
    assert result.returncode == 0, f"{ONCE_FAILED[seed]}\n{told(result)}"


def hashes(target: str, count: int) -> list[tuple[str, str]]:
    """Of |count| worlds from 1001 on: the world, and the hash of its trace."""
    (program,) = built(target)
    result = run(program, "--from", 1001, "--count", count, "--hash")
    assert result.returncode == 0, told(result)
    return re.findall(r"^hash (\d+) ([0-9a-f]{16})$", result.stdout, re.MULTILINE)


def test_hash__is_the_same_at_each_run() -> None:
    """A core that read a clock, or memory of its own, would show here."""
    first = hashes("sim", 6)
    assert len(first) == 6
    assert len({value for _, value in first}) == 6, "a hash that does not depend on the world proves nothing"
    assert first == hashes("sim", 6)


@pytest.mark.check
def test_hash__is_the_same_at_every_optimisation_level() -> None:
    """So would the order of a float."""
    first = hashes("sim", 24)
    assert len({value for _, value in first}) == 24
    assert first == hashes("sim-O0", 24)
    assert first == hashes("sim", 24)


def test_failure__prints_a_replay_that_fails_alike() -> None:
    make("build/canary-double_fold")
    canary = BUILD / "canary-double_fold"
    result = run(canary, "--from", 1, "--count", CANARY_SEEDS, "--stop")
    failure = re.search(r"^FAILED seed (\d+): (.*)$", result.stdout, re.MULTILINE)
    assert failure is not None, told(result)
    assert re.match(r"oracle O\d+ \w+, host \d+, at [\d.]+ us: ", failure[2]), failure[2]
    assert f"\nreplay: {canary} --seed {failure[1]}\n" in result.stdout
    shown = re.findall(r"^ *\d+\.\d{3} us  \w+ +h\d+", result.stdout, re.MULTILINE)
    assert len(shown) >= 20, "the last events are shown"
    again = run(canary, "--seed", failure[1], "--trace")
    assert again.returncode == 1
    assert failure[0] in again.stdout
    assert len(again.stdout) > len(result.stdout)


@pytest.mark.check
def test_performance__stays_near_the_wire() -> None:
    """25 MB among four hosts at 1 Gbit/s, in virtual time: 1.35, 1.5 and 2 times the bound at 0, 1 and 5 % loss."""
    (program,) = built("sim")
    result = run(program, "--perf")
    assert result.returncode == 0, told(result)
    ratios = [float(ratio) for ratio in re.findall(r"ratio ([0-9.]+), missing 0 bytes", result.stdout)]
    assert len(ratios) == 9, told(result)
    assert min(ratios) >= 1.0, "faster than the wire: the simulated link or the bound is wrong"


@pytest.mark.check
@pytest.mark.parametrize("seed", [1, 2])
def test_blame__who_is_in_trouble_is_named_by_all(seed: int) -> None:
    """A slow link, a late and a paused sender, a slow receiver, a dead host: each host names it, and what it has. (Not
    in all worlds: of 17, one has a slow receiver so far behind that the others lack most of each other's data.)"""
    (program,) = built("sim")
    result = run(program, "--blame", "--seed", seed)
    assert result.returncode == 0, told(result)
    assert result.stdout.endswith("blame: 0 worlds judged wrongly\n")
    named = re.findall(r"^blame ([\w ]+): host \d says host (-?\d), (\w+);", result.stdout, re.MULTILINE)
    assert {(world, what) for world, host, what in named if host == "2"} >= {
        ("link at a quarter", "path"),
        ("submitted late", "sender"),
        ("paused", "sender"),
        ("too slow for its socket", "receiver"),
        ("dead", "gone"),
    }
    assert [host for world, host, _ in named if world == "healthy"] == ["-1"] * 4


@pytest.mark.parametrize(
    "arguments",
    [
        ["--frobnicate"],
        ["--seed"],
        ["--seed", "x"],
        ["--count", ""],
        ["--hosts", "65"],
        ["--coded", "--partial"],
    ],
)
def test_command_line__wrong_use_is_status_2(arguments: list[str]) -> None:
    (program,) = built("sim")
    result = run(program, *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("sim: ")
