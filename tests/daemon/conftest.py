# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the control plane."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.daemon.helpers import House
from ultima.daemon.jobs import table


@pytest.fixture
def folder() -> Iterator[Path]:
    """A scratch folder whose path is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="ultima-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def house(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """Daemons with fake engines, ended with the test. They do not say how many CPUs they have: jobs use all lanes."""
    monkeypatch.setattr(table, "cpus", lambda: 0)
    house = House(folder)
    yield house
    await house.close()
