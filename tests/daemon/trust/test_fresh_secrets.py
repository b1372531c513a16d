# SPDX-License-Identifier: Apache-2.0
"""Fresh secrets for paths that stand, and the quarantine of a host whose sealed packets broke the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.daemon.fake_engine import FakePath
from tests.daemon.helpers import House, engine, eventually, status, wired
from tests.daemon.trust.papers import Authority
from tests.daemon.trust.secure import secure
from ultima.daemon.base.errors import FailedPrecondition, Unavailable
from ultima.daemon.engine.engine import EventKind
from ultima.daemon.engine.seal import Sealing
from ultima.daemon.jobs import links as links_module
from ultima.daemon.jobs import table
from ultima.daemon.jobs.links import Links
from ultima.daemon.observe.metrics_text import render
from ultima.daemon.process.server import Daemon

OFTEN = 0.05


def often(suite: str, job: str, generation: int, seconds: float) -> Sealing:
    return Sealing("aes-128-gcm", job, generation, seconds=OFTEN)


def paths(daemons: Sequence[Daemon], lane: int = 0) -> list[FakePath]:
    return [engine(daemon, lane).path(0, 1 - i) for i, daemon in enumerate(daemons)]


def given(path: FakePath, out: bool) -> list[bytes]:
    return [seal.secret for way, seal in path.renewals if way is out]


def links_of(daemon: Daemon) -> Links:
    links = daemon.jobs.all()[0].links
    assert links is not None
    return links


async def two(house: House, **flags: object) -> list[Daemon]:
    authority = Authority()
    daemons = [await secure(house, authority, node, **flags) for node in ("n0", "n1")]
    await house.job(daemons)
    return daemons


async def test_renewal__both_ends_get_the_same_secrets_and_the_path_stands(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "Sealing", often)
    daemons = await two(house, lanes=2)
    both = paths(daemons)
    ids = [path.rx_cid for path in both]
    await eventually(lambda: all(len(given(path, True)) >= 3 for path in both), "three secrets in each direction")
    for here, there in ((0, 1), (1, 0)):
        sent = given(both[there], True)
        drawn = given(both[here], False)  # the receiver is ahead by the one whose call is under way
        assert drawn[: len(sent)] == sent and len(set(drawn)) == len(drawn) <= len(sent) + 1
        assert paths(daemons, lane=1)[here].renewals, "the second lane has none"
    assert [path.rx_cid for path in both] == ids and [path.connects for path in both] == [1, 1]
    shown = (await status(daemons[0])).jobs[0].hosts
    assert shown[1].secrets_renewed_count >= 5 and shown[0].secrets_renewed_count == 0


async def test_renewal__waits_until_the_last_secret_is_in_use(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "Sealing", often)
    daemons = await two(house)
    for path in paths(daemons):
        path.busy = True
    await asyncio.sleep(2 * OFTEN)
    before = [len(path.renewals) for path in paths(daemons)]
    await asyncio.sleep(4 * OFTEN)
    assert [len(path.renewals) for path in paths(daemons)] == before
    for path in paths(daemons):
        path.busy = False
    await eventually(lambda: all(len(given(p, True)) > 1 for p in paths(daemons)), "it goes on")


async def test_renewal__what_is_refused(house: House) -> None:
    daemons = await two(house)
    links, path = links_of(daemons[0]), paths(daemons)[0]
    caller = links[1].host
    assert path.tx_seal is not None
    fresh = replace(path.tx_seal, secret=bytes(range(32)))
    links.renewed(caller, links[1].tx_cids, fresh.to_proto())
    links.renewed(caller, links[1].tx_cids, fresh.to_proto())  # the answer was lost
    assert given(path, True) == [fresh.secret]
    other = replace(fresh, secret=bytes(32)).to_proto()
    rows = [
        (caller, (), other, "of no path"),
        (caller, (path.tx_cid + 1,), other, "of no path"),
        (caller, (path.tx_cid, 7), other, "of no path"),
        (replace(caller, incarnation=caller.incarnation + 1), links[1].tx_cids, other, "of no path"),
        (caller, links[1].tx_cids, None, "this host seals its packets and"),
    ]
    for of, cids, seal, words in rows:
        with pytest.raises(FailedPrecondition, match=words):
            links.renewed(of, cids, seal)
    path.busy = True
    with pytest.raises(FailedPrecondition, match="before it is not in use yet"):
        links.renewed(caller, links[1].tx_cids, other)
    assert given(path, True) == [fresh.secret]


async def test_quarantine__no_path_for_a_while_and_then_one_with_new_secrets(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert links_module.QUARANTINE_SECONDS == 60.0
    monkeypatch.setattr(links_module, "QUARANTINE_SECONDS", 1.5)
    daemons = await two(house)
    before = [(path.rx_seal, path.tx_seal) for path in paths(daemons)]
    engine(daemons[0]).emit(EventKind.VIOLATION, 0, host=1)
    links = links_of(daemons[0])
    link = links[1]
    await eventually(lambda: not link.up(), "the path is gone")
    connects = paths(daemons)[0].connects
    for incarnation in (link.host.incarnation, link.host.incarnation + 1):  # a new life does not help
        with pytest.raises(Unavailable, match=r"its packets broke the protocol, no path for [12] s more"):
            await links.called(replace(link.host, incarnation=incarnation), (7,), 1, doubt=False)
    host = (await status(daemons[0])).jobs[0].hosts[1]
    assert host.violations_count == 1 and 0 < host.quarantine_s <= 1.5
    text = render(daemons[0].gauges.facts()).decode()
    assert 'ultima_peer_violations_total{peer="127.0.0.1"} 1.0' in text
    assert 'ultima_peer_quarantined{peer="127.0.0.1"} 1.0' in text
    told = [event.text for event in daemons[0].jobs.recorder.events.after(0)]
    assert any("broke the protocol; next path in 1.5 s" in line for line in told), told
    assert paths(daemons)[0].connects == connects
    await eventually(lambda: wired(daemons), "the path is there again")
    for path, (received, sent) in zip(paths(daemons), before, strict=True):
        assert path.rx_seal != received and path.tx_seal != sent
    assert (await status(daemons[0])).jobs[0].hosts[1].quarantine_s == 0
