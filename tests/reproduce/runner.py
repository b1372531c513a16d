# SPDX-License-Identifier: Apache-2.0
"""Runs the studies of one paper and writes its page: what the `make reproduce-...` verbs have in common."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.bench.report import machine
from tests.reproduce.ultima import report
from tests.reproduce.ultima.study import ROOT, Study


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that the lab is left, and with it all that runs there.
    raise KeyboardInterrupt


def _parse(verb: str, about: str, names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"make {verb} ARGS=...", description=about)
    parser.add_argument("--only", nargs="+", choices=names, metavar="STUDY", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="docs/reproduction; of some studies build/reproduction"
    )
    return parser.parse_args()


def show(study: Study, seconds: float) -> None:
    print(f"== {study.title} ({seconds:.0f} s)")
    for grid in study.grids:
        print(report.plain(grid))
    for row in study.rows:
        print(f"{row.verdict:>10}  {row.claim}: {row.ours}  [{row.criterion}; paper: {row.paper}]")
    print(flush=True)


def reproduce(paper: str, title: str, about: str, known: Mapping[str, Callable[[], Study]]) -> int:
    """Runs what the command line asks for of the studies |known| and writes |paper|.md, .json and the plots.

    Returns the exit status: 0 when all of them ran, whatever the verdicts.
    """
    verb = f"reproduce-{paper}"
    options = _parse(verb, about, list(known))
    signal.signal(signal.SIGTERM, _interrupted)
    facts = machine()
    studies: list[Study] = []
    for name in options.only or known:
        begun = time.monotonic()
        try:
            study = known[name]()
        except KeyboardInterrupt:
            print("reproduce: interrupted; what it had built is gone", file=sys.stderr)
            return 130
        except (RuntimeError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        studies.append(study)
        show(study, time.monotonic() - begun)
    folder = options.out or ROOT / ("build/reproduction" if options.only else "docs/reproduction")
    folder.mkdir(parents=True, exist_ok=True)
    command = f"make {verb}" + (f' ARGS="--only {" ".join(options.only)}"' if options.only else "")
    (folder / f"{paper}.md").write_text(report.page(studies, facts, command, title))
    figures = [{"name": study.name, "rows": [vars(row) for row in study.rows]} for study in studies]
    (folder / f"{paper}.json").write_text(json.dumps({"machine": facts, "studies": figures}, indent=1) + "\n")
    for study in studies:
        for plot in study.plots:
            report.draw(plot, folder)
    print(f"Written: {folder / paper}.md")
    return 0 if len(studies) == len(options.only or known) else 1
