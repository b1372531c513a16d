# SPDX-License-Identifier: Apache-2.0
"""Joins that wait for a coordinator that takes connections and says nothing: they are few, and hold nobody else up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from tests.daemon.conftest import folder, house  # noqa: F401
from tests.daemon.helpers import House, eventually, wired
from tests.daemon.trust.papers import Authority
from tests.daemon.trust.secure import refused, secure

WAITING = 40  # more than the threads of asyncio's own executor, of which there are 32 at most
RANKS = 8


@pytest.fixture
def silent() -> Iterator[str]:
    """A place where nobody ever answers, though connections are taken."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_join__while_others_wait_for_one_that_is_silent(house: House, silent: str) -> None:  # noqa: F811
    """Another job forms meanwhile, metrics are rendered, and there is an end to how many may wait."""
    authority = Authority()
    (house.folder / "c.toml").write_text(f"[limits]\nsessions_per_uid = {WAITING + 2}\n")
    daemons = [await secure(house, authority, f"n{i}", config=str(house.folder / "c.toml")) for i in range(2)]
    waiting = []
    for i in range(WAITING):
        trainer = await house.trainer(daemons[0])
        joins = trainer.join(i % RANKS, RANKS + 1, f"j{i // RANKS}", rendezvous=silent, timeout=60)
        waiting.append(asyncio.ensure_future(joins))
    await eventually(lambda: len(daemons[0].jobs._coming) == WAITING, "they wait")
    before = asyncio.get_running_loop().time()
    await house.job(daemons)
    assert wired(daemons)
    await asyncio.wait_for(asyncio.to_thread(daemons[0]._metrics_text), 5)
    assert asyncio.get_running_loop().time() - before < 10
    waiting.append(asyncio.ensure_future((await house.trainer(daemons[0])).join(1, 2, "more", rendezvous=silent)))
    await eventually(lambda: len(daemons[0].jobs._coming) == WAITING + 1, "one more has its place")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await (await house.trainer(daemons[0])).join(1, 2, "j0", rendezvous=silent)
    refused(error.value, grpc.StatusCode.RESOURCE_EXHAUSTED, f"limits.sessions_per_uid = {WAITING + 2}", "or join one")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await eventually(lambda: not daemons[0].jobs._coming and len(daemons[0].jobs.all()) == 1, "all gave up")
