# SPDX-License-Identifier: Apache-2.0
"""The options of a job as the engine's struct."""

from __future__ import annotations

from ultima.daemon.base.options import NAMES, Options
from ultima.v1.job_options import OFF

NEVER = 2**64 - 1
"""An instant that does not come."""


def job_options(options: Options) -> dict[str, int]:
    """The fields of struct ut_job_options."""
    values = {name: getattr(options, name) for name in NAMES}
    return {name: NEVER if value == OFF else value for name, value in values.items()}
