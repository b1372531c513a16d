# SPDX-License-Identifier: Apache-2.0
"""The victims. `host`: one real daemon; `house` and `folder`: daemons with fake engines, as in tests/daemon."""

from collections.abc import Iterator

import pytest

from tests.daemon.conftest import folder, house
from tests.e2e.hosts import DaemonProcess, running

__all__ = ["folder", "host", "house"]


@pytest.fixture
def host() -> Iterator[DaemonProcess]:
    with running(1) as hosts:
        yield hosts[0]
