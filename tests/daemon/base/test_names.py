# SPDX-License-Identifier: Apache-2.0
"""Names of hosts: a name server that does not answer holds up the joins of whoever names such a host, and no others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ultima.daemon.base import names as module
from ultima.daemon.base.errors import Unavailable
from ultima.daemon.base.names import EACH, Names


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """When the server of the names that begin with "slow" answers."""
    event = threading.Event()

    def look_up(name: str) -> list[str]:
        assert not name.startswith("slow") or event.wait(30)
        return ["10.0.0.9", "10.0.0.10"]

    monkeypatch.setattr(module, "_look_up", look_up)
    yield event
    event.set()


async def test_resolve__one_users_slow_names_are_his_own(answers: threading.Event) -> None:
    names = Names()
    held = [asyncio.ensure_future(names.resolve(f"slow{i}", "uid 7")) for i in range(EACH)]
    again = [asyncio.ensure_future(names.resolve("slow0", "uid 7")) for _ in range(20)]  # ranks of one job
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="names that are looked up: uid 7 has 2 already"):
        await names.resolve("slow9", "uid 7")
    assert await asyncio.wait_for(names.resolve("quick", "uid 8"), 5) == ["10.0.0.9", "10.0.0.10"]
    assert await names.resolve("10.0.0.1", "uid 7") == ["10.0.0.1"]
    held[0].cancel()  # who gives up does not get his share back before the server answers
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="has 2 already"):
        await names.resolve("slow9", "uid 7")
    answers.set()
    assert all(found == ["10.0.0.9", "10.0.0.10"] for found in await asyncio.gather(*again, held[1]))
    assert not names._under_way and not len(names._quota)
    names.close()


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 300, "a..b", "\udc80"])
async def test_resolve__what_is_no_name_of_a_host_is_unavailable(name: str) -> None:
    names = Names()
    with pytest.raises(Unavailable):
        await names.resolve(name, "uid 7")
    assert not len(names._quota)
    names.close()
