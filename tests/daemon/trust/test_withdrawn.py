# SPDX-License-Identifier: Apache-2.0
"""Nodes that the authority has withdrawn: refused as callers and as called, and parted with where connections stand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, eventually, rendezvous, status, wired
from tests.daemon.trust.papers import Authority, Papers, papers
from tests.daemon.trust.secure import channel, refused, trust_in
from ultima.daemon.base.errors import StartupError
from ultima.daemon.process.server import Daemon
from ultima.daemon.trust import trust as trusts
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2, withdrawn


def withdraw(file: Path, authority: Authority, number: int, *nodes: str, cluster: str = "lab") -> Path:
    """Puts a list in the file's place, whole."""
    fresh = file.with_suffix(".new")
    fresh.write_bytes(withdrawn.write(authority.key, cluster, number, nodes))
    os.replace(fresh, file)
    return file


async def three(house: House, authority: Authority) -> tuple[list[Daemon], list[Papers], list[Path]]:
    """Three nodes, each with an empty list of its own."""
    files = [papers(house.folder, f"n{i}", authority) for i in range(3)]
    lists = [withdraw(one.folder / "withdrawn.json", authority, 1) for one in files]
    daemons = [
        await house.daemon(f"n{i}", tls=one.environment | {"ULTIMAD_TLS_WITHDRAWN": str(lists[i])})
        for i, one in enumerate(files)
    ]
    return daemons, files, lists


def look(daemon: Daemon, seconds: float = 0.0) -> str:
    """The daemon looks at its files; what it warns of so many seconds later."""
    assert daemon.trust is not None
    daemon.trust.look(time.time())
    return daemon.trust.warning(time.time() + seconds)


async def test_withdrawn__what_stands_ends_and_nothing_new_begins(house: House) -> None:
    """Breaks if only new calls are looked at: then the job keeps its path to the node, and the node its watch."""
    authority = Authority()
    daemons, files, lists = await three(house, authority)
    await house.job(daemons)
    await eventually(lambda: wired(daemons) and all(len(d._watchers) == 2 for d in daemons), "paths and watches")
    for i in (0, 1):
        withdraw(lists[i], authority, 2, "n2")
        look(daemons[i])
    for i in (0, 1):
        hosts = (await status(daemons[i])).jobs[0].hosts
        assert [row.state for row in hosts][2] == types_pb2.HOST_STATE_ABSENT, "at once"
        assert {place.node for place in daemons[i]._peers.watched()} == {f"n{1 - i}"}
        await eventually(lambda d=daemons[i]: len(d._watchers) == 1, "the node's own watch has ended")  # type: ignore[misc]
    assert wired(daemons[:2]), "the others go on"
    evil = trust_in(files[2])
    async with channel(daemons[0], evil, "n0") as open_channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(open_channel)
        for call in (
            stub.Reach(peer_pb2.ReachRequest(), timeout=5),
            stub.Forming(peer_pb2.FormingRequest(job="j"), timeout=5),
            stub.Report(peer_pb2.ReportRequest(), timeout=5),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            refused(error.value, grpc.StatusCode.PERMISSION_DENIED, "node 'n2' was withdrawn")
    trainer = await house.trainer(daemons[0])
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await trainer.join(1, 2, "new", rendezvous=rendezvous(daemons[2]), timeout=2)
    assert "withdrawn" in str(error.value.details()), "nor does this host call it"
    events = [event.kind for event in daemons[0].jobs.recorder.events.after(0)]
    assert "nodes_withdrawn" in events


async def test_withdrawn__a_node_that_comes_back_is_met_again(house: House) -> None:
    authority = Authority()
    daemons, _, lists = await three(house, authority)
    await house.job(daemons[:2])
    withdraw(lists[0], authority, 2, "n1")
    look(daemons[0])
    await eventually(lambda: not wired(daemons[:2]), "the path is gone")
    withdraw(lists[0], authority, 3)
    look(daemons[0])
    await eventually(lambda: wired(daemons[:2]), "a path again", 30)


async def test_withdrawn__lists_that_are_not_taken(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old list, another authority's, another cluster's, a changed one, and none: the former stays in force."""
    monkeypatch.setattr(trusts, "SETTLE_SECONDS", 0.0)
    authority, foreign = Authority(), Authority()
    daemons, _, lists = await three(house, authority)
    daemon, file = daemons[0], lists[0]
    withdraw(file, authority, 5, "n2")
    assert look(daemon) == ""
    for number, signer, cluster, word in (
        (4, authority, "lab", "is list 4, older than list 5"),
        (6, foreign, "lab", "was not signed by an authority"),
        (6, authority, "other", "is of cluster 'other'"),
    ):
        withdraw(file, signer, number, cluster=cluster)
        assert word in look(daemon, 1)
        assert daemon.trust is not None and daemon.trust.identity.withdrawn == {"n2"}
    data = withdrawn.write(authority.key, "lab", 6, ["n2", "n3"])
    file.write_bytes(data.replace(b'"n3"', b'"n4"'))
    assert "was not signed" in look(daemon, 1)
    file.unlink()
    assert "cannot be read" in look(daemon, 1)
    withdraw(file, authority, 6, "n0")
    assert "node 'n0' was withdrawn" in look(daemon), "a daemon says so of itself"


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{}", b"[]", b"[" * 100_000, b'{"cluster":"lab","number":true}'),
        b'{"cluster":"lab","number":1.5,"nodes":[],"signature":""}',
        b'{"cluster":"lab","number":1,"nodes":["N 1"],"signature":""}',
    ],
)
def test_read__what_is_no_list_is_one_sentence(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"holds no list of withdrawn nodes"):
        withdrawn.read(text, "lab", [Authority().certificate])


async def test_start__with_a_list_that_is_not_there_is_refused(house: House) -> None:
    files = papers(house.folder, "n0", Authority())
    with pytest.raises(StartupError, match=r"tls.withdrawn = .*cannot be read"):
        await house.daemon("n0", tls=files.environment | {"ULTIMAD_TLS_WITHDRAWN": str(files.folder / "nothing")})
