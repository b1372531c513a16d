# SPDX-License-Identifier: Apache-2.0
"""`daemons(n)`: n real daemons. Healthy ones are shared by the tests of a module; trouble gets its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.hosts import Hosts, running


@pytest.fixture(scope="module")
def four() -> Iterator[Hosts]:
    """Four daemons for tests that leave them as they were."""
    with running(4) as hosts:
        yield hosts


@pytest.fixture
def daemons() -> Iterator[Callable[[int], Hosts]]:
    """Starts that many daemons, for a test that is going to hurt them."""
    with ExitStack() as stack:
        yield lambda count: stack.enter_context(running(count))
