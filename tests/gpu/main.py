# SPDX-License-Identifier: Apache-2.0
"""`make gpu`: what only an accelerator can say, on one GPU, within five minutes. Prints a table and writes JSON.

    make gpu                         two daemons and two ranks on the first CUDA device, then the tests marked `gpu`
    make gpu ARGS=--fake             the same checks on the CPU, with a stand-in for the device
    make gpu ARGS="--only ddp fsdp"

The status is 0 when all was right, 1 when something was not, and 3 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ultima.demo.cluster import Cluster
from ultima.launch.processes import dies_with_parent, free_port

ROOT = Path(__file__).resolve().parents[2]
WORLD = 2
NO_GPU = 3
CHECKS = ("pinning", "values", "staging", "streams", "between", "collectives", "ddp", "selection", "fsdp")
TESTS = "tests"  # those marked `gpu`, by pytest
# All of it within five minutes: what has not begun by then is not begun.
LIMIT_S = 280.0
CHECK_S = 60.0
TESTS_S = 120.0
# What a rank says beside figures.
WORDS = {"check", "rank", "ok", "seconds", "wrong", "trace"}
OUTPUT_CHARACTERS = 20_000  # of what pytest or a rank prints, in the JSON


@dataclass
class Row:
    """What became of one check. |said|: the lines of its ranks. |output|: all that was printed, where that helps."""

    name: str
    ok: bool = False
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    said: list[dict[str, Any]] = field(default_factory=list)
    output: list[str] = field(default_factory=list)

    def figures(self) -> str:
        """Rank 0's."""
        first = next((said for said in self.said if said.get("rank") == 0), {})
        return ", ".join(f"{name} {value}" for name, value in first.items() if name not in WORDS)


def run_checks(names: list[str], fake: bool, until: float) -> list[Row]:
    """Runs these in as few pairs of ranks as can be: after one that failed a new pair goes on with the next."""
    rows: list[Row] = []
    with Cluster() as cluster:
        cluster.start_daemons(WORLD)
        while names:
            if time.monotonic() > until:
                return [*rows, *(Row(name, wrong=["there was no time left"]) for name in names)]
            found = _pair(names, fake, cluster, until)
            rows += found
            names = names[len(found) :]
    return rows


def _pair(names: list[str], fake: bool, cluster: Cluster, until: float) -> list[Row]:
    """Rows up to the first check that failed; at least one."""
    port = free_port()
    logs, processes = [], []
    for rank in range(WORLD):
        log = cluster.folder / f"rank{rank}.log"
        variables = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1" if fake else "4",
            "PYTHONFAULTHANDLER": "1",
            "ULTIMA_SOCKET": str(cluster.sockets[rank]),
        }
        command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.checks", *["--fake"] * fake, *names]
        with log.open("wb") as file:
            processes.append(
                subprocess.Popen(dies_with_parent(command), cwd=ROOT, env=variables, stdout=file, stderr=file)
            )
        logs.append(log)
    rows: list[Row] = []
    changed = time.monotonic()
    try:
        while len(rows) < len(names):
            ended = all(process.poll() is not None for process in processes)  # before the last look at what they said
            said = [line for log in logs for line in _lines(log) if line["check"] == names[len(rows)]]
            if len(said) == WORLD or any(not line["ok"] for line in said):
                rows.append(_row(names[len(rows)], said))
                changed = time.monotonic()
                if not rows[-1].ok:
                    break
            elif ended or time.monotonic() - changed > CHECK_S or time.monotonic() > until:
                how = "its ranks ended" if ended else "it did not end in time"
                printed = [bounded(log.read_text(errors="replace")) for log in logs]
                last = "; ".join(text.strip()[-300:] for text in printed)
                rows.append(Row(names[len(rows)], wrong=[f"{how}: {last}"], said=said, output=printed))
                break
            else:
                time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return rows


def _lines(log: Path) -> list[dict[str, Any]]:
    found = []
    for line in log.read_text(errors="replace").split("\n")[:-1]:
        if line.startswith('{"check"'):
            found.append(json.loads(line))
    return found


def _row(name: str, said: list[dict[str, Any]]) -> Row:
    wrong = [f"rank {line['rank']}: {text}" for line in said for text in line["wrong"]]
    ok = len(said) == WORLD and not wrong
    return Row(name, ok, wrong, max(line["seconds"] for line in said), said)


def run_tests(fake: bool, until: float) -> Row:
    """The tests marked `gpu`. Without one all of them skip, which says that they are still found."""
    started, row = time.monotonic(), Row(TESTS)
    # Settings of its own: the project's ask for plugins that these tests do not need.
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    command += ["-c", str(ROOT / "tests/gpu/pytest.ini"), "tests/torch/backend/test_staging.py"]
    command += ["tests/torch/hooks/test_hadamard.py", "tests/torch/sparse/test_device.py"]
    wide = {**os.environ, "COLUMNS": "500"}  # pytest cuts its summary's lines there
    try:
        limit = max(1.0, min(TESTS_S, until - time.monotonic()))
        done = subprocess.run(command, cwd=ROOT, env=wide, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as error:
        row.wrong.append("they did not end in time")
        row.output = [bounded(_text(error.stdout)), bounded(_text(error.stderr))]
        return row
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    row.seconds = round(time.monotonic() - started, 1)
    row.said = [{"rank": 0, **counts}]
    row.ok = done.returncode == 0 and counts.get("skipped" if fake else "passed", 0) > 0 and set(counts) != {"error"}
    if not fake and counts.get("skipped"):
        row.ok = False
    row.output = [bounded(done.stdout), bounded(done.stderr)]
    if not row.ok:
        row.wrong += first_failure(done.stdout) or [(done.stdout + done.stderr).strip()[-600:]]
    return row


def first_failure(printed: str) -> list[str]:
    """The first of the tests that pytest's summary calls failed, with its message; nothing where there is none."""
    failed = [line for line in printed.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [f"first of {len(failed)}: {failed[0]}"] if failed else []


def bounded(text: str) -> str:
    """|text|; of a long one the beginning and the end."""
    half = OUTPUT_CHARACTERS // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n[{len(text) - 2 * half} characters]\n{text[-half:]}"


def _text(printed: str | bytes | None) -> str:
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""


def release_note(version: str) -> str:
    """What is to be said of torch |version|: nothing if it is one of those that were tested."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        from ultima.torch.tested import NEWEST, OLDEST, warn_of  # the package warns, too, when it is first imported

        told.clear()
        warn_of(version)
    return f"torch {version} is outside {OLDEST} to {NEWEST}, with which Ultima is tested" if told else ""


def show(rows: list[Row], device: str, console: Console) -> None:
    if note := release_note(torch.__version__):
        console.print(note, markup=False, highlight=False)
    table = Table(title=f"{device}, torch {torch.__version__}")
    for column in ("check", "", "seconds", "figures of rank 0"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row.name, "ok" if row.ok else "WRONG", f"{row.seconds:g}", row.figures() or "-")
    console.print(table)
    for row in rows:
        for text in row.wrong:
            console.print(f"{row.name}: {text}", markup=False, highlight=False)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--fake", action="store_true", help="on the CPU, with a stand-in for the device")
    parser.add_argument("--only", nargs="+", choices=[*CHECKS, TESTS], metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--json", type=Path, default=Path("build/gpu.json"), help="where the figures go")
    asked = parser.parse_args(arguments)
    if not asked.fake and not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} sees no CUDA device; `make gpu ARGS=--fake` runs on the CPU")
        return NO_GPU
    until = time.monotonic() + LIMIT_S
    names = asked.only or [*CHECKS, TESTS]
    device = "a stand-in for a device" if asked.fake else torch.cuda.get_device_name(0)
    rows = run_checks([name for name in CHECKS if name in names], asked.fake, until)
    rows += [run_tests(asked.fake, until)] if TESTS in names else []
    show(rows, device, Console(width=120 if not sys.stdout.isatty() else None))
    note = release_note(torch.__version__)
    told = {"device": device, "torch": torch.__version__, "note": note, "ok": all(row.ok for row in rows)}
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps({**told, "checks": [vars(row) for row in rows]}, indent=1) + "\n")
    print(f"{sum(row.ok for row in rows)} of {len(rows)} right; {asked.json} has the figures")
    return 0 if told["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
