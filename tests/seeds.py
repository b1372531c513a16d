# SPDX-License-Identifier: Apache-2.0
"""Seeds for tests of random use. A failure names its seed; ULTIMA_TEST_SEED=SEED runs the same tests with that one."""

import os
import random


def seeds(count: int) -> list[int]:
    """|count| seeds that differ from run to run, for `parametrize`. All workers of one run get the same, for they must
    agree on which tests there are.
    """
    if told := os.environ.get("ULTIMA_TEST_SEED"):
        return [int(told)]
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    draw = random.Random(run) if run else random.SystemRandom()
    return [draw.randrange(2**32) for _ in range(count)]
