# SPDX-License-Identifier: Apache-2.0
"""Ultima beside Gloo, in one lab and in turn: every table with its criteria, a JSON file, and plots.

    make bench                              all tables but two, about 35 minutes, root, a quiet machine
    make bench ARGS="--only loss slow"      some of them
    make bench ARGS="--only fairness"       a small job beside one that asks for all it can
    make bench ARGS="--only quantised"      elements of few bits; 15 minutes
    make bench ARGS="--only wan"            hosts that are apart; an hour, of which Gloo over cubic takes most
    make bench ARGS=--quick                 a smoke of about three minutes; its verdicts mean little
    make bench-long                         2000 ops of Ultima's a case and 300 of Gloo's, for tails; hours
    make bench-long ARGS="--only loss --case '25 MB, 1 %'"  one case of it

Exit status: 0 when the run went through and all that came out complete was right, whatever the verdicts.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.bench import plots, report
from tests.bench.studies import CASED, LENGTHY, LONG, QUICK, STUDIES, Effort, Table
from tests.lab.lab import unavailable


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(STUDIES), metavar="TABLE",
                        default=[name for name in STUDIES if name not in LENGTHY],
                        help=f"of {', '.join(STUDIES)}; without it all but {', '.join(LENGTHY)}")  # fmt: skip
    parser.add_argument(
        "--case", nargs="+", default=(), metavar="PART",
        help=f"of the tables {' and '.join(CASED)}: cases with one of these in their names",
    )  # fmt: skip
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="a smoke: few ops, fewer cases")
    effort.add_argument("--long", action="store_true", help="2000 ops of Ultima's a case, 300 of Gloo's")
    parser.add_argument("--json", type=Path, default=report.ROOT / "build/bench", metavar="FOLDER")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="where --json goes by default")
    options = parser.parse_args()
    if options.case and not set(options.only) <= set(CASED):
        parser.error(f"--case is for --only {' or '.join(CASED)}, not for {' '.join(options.only)}")
    for part in options.case:
        names = [name for table in options.only for name in CASED[table]]
        if not any(part in name for name in names):
            parser.error(f"--case {part!r}: in the name of no case; they are {'; '.join(names)}")
    return options


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that every context is left: labs, daemons and flows go with it.
    raise KeyboardInterrupt


def run(names: list[str], effort: Effort, console: Console) -> list[Table]:
    """Measures the named tables and shows each when it is done. A table that breaks off does not end the others."""
    tables = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    for name in names:
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            task = progress.add_task(name)

            def note(text: str, name: str = name, progress: Progress = progress, task: object = task) -> None:
                progress.update(task, description=f"{name}: {text}")  # type: ignore[arg-type]

            try:
                table = STUDIES[name](effort, note)
            except (RuntimeError, OSError) as error:
                console.print(f"[red]{name}: {error}[/]")
                continue
        tables.append(table)
        report.show(console, table)
    return tables


def main() -> int:
    options = _parse()
    reason = unavailable()
    if reason is not None:
        print(f"bench: {reason}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _interrupted)
    # A table that is cut off is of no use in a log.
    console = Console() if sys.stdout.isatty() else Console(width=150)
    effort = replace(QUICK if options.quick else LONG if options.long else Effort(), only=tuple(options.case))
    facts = report.machine()
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()))
    try:
        tables = run(options.only, effort, console)
    except KeyboardInterrupt:
        print("bench: interrupted; the lab is gone", file=sys.stderr)
        return 130
    counted = report.verdicts(tables)
    console.print(", ".join(f"{count} {name}" for name, count in counted.items()))
    console.print(f"Figures: {report.write_json(tables, facts, options.json)}")
    stamp = f"{facts['date']}, {facts['commit']}, {facts['cores']} cores of {facts['cpu']}"
    for path in plots.draw(tables, options.plots or options.json, stamp):
        console.print(f"Plot: {path}")
    wrong = sum(one.wrong for table in tables for found in table.cases.values() for one in found.values())
    return 1 if wrong or len(tables) < len(options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
