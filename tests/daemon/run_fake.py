# SPDX-License-Identifier: Apache-2.0
"""`ultimad` in a process of its own, with the fake engine: for tests that kill it, or read how it starts and ends.

ULTIMA_FAKE_OPEN_NS=N in the environment: one op is open, and its deadline is N ns from the start on.
"""

from __future__ import annotations

import os
import sys

from tests.daemon.fake_engine import FakeEngine
from ultima.daemon.engine.engine import EngineConfig
from ultima.daemon.process.main import main


def open_engine(config: EngineConfig) -> FakeEngine:
    """A fake, with an op that never ends if the test wants one."""
    engine = FakeEngine(config)
    if duration := os.environ.get("ULTIMA_FAKE_OPEN_NS"):
        engine.open_since = engine.now()
        engine.open_deadline = engine.now() + int(duration)
    return engine


if __name__ == "__main__":
    sys.exit(main(open_engine=open_engine))
