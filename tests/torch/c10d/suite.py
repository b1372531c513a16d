# SPDX-License-Identifier: Apache-2.0
"""Torch's own c10d suite on the backend "ultima", beside Gloo.

python -m tests.torch.c10d.suite            # fails where Gloo passes and Ultima does not; writes the page in docs/
python -m tests.torch.c10d.suite -k gather  # only what has this in its name, and writes nothing
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ultima.demo.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "docs" / "torch_compliance.md"
# Enough for the suite's groups [1, 2], its subgroups of two, and its trees of three levels.
WORLD = 4

# Tests that Gloo passes and Ultima is not asked to, and why.
MONITORED = "torch refuses a monitored barrier to every backend not called gloo"
EXEMPT = {
    "test_monitored_barrier_failure_order": MONITORED,
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": MONITORED,
    "test_monitored_barrier_gloo_subgroup": MONITORED,
    "test_monitored_barrier_wait_all_ranks": MONITORED,
}
# Asked of Ultima whatever Gloo says: Gloo has no all-to-all of a list of tensors on the CPU.
BEYOND_GLOO = "test_all_to_all"


@dataclass(frozen=True)
class Result:
    """What became of one test: "passed", "skipped" or "failed", and why it was not passed."""

    outcome: str
    reason: str
    seconds: float


class RankServer:
    """A process that runs tests of the suite on fresh ranks; a context manager. Gloo needs no |sockets| of daemons."""

    def __init__(self, backend: str, sockets: Sequence[Path] = (), world: int = WORLD, test_s: float = 60) -> None:
        environment = {
            **os.environ,
            "BACKEND": "gloo",
            "WORLD_SIZE": str(world),
            "RANK_SOCKETS": json.dumps([str(path) for path in sockets]),
            "TEST_S": str(test_s),
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "ULTIMA_MODE": "reliable",
            "PYTHONWARNINGS": "ignore",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torch.c10d.ranks", backend],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tests: dict[str, str | None] = self._answer()
        """Every test of the suite, and why it is skipped on any rank; None where it is not."""

    def run(self, name: str) -> Result:
        reason = self.tests[name]
        if reason is not None:
            return Result("skipped", reason, 0.0)
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        found = self._answer()
        return Result(found["outcome"], found["reason"], found["seconds"])

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the rank server ended with {self._process.wait()}"
        return json.loads(line)

    def __enter__(self) -> RankServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def compare(
    gloo: RankServer, ultima: RankServer, names: Sequence[str], progress: bool = False
) -> dict[str, tuple[Result, Result | None]]:
    """Each test by Gloo and, where Gloo passes and none is exempt, by Ultima."""
    found: dict[str, tuple[Result, Result | None]] = {}
    for number, name in enumerate(names, 1):
        theirs = gloo.run(name)
        asked = theirs.outcome == "passed" or (theirs.outcome == "failed" and name.startswith(BEYOND_GLOO))
        mine = ultima.run(name) if asked and name not in EXEMPT else None
        found[name] = theirs, mine
        if progress and theirs.outcome != "skipped":
            said = f"{mine.outcome} {mine.seconds:.1f} s" if mine else "-"
            print(f"{number} {name}: gloo {theirs.outcome} {theirs.seconds:.1f} s, ultima {said}", flush=True)
            if mine and mine.outcome != "passed":
                print(mine.reason, flush=True)
    return found


def table(found: dict[str, tuple[Result, Result | None]]) -> str:
    """The page docs/torch_compliance.md."""
    ran = [mine for theirs, mine in found.values() if theirs.outcome == "passed"]
    passed = sum(mine is not None and mine.outcome == "passed" for mine in ran)
    beyond = sum(mine is not None and mine.outcome == "passed" for _, mine in found.values()) - passed
    lines = [
        "# Torch's own tests on the backend Ultima",
        "",
        "`make torch-compliance` writes this page. It runs the tests of the installed torch",
        f"(`torch.testing._internal.distributed.distributed_test`) on {WORLD} ranks on the CPU, each with a daemon of",
        "its own on loopback, in reliable mode: every test that Gloo passes there, and the all-to-all ones. What else",
        "Gloo skips or fails is not asked of Ultima.",
        "",
        f"**Of the {len(ran)} tests that Gloo passes, Ultima passes {passed}**, and {beyond} more that Gloo fails. The",
        f"suite has {len(found)}.",
        "",
        "The last column is the number of the reason in the list below the table.",
        "",
        "| test | gloo | ultima | reason |",
        "|---|---|---|---|",
    ]
    reasons: list[str] = []
    for name, (theirs, mine) in found.items():
        if mine is not None:
            reason = "" if mine.outcome == "passed" else mine.reason
        else:
            reason = theirs.reason if theirs.outcome != "passed" else EXEMPT[name]
        said = _last_line(reason)
        if said and said not in reasons:
            reasons.append(said)
        number = str(reasons.index(said) + 1) if said else ""
        lines.append(f"| {name} | {theirs.outcome} | {mine.outcome if mine else 'not run'} | {number} |")
    lines += ["", *(_item(f"{number}. ", reason) for number, reason in enumerate(reasons, 1))]
    return "\n".join(lines) + "\n"


def _last_line(reason: str) -> str:
    return reason.strip().splitlines()[-1][:160] if reason.strip() else ""


def _item(mark: str, text: str) -> str:
    """An item of a list, in lines that a document may have."""
    return textwrap.fill(
        text,
        120,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="only tests with this in their name; writes no page")
    parser.add_argument("--daemons", type=int, default=WORLD, help="hosts that the ranks share; writes no page")
    arguments = parser.parse_args()
    started = time.monotonic()
    with Cluster() as cluster:
        cluster.start_daemons(arguments.daemons)
        with RankServer("gloo") as gloo, RankServer("ultima", cluster.sockets) as ultima:
            names = [name for name in gloo.tests if arguments.k in name]
            found = compare(gloo, ultima, names, progress=True)
    if not arguments.k and arguments.daemons == WORLD:
        TABLE.write_text(table(found))
    failed = [name for name, (_, mine) in found.items() if mine is not None and mine.outcome != "passed"]
    print(f"{time.monotonic() - started:.0f} s; failed: {', '.join(failed) or 'none'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
