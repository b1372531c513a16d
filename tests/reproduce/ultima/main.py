# SPDX-License-Identifier: Apache-2.0
"""The claims of the paper behind Ultima, tested one by one: `make reproduce-ultima`, at most 25 minutes.

    make reproduce-ultima                        all studies; writes docs/reproduction/ultima.md and its plots
    make reproduce-ultima ARGS="--only table1"   some of them; writes to build/reproduction, the page is not touched

table1 needs root (namespaces) and a quiet machine; the others do not. Exit status 0 when all studies ran, whatever
the verdicts.
"""

from __future__ import annotations

import sys

from tests.reproduce.runner import reproduce
from tests.reproduce.ultima import hadamard, incast, mse, table1, timeouts

STUDIES = {
    "table1": table1.run,
    "mse": mse.run,
    "incast": incast.run,
    "timeouts": timeouts.run,
    "hadamard": hadamard.run,
}

if __name__ == "__main__":
    sys.exit(reproduce("ultima", "ULTIMA's own claims", (__doc__ or "").splitlines()[0], STUDIES))
