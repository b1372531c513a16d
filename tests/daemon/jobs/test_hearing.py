# SPDX-License-Identifier: Apache-2.0
"""What counters prove of a path is tried before it is told: with fake engines, peers and trials."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ultima.daemon.engine.engine import PeerStats
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs.hearing import Hearing
from ultima.daemon.jobs.unheard import Unheard
from ultima.v1 import peer_pb2

DATA_OUT, FEEDBACK_OUT = Unheard(0, 1, 0, False), Unheard(0, 1, 0, True)


@pytest.mark.parametrize(
    ("tried", "told"),
    [
        (set(), set()),  # it was lost while the network was cut, and gets through now
        ({DATA_OUT, FEEDBACK_OUT}, {DATA_OUT, FEEDBACK_OUT}),  # counters know nothing of what is never sent
        (None, {DATA_OUT}),  # it could not be tried
    ],
)
async def test_hearing__what_counters_prove_is_tried_before_it_is_told(
    tried: set[Unheard] | None, told: set[Unheard], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0

    async def hear(*_: object) -> peer_pb2.HearResponse:
        return peer_pb2.HearResponse(incarnation=7, lanes=[peer_pb2.PathCounts()])

    def paths(*_: object) -> list[PeerStats]:
        return [PeerStats(sent_packets=sent)]

    now: Any = SimpleNamespace(paths=paths)
    engine: Any = SimpleNamespace(snapshot=lambda: now, peers_blocked=lambda *_: None, ports_of=lambda _: 1)
    watchers: Any = SimpleNamespace(tell=lambda _: None)
    hearing = Hearing(lambda: [], engine, lambda: SimpleNamespace(hear=hear), watchers)  # type: ignore[arg-type, return-value]
    asked = 0

    async def trial(*_: object) -> set[Unheard] | None:
        nonlocal asked
        asked += 1
        return tried

    monkeypatch.setattr(hearing, "_tried", trial)
    host = SimpleNamespace(index=1, incarnation=7, place=Place("10.0.0.2", 1))
    link: Any = SimpleNamespace(host=host, up=lambda: True, rx_cids=(1,))
    facts = {"name": "j", "generation": 1, "incarnation": 3, "number": 0, "over": False}
    job: Any = SimpleNamespace(own=SimpleNamespace(index=0), links={1: link}, unheard={}, **facts)
    for _ in range(5):
        sent += 20
        for each, path in hearing._suspects(job, now):
            await hearing._ask(job, each, path, now)
        await asyncio.sleep(0)
    assert job.unheard.get(0, frozenset()) == told and asked
