# SPDX-License-Identifier: Apache-2.0
"""The claims of eager-SGD, tested one by one: `make reproduce-eager`, four minutes.

    make reproduce-eager                      all studies; writes docs/reproduction/eager.md and its plots
    make reproduce-eager ARGS="--only speed"  some of them; writes to build/reproduction, the page is not touched

real starts eight daemons and eight trainers on this machine and wants it quiet. Exit status 0 when all studies ran,
whatever the verdicts.
"""

from __future__ import annotations

import sys

from tests.reproduce.eager import accuracy, real, skew, speed
from tests.reproduce.runner import reproduce

STUDIES = {
    "skew": skew.run,
    "simulator": skew.simulated,
    "speed": speed.run,
    "accuracy": accuracy.run,
    "real": real.run,
}

if __name__ == "__main__":
    sys.exit(reproduce("eager", "eager-SGD's claims", (__doc__ or "").splitlines()[0], STUDIES))
