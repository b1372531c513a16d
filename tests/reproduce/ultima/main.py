# SPDX-License-Identifier: Apache-2.0
"""The claims of the paper behind Ultima, tested one by one: `make reproduce-ultima`, at most 25 minutes.

    make reproduce-ultima                        all studies; writes docs/reproduction/ultima.md and its plots
    make reproduce-ultima ARGS="--only table1"   some of them; writes to build/reproduction, the page is not touched

table1 needs root (namespaces) and a quiet machine; the others do not. Exit status 0 when all studies ran, whatever
the verdicts.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.bench.report import machine
from tests.reproduce.ultima import hadamard, incast, mse, report, table1, timeouts
from tests.reproduce.ultima.study import ROOT, Study

STUDIES: dict[str, Callable[[], Study]] = {
    "table1": table1.run,
    "mse": mse.run,
    "incast": incast.run,
    "timeouts": timeouts.run,
    "hadamard": hadamard.run,
}


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that the lab is left, and with it all that runs there.
    raise KeyboardInterrupt


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make reproduce-ultima ARGS=...", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(STUDIES), metavar="STUDY", help=f"of {', '.join(STUDIES)}")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="docs/reproduction; of some studies build/reproduction"
    )
    return parser.parse_args()


def main() -> int:
    options = _parse()
    signal.signal(signal.SIGTERM, _interrupted)
    facts = machine()
    studies: list[Study] = []
    for name in options.only or STUDIES:
        begun = time.monotonic()
        try:
            study = STUDIES[name]()
        except KeyboardInterrupt:
            print("reproduce: interrupted; what it had built is gone", file=sys.stderr)
            return 130
        except (RuntimeError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        studies.append(study)
        print(f"== {study.title} ({time.monotonic() - begun:.0f} s)")
        for grid in study.grids:
            print(report.plain(grid))
        for row in study.rows:
            print(f"{row.verdict:>10}  {row.claim}: {row.ours}  [{row.criterion}; paper: {row.paper}]")
        print(flush=True)
    folder = options.out or ROOT / ("build/reproduction" if options.only else "docs/reproduction")
    folder.mkdir(parents=True, exist_ok=True)
    command = "make reproduce-ultima" + (f' ARGS="--only {" ".join(options.only)}"' if options.only else "")
    (folder / "ultima.md").write_text(report.page(studies, facts, command))
    figures = [{"name": study.name, "rows": [vars(row) for row in study.rows]} for study in studies]
    (folder / "ultima.json").write_text(json.dumps({"machine": facts, "studies": figures}, indent=1) + "\n")
    for study in studies:
        for plot in study.plots:
            report.draw(plot, folder)
    print(f"Written: {folder / 'ultima.md'}")
    return 0 if len(studies) == len(options.only or STUDIES) else 1


if __name__ == "__main__":
    sys.exit(main())
