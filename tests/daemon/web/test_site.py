# SPDX-License-Identifier: Apache-2.0
"""The status page over HTTP: who is answered what, and what the feed tells."""

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from tests.client.cli import golden
from tests.daemon.helpers import House, engine, eventually, local_channel
from ultima.cli import main, web
from ultima.daemon.base.errors import StartupError
from ultima.daemon.engine.engine import Status
from ultima.daemon.process.server import Daemon
from ultima.daemon.web import site
from ultima.daemon.web.feed import CLIENTS_MAX, Feed
from ultima.v1 import admin_pb2, admin_pb2_grpc

PAGE_BYTES_MAX = 100_000


def base(daemon: Daemon) -> str:
    assert daemon.site is not None
    return f"http://127.0.0.1:{daemon.site.port}"


@contextlib.asynccontextmanager
async def browser(daemon: Daemon, enter: bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    """Who has opened the page; over a unix socket if the daemon has one."""
    assert daemon.site is not None
    address = daemon.site.address()
    if address.startswith("unix:"):
        unix = aiohttp.UnixConnector(address.removeprefix("unix:"))
        async with aiohttp.ClientSession("http://localhost", connector=unix) as session:
            yield session
        return
    jar = aiohttp.CookieJar(unsafe=True)  # which numeric addresses are to it
    async with aiohttp.ClientSession(base(daemon), cookie_jar=jar) as session:
        if enter:
            async with session.get(address) as answer:
                assert answer.status == 200 and str(answer.url) == f"{base(daemon)}/", "the token is in no address"
        yield session


async def pictures(session: aiohttp.ClientSession, count: int) -> list[Any]:
    """The first ones of the feed."""
    found: list[Any] = []
    async with session.get("/feed") as answer:
        assert answer.status == 200 and answer.content_type == "text/event-stream"
        async for line in answer.content:
            if line.startswith(b"data: "):
                found.append(json.loads(line.removeprefix(b"data: ")))
                if len(found) == count:
                    return found
    raise AssertionError(found)


async def test_page__is_one_small_file_that_asks_nobody_else(house: House) -> None:
    daemon = await house.daemon(web="127.0.0.1:0")
    async with browser(daemon) as session, session.get("/") as answer:
        text, headers = await answer.text(), answer.headers
    assert len(text.encode()) < PAGE_BYTES_MAX
    nonce = re.search(r"script-src 'nonce-([\w-]{20,})'", headers["Content-Security-Policy"])
    assert nonce is not None and "default-src 'none'" in headers["Content-Security-Policy"]
    assert text.count(f'nonce="{nonce[1]}"') == 2 and site.NONCE not in text
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    assert not re.search(r"""(?:src|href)=["'](?!data:)|https?://(?!www\.w3\.org/2000/svg)|@import|url\(""", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\sstyle=|\son\w+=", text)
    async with browser(daemon) as session, session.get("/") as answer:
        assert nonce[1] not in await answer.text(), "a nonce is good for one answer"


async def test_token__opens_the_page_once(house: House) -> None:
    daemon = await house.daemon(web="127.0.0.1:0")
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        address = (await stub.OpenPage(admin_pb2.OpenPageRequest(), timeout=5)).address
    assert address.startswith(f"{base(daemon)}/?token=")
    async with browser(daemon, enter=False) as stranger:
        for path in ("/", "/feed", "/ready", "/?token=", "/?token=x"):
            async with stranger.get(path) as answer:
                assert answer.status == (403 if "token" in path else 401) and "ultima web" in await answer.text()
        async with stranger.get(address, allow_redirects=False) as answer:
            assert answer.status == 303 and answer.headers["Location"] == "/"
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
        async with stranger.get("/") as answer:
            assert answer.status == 200
    async with browser(daemon, enter=False) as other, other.get(address) as answer:
        assert answer.status == 403


async def test_requests__that_are_refused(house: House) -> None:
    daemon = await house.daemon(web="127.0.0.1:0")
    async with browser(daemon) as session:
        for method in ("POST", "HEAD", "PUT", "DELETE", "OPTIONS"):
            async with session.request(method, "/") as answer:
                assert answer.status == 405 and answer.headers["Allow"] == "GET"
        for path in ("/", "/feed", "/ready"):
            async with session.get(path, headers={"Host": "evil"}) as answer:
                assert answer.status == 421
            async with session.get(path, headers={"Origin": "http://evil"}) as answer:
                assert answer.status == 403
            async with session.get(path, headers={"Sec-Fetch-Site": "cross-site"}) as answer:
                assert answer.status == 403
        async with session.get("/%2e%2e/page.html") as answer:
            assert answer.status == 404 and "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


async def test_feed__tells_jobs_peers_events_and_why(house: House) -> None:
    daemons = [await house.daemon(web="127.0.0.1:0" if not index else "") for index in range(2)]
    await house.job(daemons, "<script>")
    fake = engine(daemons[0])
    for _ in range(20):
        fake.op_done(0, elapsed_ns=4_000_000)
    fake.op_done(0, Status.PARTIAL, elapsed_ns=9_000_000, missing=1000)
    await eventually(lambda: daemons[0].jobs.all()[0].record.ring.total == 21, "ops are recorded")
    async with browser(daemons[0]) as session:
        first, second = await pictures(session, 2)
    (job,) = first["jobs"]
    assert (job["name"], job["state"], job["ranks"], job["ops"]) == ("<script>", "running", 2, [20, 1, 0, 0])
    assert (job["p50_us"], job["p99_us"], job["missing_bytes"]) == (4000, 9000, 1000)
    assert [(peer["own"], peer["state"], peer["ranks"]) for peer in job["peers"]] == [
        (True, "up", [0]),
        (False, "up", [1]),
    ]
    assert job["now"][:5] == [4000, 9000, 21, 1000, 1] and len(first["past"][job["id"]]) == 119
    assert first["why"]["level"] == "warning" and "1 of the last 21 ops were not complete" in first["why"]["text"]
    kinds = [event["kind"] for event in first["events"]]
    assert kinds[0] == "daemon_started" and {"job_begins", "host_up", "ops_not_complete"} <= set(kinds)
    assert "past" not in second and second["events"] == [], "what was told is not told again"
    assert second["jobs"][0]["now"][2] == 0
    daemons[0].jobs.recorder.events.note("log_level", "it changed")
    async with browser(daemons[0]) as session:
        assert (await pictures(session, 1))[0]["events"][-1]["text"] == "it changed"


async def test_feed__tells_how_the_view_of_a_job_changed(house: House) -> None:
    daemons = [await house.daemon(web="127.0.0.1:0" if not index else "") for index in range(3)]
    await house.job(daemons, "train")
    await house.stop(daemons[2])
    council = daemons[0].jobs.fellows.council

    def without_it() -> bool:
        view = council.view(daemons[0].jobs.all()[0])
        return view is not None and view.ranks == (0, 1)

    await eventually(without_it, "a view without it")
    async with browser(daemons[0]) as session:
        (picture,) = await pictures(session, 1)
    row = picture["jobs"][0]["views"][-1]
    assert abs(row.pop("at_ms") - picture["at_ms"]) < 20_000 and row.pop("from_op") >= 0
    rest = {"number": 1, "why": "host 2 is gone", "came": [], "left": [], "gone": [2], "hosts": 2, "seats": 3}
    assert row == rest
    daemons[0].jobs.recorder.events.note("view_changed", "view 7 of job train from op x", "train")
    async with browser(daemons[0]) as session:
        assert len((await pictures(session, 1))[0]["jobs"][0]["views"]) == len(picture["jobs"][0]["views"])


async def test_feed__is_for_eight_and_rests_without_any(house: House) -> None:
    daemon = await house.daemon(web=f"unix:{house.folder}/web.sock")
    fake = engine(daemon)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(CLIENTS_MAX):
            session = await stack.enter_async_context(browser(daemon))
            answer = await stack.enter_async_context(session.get("/feed"))
            assert answer.status == 200
            await answer.content.readuntil(b"\n\n")
        async with browser(daemon) as ninth:
            async with ninth.get("/feed") as answer:
                assert answer.status == 503
            async with ninth.get("/ready") as answer:
                assert await answer.text() == "full\n"
        before = fake.snapshots
        await asyncio.sleep(2.0)
        assert fake.snapshots - before <= 3, "one snapshot a second for all of them"
    await eventually(lambda: not daemon.site._feed._clients, "all have gone")  # type: ignore[union-attr]
    before = fake.snapshots
    await asyncio.sleep(1.2)
    assert fake.snapshots - before <= 1, "nothing is asked while nobody looks"


async def test_feed__who_is_slow_misses_pictures_and_who_fails_ends_all(caplog: pytest.LogCaptureFixture) -> None:
    class View:
        count = 0
        rested = 0

        def picture(self) -> dict[str, Any]:
            self.count += 1
            if self.count == 8:
                raise RuntimeError("planted")
            return {"number": self.count}

        def past(self) -> dict[str, Any]:
            return {"past": True}

        def rest(self) -> None:
            self.rested += 1

    view = View()
    feed = Feed(view, seconds=0.01)
    follower = feed.follow()
    assert json.loads(await anext(follower)) == {"number": 1, "past": True}
    await eventually(lambda: view.count >= 4, "pictures are made")
    assert json.loads(await anext(follower))["number"] >= 4
    await eventually(lambda: view.rested == 1, "it rests")
    assert [json.loads(picture)["number"] async for picture in follower] in ([], [7])
    assert "planted" in caplog.text


async def test_socket__has_the_daemons_mode_and_goes_with_it(house: House) -> None:
    path = house.folder / "web.sock"
    daemon = await house.daemon(web=f"unix:{path}")
    assert path.stat().st_mode & 0o777 == 0o660
    async with browser(daemon) as session, session.get("/") as answer:
        assert answer.status == 200
    async with browser(daemon) as session, session.get("/", headers={"Host": "evil"}) as answer:
        assert answer.status == 421
    await house.stop(daemon)
    assert not path.exists()


async def test_connections__are_bounded_and_must_speak(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "HELLO_SECONDS", 0.5)
    monkeypatch.setattr(site, "CONNECTIONS_MAX", 4)
    daemon = await house.daemon(web="127.0.0.1:0")
    assert daemon.site is not None
    async with browser(daemon) as session, session.get("/") as answer:
        assert answer.status == 200
        lines = [await asyncio.open_connection("127.0.0.1", daemon.site.port) for _ in range(8)]
        async with session.get("/ready") as ready:  # the line of who may look is not the one that makes room
            assert ready.status == 200
        for line, _ in lines:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(line.read(), 5) == b"", "who says nothing is hung up on"
    for _, each in lines:
        each.close()


async def test_connections__strangers_who_ask_once_and_stay(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is told how to get in, and hung up on: whoever may look finds room."""
    monkeypatch.setattr(site, "CONNECTIONS_MAX", 4)
    daemon = await house.daemon(web="127.0.0.1:0")
    assert daemon.site is not None
    for _ in range(8):
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.site.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 401 ") and b"Connection: close" in answer
        writer.close()
    stay = [await asyncio.open_connection("127.0.0.1", daemon.site.port) for _ in range(8)]
    async with browser(daemon) as session, session.get("/") as page:
        assert page.status == 200
    for _, each in stay:
        each.close()


async def test_verb__prints_an_address_for_people_and_scripts(house: House) -> None:
    """`ultima web`: the address alone goes to standard output."""

    async def said(daemon: Daemon, *flags: str) -> Any:
        arguments = ["web", *flags, "--socket", str(daemon.config.socket)]
        return await asyncio.to_thread(CliRunner().invoke, main.build(), arguments)

    on, off = await house.daemon(web="127.0.0.1:0"), await house.daemon()
    plain = await said(on)
    assert plain.exit_code == 0 and re.fullmatch(rf"{base(on)}/\?token=\S+\n", plain.stdout)
    assert "ssh -L" in plain.stderr and all(len(line) <= 80 for line in plain.stderr.splitlines())
    found = json.loads((await said(on, "--json")).stdout)
    golden.check("web", {key: type(value).__name__ for key, value in found.items()})
    refused = await said(off)
    assert refused.exit_code == 1 and refused.stdout == "" and refused.stderr.count("\n") == 1
    assert web.hints("unix:/run/ultima/web.sock")[0].startswith("From your desk: ssh -L 29518:/run/ultima/web.sock ")


async def test_off__nothing_listens_and_the_answer_says_so(house: House) -> None:
    daemon = await house.daemon()
    assert daemon.site is None
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        with pytest.raises(Exception, match="web = '': this daemon serves no page"):
            await stub.OpenPage(admin_pb2.OpenPageRequest(), timeout=5)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"web": "0.0.0.0:29518"}, "web = '0.0.0.0:29518': allowed: 127.0.0.1:PORT"),
        ({"web": "unix:relative"}, "allowed: 127.0.0.1:PORT"),
        ({"web": "127.0.0.1:29519", "metrics": "127.0.0.1:29519"}, "metrics are asked for there"),
    ],
)
async def test_config__is_loopback_or_a_socket(house: House, flags: dict[str, object], text: str) -> None:
    with pytest.raises(StartupError, match=re.escape(text)):
        await house.daemon(**flags)


async def test_start__a_port_that_is_taken_is_named(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"web = '127.0.0.1:{port}': Address already in use"):
            await house.daemon(web=f"127.0.0.1:{port}")


async def test_start__without_aiohttp_says_what_to_install(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "ultima.daemon.web.site")
    with pytest.raises(StartupError, match=r"needs aiohttp, which is not installed: pip install 'ultimad\[web\]'"):
        await house.daemon(web="127.0.0.1:0")


def test_daemon__without_a_page_does_not_load_aiohttp() -> None:
    """Seven packages and 10 MB that most daemons do not need."""
    daemon = Path(site.__file__).parents[1]
    for path in daemon.rglob("*.py"):
        loads = re.search(r"^(?:from|import) .*(?:web\.site\b|aiohttp)", path.read_text(), re.MULTILINE)
        assert path == Path(site.__file__) or loads is None, path
