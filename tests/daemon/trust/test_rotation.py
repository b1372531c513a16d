# SPDX-License-Identifier: Apache-2.0
"""Certificates that change, or should, while jobs run."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.daemon.helpers import House, eventually, rendezvous, status, wired
from tests.daemon.trust.papers import Authority, papers
from tests.daemon.trust.secure import secure
from ultima.daemon.hosts import watching
from ultima.daemon.process.server import Daemon
from ultima.daemon.trust import trust as trust_module


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def test_rotation__of_leaf_and_authority_breaks_no_path(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new authority side by side, then new leaves, then the new one alone; watches move, nothing is lost."""
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.05)
    believed = [authority]
    files = [papers(house.folder, f"n{i}", authority) for i in range(2)]
    daemons = [await house.daemon(f"n{i}", tls=one.environment) for i, one in enumerate(files)]
    trainers = await house.job(daemons)
    lost: list[object] = []
    for daemon in daemons:
        told = daemon._peers._told._replace(on_lost=lambda *arguments: lost.append(arguments))
        monkeypatch.setattr(daemon._peers, "_told", told)
    await eventually(lambda: all(len(daemon._watchers) == 1 for daemon in daemons), "each watches the other")

    async def rotate(signer: Authority) -> None:
        for i, (one, daemon) in enumerate(zip(files, daemons, strict=True)):
            one.write(signer.issue(f"n{i}"), believed)
            assert daemon.trust is not None
            daemon.trust.look(time.time())
        versions = [daemon.trust.version for daemon in daemons if daemon.trust is not None]
        # The streams of the former certificates are given up once those of the new ones stand.
        await eventually(lambda: all(_renewed(daemon) for daemon in daemons), f"watches renewed, {versions}")

    fresh = Authority()
    for signers, now_believed in ((authority, [authority, fresh]), (fresh, [authority, fresh]), (fresh, [fresh])):
        believed[:] = now_believed
        await rotate(signers)
    assert lost == [] and wired(daemons)
    # A rank that comes now is let in by the new authority alone.
    await trainers[1].leave()
    again = await house.trainer(daemons[1])
    await trainers[0].leave()
    zero = await house.trainer(daemons[0])
    place = rendezvous(daemons[0])
    await asyncio.gather(zero.join(0, 2, rendezvous=place), again.join(1, 2, rendezvous=place))


async def test_watch__is_made_anew_before_its_connection_is_too_old(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers end old connections, and the end of a watch is the news of a death: so none grows old."""
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watching, "RENEW_SECONDS", 0.1)
    daemons = [await secure(house, authority, f"n{i}") for i in range(2)]
    lost: list[object] = []
    for daemon in daemons:
        told = daemon._peers._told._replace(on_lost=lambda *arguments: lost.append(arguments))
        monkeypatch.setattr(daemon._peers, "_told", told)
    await house.job(daemons)
    for daemon in daemons:
        seen: set[float] = set()
        await eventually(lambda d=daemon, s=seen: _streams(d, s) >= 4, "four streams, one after another")  # type: ignore[misc]
    assert lost == [] and wired(daemons)
    assert all(len(daemon._watchers) <= 2 for daemon in daemons), "the old ones are gone"


def _streams(daemon: Daemon, seen: set[float]) -> int:
    """How many streams of watches were seen by now."""
    seen.update(stream.began for stream in daemon._peers._streams.values())
    return len(seen)


def _renewed(daemon: Daemon) -> bool:
    return daemon.trust is not None and all(
        version == daemon.trust.version for version in daemon._peers.watch_versions()
    )


async def test_rotation__bad_new_files_are_told_and_not_used(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = papers(house.folder, "n0", authority)
    daemon = await house.daemon("n0", tls=files.environment)
    trust, good = daemon.trust, files.certificate.read_bytes()
    assert trust is not None
    files.certificate.write_bytes(b"nonsense")
    trust.look(time.time())
    assert trust.version == 0 and trust.warning(time.time()) == "", "somebody may be copying them"
    later = time.time() + trust_module.SETTLE_SECONDS + 1
    trust.look(later)
    assert "holds no readable certificate" in trust.warning(later)
    assert "new certificates are not used: tls.certificate = " in caplog.text
    monkeypatch.setattr(time, "time", lambda: later)
    assert "new certificates are not used" in (await status(daemon)).security.warning
    files.certificate.write_bytes(good)
    trust.look(later)
    assert trust.warning(later) == ""


async def test_expiry__is_told_a_quarter_of_the_life_ahead(
    house: House, authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = papers(house.folder, "n0", authority, days=(-1, 7))
    daemon = await house.daemon("n0", tls=files.environment)
    trust = daemon.trust
    assert trust is not None
    assert trust.warning(time.time() + 4.9 * 86400) == ""
    soon = time.time() + 5.1 * 86400
    trust.look(soon)
    trust.look(soon + 1)
    assert caplog.text.count("the certificate of node 'n0' expires on") == 1, "once, not every two seconds"
    facts = daemon.gauges.facts()
    assert not facts.insecure and not facts.certificate_warning and facts.not_after_s == trust.not_after_s()
    monkeypatch.setattr(time, "time", lambda: soon)
    assert daemon.gauges.facts().certificate_warning
    assert trust.status(soon).warning.startswith("the certificate of node 'n0' expires on")
