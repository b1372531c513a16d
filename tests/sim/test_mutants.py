# SPDX-License-Identifier: Apache-2.0
"""Mutants: bugs that the tests must find. Each is a patch in transport_c/sim/mutants, which `make canary` applies to a
copy of the files it touches; its first lines say what is wrong, in which worlds that shows, and what must find it.

    Worlds: plain, or the simulator's options for the kind of worlds, or `matrix`, or `none`
    Found by: an oracle, or an assert of the core; of `matrix` the row that must fail; of `none` a unit test

`make -C transport_c mutant NAME=...` opens one that no longer applies.
"""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.making import BUILD, TRANSPORT, make
from tests.sim.test_sim import run, told

FOLDER = TRANSPORT / "sim/mutants"
SEEDS = {"plain": 200, "--hostile": 200, "--partial": 1000, "--sparse": 100, "--quant": 100, "--seats": 100,
         "--coded": 100, "--tree": 100, "--coded --hostile": 100, "--coded --hosts 8": 100,
         "--partial --quant": 200, "--moving": 100}  # fmt: skip
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Mutant:
    name: str
    bug: str
    worlds: str
    found_by: str
    hunks: list[tuple[str, str]]  # file, and the lines there that the patch expects

    @property
    def program(self) -> Path:
        return BUILD / f"canary-{self.name}"


def read(path: Path) -> Mutant:
    head, *files = re.split(r"^--- a/", path.read_text(), flags=re.MULTILINE)
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    hunks = []
    for file in files:
        name, _, rest = file.partition("\n")
        for hunk in re.split(r"^@@ .*\n", rest, flags=re.MULTILINE)[1:]:
            kept = [line[1:] for line in hunk.splitlines(keepends=True) if not line.startswith("+")]
            hunks.append((name, "".join(kept)))
    return Mutant(path.stem, facts["Bug"], facts["Worlds"], facts["Found by"], hunks)


MUTANTS = [read(path) for path in sorted(FOLDER.glob("*.patch"))]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant__applies_at_one_place_and_says_what_finds_it(mutant: Mutant) -> None:
    """With one line of context a patch may fit twice, and then it would be another bug."""
    assert mutant.bug and mutant.hunks
    assert mutant.worlds in {*SEEDS, "matrix", "matrix --far", "none"}
    assert re.match(r"O\d+ |receipt$|assert$|hosts=|test_", mutant.found_by)
    for file, lines in mutant.hunks:
        times = (TRANSPORT / file).read_text().count(lines)
        assert times == 1, f"fits {times} times into {file}: make -C transport_c mutant NAME={mutant.name}"


def edit(name: str, *files: str) -> str:
    done = subprocess.run(
        ["make", "-s", "-C", TRANSPORT, "mutant", f"NAME={name}", f"FILES={' '.join(files)}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_mutant__is_opened_and_written_anew() -> None:
    """A new one, twice: what comes out is the patch that was asked for, and it applies."""
    name, path = "of_a_test", FOLDER / "of_a_test.patch"
    copy = BUILD / "edit" / name / "core/base/err.c"
    try:
        assert f"build/edit/{name}/core/base/err.c" in edit(name, "core/base/err.c")
        copy.write_text(copy.read_text().replace("#include", "/* a bug */\n#include", 1))
        assert "is written" in edit(name) and not copy.exists()
        assert read(path).worlds == "plain" and path.read_text().count("\n+") == 2
        edit(name)
        assert "/* a bug */" in copy.read_text()
        copy.write_text(copy.read_text().replace("a bug", "another"))
        edit(name)
        assert "+/* another */\n" in path.read_text()
        path.write_text(path.read_text().replace("#include", "#exclude"))
        apply = ["sim/mutants/mutant.sh", "apply", name, BUILD / "edit" / name]
        done = subprocess.run(apply, capture_output=True, text=True, timeout=60, cwd=TRANSPORT)
        assert done.returncode == 1 and f"mutant {name} no longer applies" in done.stderr
    finally:
        path.unlink(missing_ok=True)
        subprocess.run(["rm", "-rf", BUILD / "edit" / name], check=True, timeout=60)


def sings(mutant: Mutant) -> None:
    """Raises AssertionError if what must find |mutant| does not; others may come upon it earlier."""
    if mutant.worlds == "none":
        assert run(mutant.program).returncode == 1, f"{mutant.found_by} does not find {mutant.name}"
        return
    seeds, first, found = SEEDS[mutant.worlds], 1, ""
    worlds, asserts = mutant.worlds.replace("plain", "").split(), mutant.found_by == "assert"
    finding = "the process ended with signal 6" if asserts else f"oracle {mutant.found_by},"
    while not found.startswith(finding):
        assert first <= seeds, f"{mutant.name} was never found by {mutant.found_by}"
        result = run(mutant.program, *worlds, "--from", first, "--count", seeds + 1 - first, "--stop", seconds=500)
        assert result.returncode == 1, f"{mutant.name} sang {seeds} worlds long\n{told(result)}"
        failure = re.search(r"^FAILED seed (\d+): (.*)$", result.stdout, re.MULTILINE)
        assert failure is not None, told(result)
        first, found = int(failure[1]) + 1, failure[2]
        assert not asserts or "Assertion" in result.stderr


@pytest.mark.check
def test_mutants__each_is_found() -> None:
    """A simulator that finds nothing in a broken core would find nothing in ours."""
    make("canary")
    mutants = [mutant for mutant in MUTANTS if not mutant.worlds.startswith("matrix")]  # those are test_judge's
    assert len(mutants) > 40
    with ThreadPoolExecutor(2) as pool:  # each looks at one world after the other, on one core
        assert len(list(pool.map(sings, mutants))) == len(mutants)
