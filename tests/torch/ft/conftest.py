# SPDX-License-Identifier: Apache-2.0
"""torchft's own tests are long ones: a run that leaves those out does not look at them, nor skips them."""

import importlib.util
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.name != "test_torchft.py" or "not long" not in config.option.markexpr:
        return None
    return True if importlib.util.find_spec("torchft") is None else None
