# SPDX-License-Identifier: Apache-2.0
"""A peer that lies, in the simulator: worlds in each of which one host's packets are authentic and say what is not so.

sim/world/liar.c has what it lies about, check.c (O16) what must be true of the others all the same. Mutants show that
this would be found (sim/mutants/hostile_*.patch): in one core what a host told of a coded job's steps outlives it.
"""

import re

import pytest

from tests.sim.test_sim import built, numbers, run, told

SEEDS, SEEDS_LONG = 40, 2000
# Worlds that once showed a bug, and which. A change of plan.c draws other worlds for them.
ONCE_FAILED = {
    59: "one number of a feedback, nearly 2^32, and no later one of that sealed path could be opened",
    101124: "two ops had gathered when a hold ended, and the second did not open",
}


@pytest.mark.check
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["ordinary", "partial"])
def test_liar__honest_hosts_keep_their_shards_and_end_in_time(kind: str) -> None:
    """No crash under sanitizers, no op beyond its deadline, no honest host out of the owners, all well afterwards."""
    (program,) = built("sim-asan")
    worlds = ["--hostile", *(["--partial"] if kind == "partial" else [])]
    result = run(program, *worlds, "--from", 1, "--count", SEEDS, "--jobs", 2, seconds=500)
    assert result.returncode == 0, told(result)
    assert f"{SEEDS} seeds, 0 failed, " in result.stdout
    struck = numbers(r"^cover (\w+) (\d+)$", result.stdout)
    assert struck["hostile"] > SEEDS * 3 // 4
    assert struck["lie"] > 10 * SEEDS
    assert struck["path_renewed"] > 0
    assert kind != "ordinary" or struck["lie_sealed"] > SEEDS  # some of them have keys, and lie under a true seal


@pytest.mark.check
@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_liar__worlds_that_once_failed_hold(seed: int) -> None:
    (program,) = built("sim")
    result = run(program, "--hostile", "--seed", seed)
    assert result.returncode == 0, told(result)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["ordinary", "partial", "sparse"])
def test_liar__thousands_all_hold(kind: str) -> None:
    (program,) = built("sim")
    worlds = ["--hostile", *([] if kind == "ordinary" else [f"--{kind}"])]
    result = run(program, *worlds, "--from", SEEDS + 1, "--count", SEEDS_LONG - SEEDS, "--jobs", 2, seconds=880)
    assert result.returncode == 0, told(result)
    assert f"{SEEDS_LONG - SEEDS} seeds, 0 failed, " in result.stdout


@pytest.mark.check
@pytest.mark.timeout(300)
def test_liar__lies_alike_at_every_optimisation_level() -> None:
    """A world that lies otherwise in another build could not be replayed."""
    hashes = []
    for target in ("sim", "sim-asan"):
        (program,) = built(target)
        result = run(program, "--hostile", "--from", 1, "--count", 12, "--hash")
        assert result.returncode == 0, told(result)
        hashes.append(re.findall(r"^hash (\d+) ([0-9a-f]{16})$", result.stdout, re.MULTILINE))
    assert len(hashes[0]) == 12
    assert hashes[0] == hashes[1]
