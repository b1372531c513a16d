# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the control plane."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.daemon.helpers import House


@pytest.fixture
def folder() -> Iterator[Path]:
    """A scratch folder whose path is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="ultima-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def house(folder: Path) -> AsyncIterator[House]:
    """Daemons with fake engines, ended with the test."""
    house = House(folder)
    yield house
    await house.close()
