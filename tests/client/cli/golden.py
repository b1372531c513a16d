# SPDX-License-Identifier: Apache-2.0
"""What `--json` printed when its form was last agreed on. Whoever reads it by key relies on these files.

A key may be added, and is held from the next time on that the files are written: run the test with
ULTIMA_TEST_GOLDEN=write. What renames or removes a key, or changes what it means, fails here, and counts up
`ultima.cli.common.SCHEMA`.
"""

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"


def check(name: str, facts: dict[str, Any]) -> None:
    """Holds |facts| against the file of that name: all that stands there must be there, with the same value."""
    file = FOLDER / f"{name}.json"
    if os.environ.get("ULTIMA_TEST_GOLDEN") == "write":
        file.write_text(json.dumps(facts, indent=1) + "\n")
    lost = list(_lost(json.loads(file.read_text()), facts, name))
    assert not lost, f"{file}: --json of `ultima {name}` lost or changed {', '.join(lost)}"


def _lost(before: Any, now: Any, at: str) -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            where
            for key, value in before.items()
            for where in (_lost(value, now[key], f"{at}.{key}") if key in now else [f"{at}.{key}"])
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [where for i, pair in enumerate(zip(before, now, strict=True)) for where in _lost(*pair, f"{at}[{i}]")]
    return [] if before == now else [at]
