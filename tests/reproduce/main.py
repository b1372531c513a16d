# SPDX-License-Identifier: Apache-2.0
"""The claims of the papers, tested one by one, and a page for each paper.

    make reproduce-rna                       all studies; writes docs/reproduction/rna.md and its plots
    make reproduce-rna ARGS="--only probes"  some of them; writes to build/reproduction, the page is not touched

PAPERS names the papers and their studies. Most are arithmetic or virtual time. Those named `real` and `cost` start up
to 13 daemons and trainers on this machine, `table1` and `transfer` make a lab of namespaces (root): these want a quiet
machine. The exit status is 0 when all studies ran, whatever the verdicts.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.bench.report import machine
from tests.reproduce import report
from tests.reproduce.study import ROOT, Study


@dataclass(frozen=True)
class Paper:
    """`studies`: modules in the folder of the paper, each with a function `run`. They are imported only when they run,
    since some import a lot.
    """

    title: str
    takes: str
    studies: Sequence[str]


PAPERS = {
    "ultima": Paper("ULTIMA's own claims", "3 minutes", ("table1", "mse", "incast", "timeouts", "hadamard")),
    "eager": Paper("eager-SGD's claims", "4 minutes", ("skew", "simulator", "speed", "accuracy", "real")),
    "rna": Paper("RNA's claims", "3 minutes", ("probes", "speed", "accuracy", "real", "cost")),
    "deepreduce": Paper("DeepReduce's claims", "3 minutes", ("volume", "filters", "fits", "learning", "transfer")),
    "coded": Paper("CodedReduce's claims", "4 minutes", ("loads", "patterns", "speed", "learning", "stalls", "real")),
}


def study_of(paper: str, name: str) -> Callable[[], Study]:
    run: Callable[[], Study] = import_module(f"tests.reproduce.{paper}.{name}").run
    return run


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that the lab is left, and with it all that runs there.
    raise KeyboardInterrupt


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.reproduce.main", description=(__doc__ or "").splitlines()[0])
    papers = parser.add_subparsers(dest="paper", required=True, metavar="PAPER")
    for name, paper in PAPERS.items():
        one = papers.add_parser(name, help=f"{paper.title}, {paper.takes}", prog=f"make reproduce-{name} ARGS=...")
        one.add_argument(
            "--only", nargs="+", choices=paper.studies, metavar="STUDY", help=f"of {', '.join(paper.studies)}"
        )
        one.add_argument(
            "--out", type=Path, metavar="FOLDER", help="docs/reproduction; of some studies build/reproduction"
        )
    return parser.parse_args(arguments)


def show(study: Study, seconds: float) -> None:
    print(f"== {study.title} ({seconds:.0f} s)")
    for grid in study.grids:
        print(report.plain(grid))
    for row in study.rows:
        print(f"{row.verdict:>10}  {row.claim}: {row.ours}  [{row.criterion}; paper: {row.paper}]")
    print(flush=True)


def run(name: str, chosen: Sequence[str]) -> list[Study] | None:
    """The studies of a paper that could be run; None when somebody interrupted them."""
    studies = []
    for each in chosen:
        begun = time.monotonic()
        try:
            study = study_of(name, each)()
        except KeyboardInterrupt:
            print("reproduce: interrupted; what it had built is gone", file=sys.stderr)
            return None
        except (RuntimeError, OSError) as error:
            print(f"{each}: {error}", file=sys.stderr)
            continue
        studies.append(study)
        show(study, time.monotonic() - begun)
    return studies


def main(arguments: Sequence[str]) -> int:
    asked = _parse(arguments)
    name, paper = asked.paper, PAPERS[asked.paper]
    signal.signal(signal.SIGTERM, _interrupted)
    facts = machine()
    chosen = asked.only or paper.studies
    studies = run(name, chosen)
    if studies is None:
        return 130
    folder = asked.out or ROOT / ("build/reproduction" if asked.only else "docs/reproduction")
    folder.mkdir(parents=True, exist_ok=True)
    command = f"make reproduce-{name}" + (f' ARGS="--only {" ".join(asked.only)}"' if asked.only else "")
    (folder / f"{name}.md").write_text(report.page(studies, facts, command, paper.title))
    figures = [{"name": study.name, "rows": [vars(row) for row in study.rows]} for study in studies]
    (folder / f"{name}.json").write_text(json.dumps({"machine": facts, "studies": figures}, indent=1) + "\n")
    for study in studies:
        for plot in study.plots:
            report.draw(plot, folder)
    print(f"Written: {folder / name}.md")
    return 0 if len(studies) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
