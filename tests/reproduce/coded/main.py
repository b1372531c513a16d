# SPDX-License-Identifier: Apache-2.0
"""The claims of CodedReduce, tested one by one: `make reproduce-coded`, four minutes.

    make reproduce-coded                      all studies; writes docs/reproduction/coded.md and its plots
    make reproduce-coded ARGS="--only speed"  some of them; writes to build/reproduction, the page is not touched

All but real is arithmetic or virtual time. real starts 13 daemons, whose trainers sleep in place of computing, so that
a busy machine changes little. Exit status 0 when all studies ran, whatever the verdicts.
"""

from __future__ import annotations

import sys

from tests.reproduce.coded import learning, loads, patterns, real, speed, stalls
from tests.reproduce.runner import reproduce

STUDIES = {
    "loads": loads.run,
    "patterns": patterns.run,
    "speed": speed.run,
    "learning": learning.run,
    "stalls": stalls.run,
    "real": real.run,
}

if __name__ == "__main__":
    sys.exit(reproduce("coded", "CodedReduce's claims", (__doc__ or "").splitlines()[0], STUDIES))
