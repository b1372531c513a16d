# SPDX-License-Identifier: Apache-2.0
"""The claims of DeepReduce, tested one by one: `make reproduce-deepreduce`, three minutes.

    make reproduce-deepreduce                       all studies; writes docs/reproduction/deepreduce.md and its plots
    make reproduce-deepreduce ARGS="--only volume"  some of them; writes to build/reproduction, the page is not touched

transfer needs root and a quiet machine. Exit status 0 when all studies ran, whatever the verdicts.
"""

from __future__ import annotations

import sys

from tests.reproduce.deepreduce import filters, fits, learning, transfer, volume
from tests.reproduce.runner import reproduce

STUDIES = {
    "volume": volume.run,
    "filters": filters.run,
    "fits": fits.run,
    "learning": learning.run,
    "transfer": transfer.run,
}

if __name__ == "__main__":
    sys.exit(reproduce("deepreduce", "DeepReduce's claims", (__doc__ or "").splitlines()[0], STUDIES))
