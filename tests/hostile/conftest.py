# SPDX-License-Identifier: Apache-2.0
"""`host`: one real daemon, for a test that is going to attack it."""

from collections.abc import Iterator

import pytest

from tests.e2e.hosts import DaemonProcess, running


@pytest.fixture
def host() -> Iterator[DaemonProcess]:
    with running(1) as hosts:
        yield hosts[0]
