# SPDX-License-Identifier: Apache-2.0
"""The C parsers under libFuzzer: every file of the kept corpora, and mutations of them.

`make check` runs so many of each target that all take about as long, some seconds; `make check FUZZ_SECONDS=60` runs
each for a minute, and `make test-long` does so too.

A target that fails leaves its input in a file, whose name is in the message; `build/fuzz_NAME FILE` runs it again.
"""

from __future__ import annotations

import os
import re
import subprocess
from datetime import date
from pathlib import Path

import pytest

from tests.dissector.golden import PACKETS
from tests.making import BUILD, make

HERE = Path(__file__).parent
LONG_SECONDS = 60
TARGETS = {
    "address": 400_000,
    "arena": 800,
    "block": 60_000,
    "blocks": 300,
    "engine": 1_500,
    "entries": 4_000,
    "packets": 400_000,
    "parity": 100_000,
    "pieces": 20_000,
    "quant": 40_000,
    "ring": 1_500,
    "sparse": 60_000,
}
pytestmark = [pytest.mark.check, pytest.mark.timeout(600)]


def fuzz(name: str, scratch: Path, *flags: str) -> str:
    """Runs a target, and returns what it says."""
    make(f"build/fuzz_{name}")
    # By allocations: what the kernel calls the most resident memory may be that of the process that forked.
    limits = ["-timeout=20", "-rss_limit_mb=0", "-malloc_limit_mb=2048"]
    command = [BUILD / f"fuzz_{name}", f"-artifact_prefix={scratch}/", *limits, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=scratch)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr[-6000:]}"
    return done.stderr


def finds_nothing(name: str, scratch: Path, runs: int, seconds: int, seed: int) -> None:
    """Runs a target so many times, or for so many seconds if they are not 0. New inputs go to a folder in |scratch|."""
    found = scratch / "found"
    found.mkdir()
    corpus = HERE / "corpus" / name
    assert any(corpus.iterdir())
    bound = f"-max_total_time={seconds}" if seconds else f"-runs={runs}"
    told = fuzz(name, scratch, bound, f"-seed={seed}", str(found), str(corpus))
    done = re.search(r"Done (\d+) runs in (\d+) second", told)
    assert done, told[-2000:]
    assert int(done[2]) >= seconds if seconds else int(done[1]) >= runs


@pytest.mark.parametrize("name", TARGETS)
def test_target__finds_nothing(name: str, tmp_path: Path) -> None:
    """ULTIMA_SEED=N replays; ULTIMA_FUZZ_RUNS=N or ULTIMA_FUZZ_SECONDS=N, up to 400, runs longer."""
    runs = int(os.environ.get("ULTIMA_FUZZ_RUNS") or TARGETS[name])
    seconds = int(os.environ.get("ULTIMA_FUZZ_SECONDS") or 0)
    finds_nothing(name, tmp_path, runs, seconds, int(os.environ.get("ULTIMA_SEED", "1")))


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_target__finds_nothing_in_a_minute(name: str, tmp_path: Path) -> None:
    """Each day begins elsewhere; the seed is printed."""
    seed = int(os.environ.get("ULTIMA_SEED") or date.today().toordinal())
    print(f"ULTIMA_SEED={seed}")
    finds_nothing(name, tmp_path, 0, LONG_SECONDS, seed)


def test_targets__all_have_a_corpus() -> None:
    names = {path.stem.removeprefix("fuzz_") for path in (HERE / "targets").glob("fuzz_*.c")}
    assert names == set(TARGETS) == {path.name for path in (HERE / "corpus").iterdir()}


def test_corpus__has_the_golden_packets() -> None:
    """Of another version of the wire the decoders would read a byte of each."""
    corpus = HERE / "corpus/packets"
    golden = {packet.name: packet.bytes() for packet in PACKETS}
    assert {path.name: path.read_bytes() for path in corpus.iterdir() if "__" in path.name} == golden


def test_target__sees_a_planted_bug(tmp_path: Path) -> None:
    """A fuzzer that finds nothing may see nothing: without the decoder's check of the length it reads too far."""
    found = tmp_path / "found"  # the first folder is the one that a fuzzer writes to
    found.mkdir()
    source = (HERE.parents[1] / "transport_c/core/wire/packets.c").read_text()
    planted = source.replace("len < least[kind]", "len < 1")
    assert planted != source
    (tmp_path / "packets.c").write_text(planted)
    make("build/fuzz_packets")
    parses = [o for o in (BUILD / "fuzz.o.d").rglob("*.o") if o.name != "packets.o"]
    fuzzed = {o.relative_to(BUILD / "fuzz.o.d").as_posix() for o in parses}
    kernels = [o for o in (BUILD / "sim.o.d/kernels").glob("*.o") if f"kernels/{o.name}" not in fuzzed]
    wanted = [str(o) for o in (*parses, *kernels)]
    root = HERE.parents[1] / "transport_c"
    command = ["clang", "-std=gnu11", "-w", "-g", "-O1", "-fsanitize=fuzzer,address,undefined", f"-I{root}"]
    command += [f"-I{HERE / 'targets'}", str(HERE / "targets/fuzz_packets.c"), str(tmp_path / "packets.c"), *wanted]
    subprocess.run([*command, "-o", str(tmp_path / "fuzz"), "-lm"], check=True, timeout=120)
    done = subprocess.run(
        [
            tmp_path / "fuzz",
            "-runs=200000",
            "-seed=1",
            f"-artifact_prefix={tmp_path}/",
            str(found),
            str(HERE / "corpus/packets"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0 and "SUMMARY: " in done.stderr, done.stderr[-2000:]
