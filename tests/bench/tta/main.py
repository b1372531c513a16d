# SPDX-License-Identifier: Apache-2.0
"""Time to accuracy beside Gloo: LeNet-5 and a CNN of 25 MB on Fashion-MNIST, four ranks on four hosts, bad networks.

    make tta                                all of it, 30 to 40 minutes, root, a quiet machine
    make tta ARGS=--quick                   a look of about four minutes; its verdicts mean little
    make tta ARGS=--sparse                  sparse gradients beside dense ones at 100 Mbit/s, ten minutes
    make tta ARGS=--quantised               gradients in few bits beside dense ones and Gloo, without loss
    make tta ARGS="--redraw FILE.json"      table, criteria and plot again from a run's figures

Exit status: 0 when all trainings came to their end, whatever the verdicts.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.bench import report as bench_report
from tests.bench.tta import report
from tests.bench.tta.study import DEFAULT, FEW_BITS, LONG, QUICK, SPARSER, Bench, Plan, Study
from tests.lab.lab import unavailable
from ultima.demo.data import fashion_folder

BUILD = bench_report.ROOT / "build/bench"
PLOTS = bench_report.ROOT / "docs/plots"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make tta ARGS=...", description=(__doc__ or "").splitlines()[0])
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="a look: few steps, two networks, one seed")
    effort.add_argument("--long", action="store_true", help="five times the steps")
    effort.add_argument("--sparse", action="store_true", help="sparse gradients beside dense ones at 100 Mbit/s")
    effort.add_argument("--quantised", action="store_true", help="gradients in 8 and 4 bits beside dense ones")
    effort.add_argument("--redraw", type=Path, metavar="JSON", help="measure nothing: show a run's figures again")
    parser.add_argument("--json", type=Path, default=BUILD, metavar="FOLDER")
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="docs/plots by default; of a part of it build/bench"
    )
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> Plan:
    if options.sparse:
        return SPARSER
    if options.quantised:
        return FEW_BITS
    return QUICK if options.quick else LONG if options.long else DEFAULT


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that every context is left: lab, daemons and ranks go with it.
    raise KeyboardInterrupt


def measure(plan: Plan, console: Console) -> Study:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("starting")

        def note(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:  # half an hour without a word looks like a hang
                print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

        return Bench(plan, note).run()


def main() -> int:
    options = _parse()
    console = Console() if sys.stdout.isatty() else Console(width=150)
    if options.redraw is not None:
        study, machine = report.load(options.redraw)
    else:
        reason = unavailable() or (None if fashion_folder() else "Fashion-MNIST is not installed: .ci/dataset")
        if reason is not None:
            print(f"tta: {reason}", file=sys.stderr)
            return 1
        signal.signal(signal.SIGTERM, _interrupted)
        machine = bench_report.machine()
        try:
            study = measure(_plan(options), console)
        except KeyboardInterrupt:
            print("tta: interrupted; the lab is gone", file=sys.stderr)
            return 130
        path = options.json / f"tta-{time.strftime('%Y%m%d-%H%M%S')}.json"
        console.print(f"Figures: {report.save(study, machine, path)}")
    report.show(console, study)
    folder = options.plots or (BUILD if options.quick or options.sparse or options.quantised else PLOTS)
    stamp = f"{machine['date']}, {machine['commit']}, {machine['cores']} cores of {machine['cpu']}"
    if study.runs:
        console.print(f"Plot: {report.draw(study, folder / 'tta.png', stamp)}")
    return 1 if study.failures or not study.runs else 0


if __name__ == "__main__":
    sys.exit(main())
