# SPDX-License-Identifier: Apache-2.0
"""`ultima ping` over links that lose, that carry less than they should, and that close a port."""

import json
from typing import Any

import pytest

from tests.lab.cluster import BIN, PORT, Cluster
from tests.lab.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(120)]


def ping(cluster: Cluster, status: int) -> dict[str, Any]:
    """What host 0 says of the way to host 1, where the verb ends with |status|."""
    command = [str(BIN / "ultima"), "ping", cluster.addresses[1], "--json", "--socket", str(cluster.socket(0))]
    done = cluster.lab.host(0).run(command, timeout=60)
    assert done.returncode == status, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"wrong": [row for row in found["checks"] if row["verdict"] in ("warning", "failure")]}


def test_ping__loss_mtu_and_a_closed_port() -> None:
    with Lab(2) as lab, Cluster(lab) as cluster:
        well = ping(cluster, 0)
        assert well["wrong"] == [] and well["packet_bytes"] == 1500 and 0 < well["rtt_min_s"] < 1
        lab.set_loss(20, to=[1])
        lossy = ping(cluster, 0)
        there, here = lossy["datagrams_there"], lossy["datagrams_here"]
        assert 0.05 < 1 - there["arrived"] / there["sent"] < 0.5 and here["arrived"] == here["sent"]
        assert [row["name"] for row in lossy["wrong"]] == ["loss"]
        lab.set_loss(0)
        lab.host(1).set_mtu(1400)
        small = ping(cluster, 1)
        assert [row["name"] for row in small["wrong"]] == ["mtu"] and 1390 < small["packet_bytes"] <= 1400
        lab.host(1).set_mtu(1500)
        lab.set_one_way([(0, 1)], protocol="udp", port=PORT + 1)
        (closed,) = ping(cluster, 1)["wrong"]
        assert closed["name"] == "udp data port" and str(PORT + 1) in closed["remedy"]
