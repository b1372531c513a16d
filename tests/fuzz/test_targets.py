# SPDX-License-Identifier: Apache-2.0
"""The C parsers under libFuzzer: every file of the kept corpora, and for `make check` some thousands of mutations more.

A target that fails leaves its input in a file, whose name is in the message; `build/fuzz_NAME FILE` runs it again.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.making import BUILD, make

HERE = Path(__file__).parent
TARGETS = {
    "address": 400_000,
    "arena": 800,
    "block": 60_000,
    "blocks": 300,
    "engine": 1_500,
    "entries": 4_000,
    "packets": 400_000,
    "pieces": 20_000,
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=scratch)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr[-6000:]}"
    return done.stderr


@pytest.mark.parametrize("name", TARGETS)
def test_target__finds_nothing(name: str, tmp_path: Path) -> None:
    """New inputs go to a folder of the test's own; ULTIMA_SEED=N replays, ULTIMA_FUZZ_RUNS=N runs longer."""
    runs = os.environ.get("ULTIMA_FUZZ_RUNS", str(TARGETS[name]))
    seed = os.environ.get("ULTIMA_SEED", "1")
    found = tmp_path / "found"
    found.mkdir()
    corpus = HERE / "corpus" / name
    assert any(corpus.iterdir())
    told = fuzz(name, tmp_path, f"-runs={runs}", f"-seed={seed}", str(found), str(corpus))
    done = re.search(r"Done (\d+) runs", told)
    assert done and int(done[1]) >= int(runs)


def test_targets__all_have_a_corpus() -> None:
    names = {path.stem.removeprefix("fuzz_") for path in (HERE / "targets").glob("fuzz_*.c")}
    assert names == set(TARGETS) == {path.name for path in (HERE / "corpus").iterdir()}


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
    names = {o.name for o in parses}
    wanted = [str(o) for o in (*parses, *(o for o in (BUILD / "sim.o.d/kernels").glob("*.o") if o.name not in names))]
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
