# SPDX-License-Identifier: Apache-2.0
"""Where other hosts reach this one, and the daemon on it: what it says of itself, and what stands in for it."""

import socket
from typing import Any

import pytest

from ultima.admin import calls
from ultima.base.errors import DaemonUnavailable
from ultima.launch import reach
from ultima.launch.reach import Reach, address_towards, daemon_reach, own_address
from ultima.v1 import admin_pb2


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the daemon's status says; an exception is raised as often as "silent" says."""
    status: dict[str, Any] = {"incarnation": 77, "silent": 0, "asked": []}

    def get_status(path: str) -> admin_pb2.GetStatusResponse:
        status["asked"].append(path)
        if len(status["asked"]) <= status["silent"]:
            raise DaemonUnavailable("no daemon answers")
        return admin_pb2.GetStatusResponse(**{k: v for k, v in status.items() if k not in ("silent", "asked")})

    monkeypatch.setattr(calls, "get_status", get_status)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    return status


def test_address_towards__this_host_as_others_see_it() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    if socket.has_ipv6:
        assert address_towards("::1") == "::1"


@pytest.mark.parametrize(
    ("reach", "master", "own"),
    [
        ("127.0.0.1:29520", "", "127.0.0.1"),
        ("[::1]:29520", "", "::1"),
        ("", "127.0.0.1", "127.0.0.1"),
        ("", "", ""),
        ("192.0.2.7:29520", "127.0.0.1", "127.0.0.1"),  # the daemon is in another network than this process
        ("192.0.2.7:29520", "", ""),
        ("", "no such name", ""),
    ],
)
def test_own_address__never_asks_what_this_host_is_called(
    monkeypatch: pytest.MonkeyPatch, reach: str, master: str, own: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", master)
    monkeypatch.setattr(socket, "gethostname", lambda: pytest.fail("it asked"))
    assert own_address(reach) == own


def test_daemon_reach__its_own_word(told: dict[str, Any]) -> None:
    told |= {"grpc_port": 29520, "address": "10.0.0.7"}
    assert daemon_reach("/run/x.sock") == Reach("10.0.0.7:29520", 77)
    assert told["asked"] == ["/run/x.sock"]
    told["address"] = "fd00::7"
    assert daemon_reach("/run/x.sock").address == "[fd00::7]:29520"


def test_daemon_reach__one_that_serves_its_host_alone_has_no_place(told: dict[str, Any]) -> None:
    told["address"] = "10.0.0.7"
    assert daemon_reach("/run/x.sock") == Reach("", 77)


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::"])
def test_daemon_reach__behind_a_wildcard_the_way_to_the_master_tells(
    told: dict[str, Any], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told |= {"grpc_port": 29520, "address": address}
    asked: list[str] = []
    monkeypatch.setattr(reach, "address_towards", lambda host: asked.append(host) or "10.0.0.9")
    assert daemon_reach("/run/x.sock").address == "10.0.0.9:29520"
    monkeypatch.setenv("MASTER_ADDR", "node0")
    daemon_reach("/run/x.sock")
    assert asked == ["127.0.0.1", "node0"]


def test_daemon_reach__waits_for_one_that_is_starting(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    told |= {"grpc_port": 29520, "address": "10.0.0.7", "silent": 3}
    monkeypatch.setattr(reach, "RETRY_S", 0.001)
    assert daemon_reach("/run/x.sock").address == "10.0.0.7:29520" and len(told["asked"]) == 4


def test_daemon_reach__gives_up_on_one_that_never_comes(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    told["silent"] = 10**9
    monkeypatch.setattr(reach, "RETRY_S", 0.001)
    monkeypatch.setattr(reach, "START_PATIENCE_NS", 20_000_000)
    with pytest.raises(DaemonUnavailable):
        daemon_reach("/run/x.sock")
    assert len(told["asked"]) > 1
