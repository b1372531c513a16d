# SPDX-License-Identifier: Apache-2.0
"""The claims of RNA, tested one by one: `make reproduce-rna`, three minutes.

    make reproduce-rna                       all studies; writes docs/reproduction/rna.md and its plots
    make reproduce-rna ARGS="--only probes"  some of them; writes to build/reproduction, the page is not touched

real and cost start eight daemons on this machine and want it quiet. Exit status 0 when all studies
ran, whatever the verdicts.
"""

from __future__ import annotations

import sys

from tests.reproduce.rna import accuracy, cost, probes, real, speed
from tests.reproduce.runner import reproduce

STUDIES = {
    "probes": probes.run,
    "speed": speed.run,
    "accuracy": accuracy.run,
    "real": real.run,
    "cost": cost.run,
}

if __name__ == "__main__":
    sys.exit(reproduce("rna", "RNA's claims", (__doc__ or "").splitlines()[0], STUDIES))
