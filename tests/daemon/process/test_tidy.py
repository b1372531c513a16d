# SPDX-License-Identifier: Apache-2.0
"""What jobs leave behind is collected after one has come or gone, and only then."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.daemon.helpers import eventually
from ultima.daemon.process.tidy import Tidy


class Circle:
    """As a closed connection of gRPC is held: by objects that refer to one another."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _nobody_else_collects() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_run__collects_once_after_each_change() -> None:
    tidy = Tidy()
    running = asyncio.create_task(tidy.run(0.01))
    try:
        left = weakref.ref(Circle())
        await asyncio.sleep(0.2)
        assert left() is not None, "no job has come or gone"
        tidy.note()
        await eventually(lambda: left() is None, "it is collected")
        left = weakref.ref(Circle())
        await asyncio.sleep(0.2)
        assert left() is not None, "once for each change"
    finally:
        running.cancel()


def test_tidy__works_where_the_c_library_cannot_trim() -> None:
    tidy = Tidy()
    tidy._trim = None
    left = weakref.ref(Circle())
    tidy.tidy()
    assert left() is None
