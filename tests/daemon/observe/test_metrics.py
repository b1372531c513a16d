# SPDX-License-Identifier: Apache-2.0
"""The metrics: their names, labels and number, and that Prometheus's own tool has nothing to say about them."""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from tests.daemon.helpers import House, engine, eventually
from tests.daemon.observe.facts import some_facts
from tests.prometheus import tool
from ultima.daemon.base.errors import StartupError
from ultima.daemon.engine.engine import PeerStats, Status
from ultima.daemon.observe.metric_rows import BY_NAME, ROWS
from ultima.daemon.observe.metrics_text import OTHER, PEERS_MAX, SERIES_MAX, render
from ultima.daemon.observe.totals import Totals
from ultima.daemon.process import exposition
from ultima.daemon.process.exposition import AT_ONCE

ROOT = Path(__file__).resolve().parents[3]


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families(text.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("peers", [1, 64, 300])
def test_render__stays_within_its_series_and_never_crosses_jobs_and_peers(peers: int) -> None:
    text = render(some_facts(jobs=16, peers=peers))
    found = samples(text)
    assert len(found) <= SERIES_MAX == 1650
    assert len(text) < 150_000
    assert not [name for name, labels in found if {"ultima_job", "peer"} <= {label for label, _ in labels}]
    names = {label for _, labels in found for label, _ in labels}
    assert names <= set(
        "ultima_job status outcome direction wire reason peer lane kind le version wire_version simd".split()
    )


def test_render__shows_each_metric_with_the_labels_that_its_row_says() -> None:
    found: dict[str, set[str]] = {}
    for family in families(render(some_facts()).decode()):
        found[family.name.removesuffix("_info")] = {label for each in family.samples for label in each.labels} - {"le"}
    assert found == {row.name: set(row.labels) for row in ROWS}


def test_render__peers_beyond_the_bound_are_one() -> None:
    found = samples(render(some_facts(jobs=1, peers=PEERS_MAX + 6)))
    lost = {
        dict(labels)["peer"]: value for (name, labels), value in found.items() if name == "ultima_peer_lost_bytes_total"
    }
    assert len(lost) == PEERS_MAX + 1 and lost[OTHER] == 6 * 11
    ups = [labels for (name, labels) in found if name == "ultima_peer_up"]
    assert len(ups) == PEERS_MAX, "what cannot be added up is of the named ones alone"


def test_render__values() -> None:
    found = samples(render(some_facts()))
    job = ("ultima_job", "job-1")
    assert found["ultima_ops_total", (("status", "partial"), job)] == 5
    assert found["ultima_op_duration_seconds_bucket", (("le", "0.002"), job)] == 3, "buckets add up"
    assert found["ultima_op_duration_seconds_bucket", (("le", "+Inf"), job)] == sum(range(1, 15))
    assert found["ultima_op_duration_seconds_sum", (job,)] == 12.5
    assert found["ultima_missing_bytes_total", (("reason", "lost"), job)] == 10
    assert found["ultima_wire_bytes_total", (("direction", "received"), job, ("wire", "int4/int8"))] == 42
    assert found["ultima_wire_bytes_total", (("direction", "sent"), job, ("wire", "int8"))] == 31
    assert found["ultima_wire_value_bytes_total", (job, ("wire", "int8"))] == 128
    assert found["ultima_rounds_total", (("outcome", "missed"), job)] == 2
    assert (found["ultima_round_seconds_total", (job,)], found["ultima_computed_share", (job,)]) == (6.5, 0.75)
    views = [found[f"ultima_view{name}", (job,)] for name in ("", "_members", "_least")]
    assert views == [7, 5, 6] and found["ultima_view_changes_total", (("reason", "came"), job)] == 3
    assert found["ultima_state_bytes_total", (("direction", "received"), job)] == 64
    assert found["ultima_culprit_total", (("peer", "10.0.0.2"), ("reason", "gone"))] == 2
    assert found["ultima_straggler_score", (("peer", "10.0.0.2"),)] == pytest.approx(64 / 256)
    assert found["ultima_kernel_drops_total", (("lane", "3"),)] == 4
    assert found["ultima_events_total", (("kind", "host_goes"),)] == 2
    assert found["ultima_insecure", ()] == found["ultima_certificate_warning", ()] == 1
    assert found["ultima_certificate_not_after_seconds", (("kind", "authority"),)] == 2e9
    assert found["ultima_build_info", (("simd", "avx2"), ("version", "1.2.3"), ("wire_version", "3"))] == 1


def test_totals__count_on_where_a_path_begins_anew() -> None:
    totals = Totals()
    for sent in (10, 25, 5, 6):
        totals.look([((1, 0), "a", PeerStats(True, sent_bytes=sent, lost_bytes=1)), ((2, 1), "a", PeerStats(True))])
    assert totals.by_job[1]["sent_bytes"] == 25 + 6 and totals.lost["a"] == 2
    totals.look([((2, 1), "a", PeerStats(True))])
    assert set(totals.by_job) == {2} and totals.lost["a"] == 2, "a peer's total outlives the job"


def ask(where: int | Path, path: str = "/metrics", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", where if isinstance(where, int) else 0, timeout=20)
    if isinstance(where, Path):
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(where))
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


async def test_exposition__on_a_port_of_loopback(house: House) -> None:
    daemons = [await house.daemon(metrics="127.0.0.1:0"), await house.daemon()]
    await house.job(daemons)
    for _ in range(3):
        engine(daemons[0]).op_done(0, Status.COMPLETE, 1_500_000)
    await eventually(lambda: engine(daemons[0]).events_waiting == 0, "events are drained")
    assert daemons[0].exposition is not None and daemons[1].exposition is None, "off by itself"
    port = daemons[0].exposition.port
    status, text = await asyncio.to_thread(ask, port)
    assert status == 200
    found = samples(text)
    assert found["ultima_ops_total", (("status", "complete"), ("ultima_job", "job"))] == 3
    assert found["ultima_op_duration_seconds_bucket", (("le", "0.002"), ("ultima_job", "job"))] == 3
    assert found["ultima_bytes_total", (("direction", "sent"), ("ultima_job", "job"))] == 10
    assert found["ultima_peer_up", (("peer", "127.0.0.1"),)] == 1
    assert (await asyncio.to_thread(ask, port, "/else"))[0] == 404
    assert (await asyncio.to_thread(ask, port, Host="evil.example:29519"))[0] == 421
    assert (await asyncio.to_thread(ask, port, Host=f"localhost:{port}"))[0] == 200


async def test_exposition__on_a_unix_socket_that_goes_with_the_daemon(house: House) -> None:
    path = house.folder / "metrics.sock"
    daemon = await house.daemon(metrics=f"unix:{path}")
    assert (await asyncio.to_thread(ask, path, Host="whatever"))[0] == 200
    assert path.stat().st_mode & 0o777 == 0o660
    await house.stop(daemon)
    assert not path.exists()


async def test_exposition__askers_who_do_not_finish_make_room(house: House) -> None:
    """Any user of the host may knock, with many connections and a word now and then. Prometheus is answered."""
    daemon = await house.daemon(metrics="127.0.0.1:0")
    assert daemon.exposition is not None
    port = daemon.exposition.port
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * AT_ONCE)]
    for number in range(6):
        for each in slow:
            with contextlib.suppress(OSError):
                each.send(b"GET /metrics HTTP/1.1\r\n" if not number else b"X: y\r\n")
        assert (await asyncio.to_thread(ask, port))[0] == 200
    for each in slow:
        each.close()


async def test_exposition__a_connection_has_one_answer_and_a_few_seconds(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "CLIENT_SECONDS", 0.5)
    daemon = await house.daemon(metrics="127.0.0.1:0")
    assert daemon.exposition is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.exposition.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost:1\r\n\r\n" * 2)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.count(b"HTTP/1.1 200 ") == 1 and b"Connection: close" in answer
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.exposition.port)
    ended = asyncio.ensure_future(reader.read())
    with contextlib.suppress(ConnectionError):  # a word in each read's time, and never a whole request
        for _ in range(100):
            writer.write(b"GET /metrics HTTP/1.1\r\n" if _ == 0 else b"X: y\r\n")
            await writer.drain()
            await asyncio.wait({ended}, timeout=0.1)
            if ended.done():
                break
    assert ended.done()
    await asyncio.gather(ended, return_exceptions=True)
    writer.close()


async def test_exposition__a_port_that_is_taken_or_not_of_loopback(house: House) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        with pytest.raises(StartupError, match=r"metrics = '127\.0\.0\.1:\d+': Address already in use"):
            await house.daemon(metrics=f"127.0.0.1:{taken.getsockname()[1]}")
    for wrong in ("0.0.0.0:29519", "29519", "unix:relative", "127.0.0.1:99999"):
        with pytest.raises(StartupError, match=r"metrics = .*allowed: 127\.0\.0\.1:PORT"):
            await house.daemon(metrics=wrong)


@pytest.mark.check
@pytest.mark.parametrize("facts", [{}, {"jobs": 0, "peers": 0}])
def test_promtool__has_nothing_to_say_about_the_metrics(facts: dict[str, Any]) -> None:
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=render(some_facts(**facts)), capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.check
@pytest.mark.parametrize("what", [("check", "rules", "ultima.rules.yml"), ("check", "config", "ultima.prometheus.yml"),
                                  ("test", "rules", "ultima.rules.test.yml")])  # fmt: skip
def test_promtool__checks_and_tests_the_alerts(what: tuple[str, ...]) -> None:
    done = subprocess.run([tool("promtool"), *what], cwd=ROOT / "deploy/prometheus", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts__each_links_to_its_entry_in_the_runbook_and_is_tested_both_ways() -> None:
    rules = (ROOT / "deploy/prometheus/ultima.rules.yml").read_text()
    names = re.findall(r"alert: (\w+)", rules)
    assert re.findall(r"/operations/#(\w+)", rules) == [name.lower() for name in names] and len(names) >= 14
    page = (ROOT / "docs/operations.md").read_text()
    assert sorted(re.findall(r"(?m)^### (Ultima\w+)$", page)) == sorted(names)
    well, _, wrong = (ROOT / "deploy/prometheus/ultima.rules.test.yml").read_text().partition("all is wrong")
    for name in names:
        assert re.search(rf"alertname: {name}, exp_alerts: \[\]", well) and f"alertname: {name}\n" in wrong, name


def test_board__first_asks_whether_it_is_well_with_colours_that_say_so() -> None:
    board = json.loads((ROOT / "deploy/prometheus/ultima.grafana.json").read_text())
    first = [panel for panel in board["panels"] if panel["gridPos"]["y"] < 5]
    stats = [panel for panel in first if panel["type"] == "stat"]
    assert first[0]["title"] == "Is it well?" and len(stats) == 6
    for panel in stats:
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert {step["color"] for step in steps} >= {"green", "red"} and panel["description"], panel["title"]
    used = {name for panel in board["panels"] for target in panel.get("targets", ())
            for name in re.findall(r"\bultima_[a-z0-9_]+", target["expr"])}  # fmt: skip
    assert {re.sub("_(total|bucket|sum|count|info)$", "", name) for name in used - {"ultima_job"}} <= BY_NAME.keys()
