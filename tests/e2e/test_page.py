# SPDX-License-Identifier: Apache-2.0
"""The status page of a real daemon in a real browser: what it paints, and what it withstands."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

import ultima
from tests.browser import chromium
from tests.e2e.elastic import enter_all
from tests.e2e.hosts import Hosts, everywhere, free_port, ranks, running
from ultima.admin.operate import open_page

JOB = '<script>document.title="taken"</script><img src=x onerror=alert(1)>'
WAIT_MS = 20_000
#: Resolves with when the page was first painted. The text stands in the document before a frame shows it.
FIRST_PAINT = f"""() => new Promise((painted, never) => {{
    setTimeout(() => never(new Error("nothing was painted in {WAIT_MS} ms")), {WAIT_MS});
    new PerformanceObserver((list) => {{
        for (const paint of list.getEntriesByName("first-contentful-paint")) painted(paint.startTime);
    }}).observe({{type: "paint", buffered: true}});
}})"""

expect.set_options(timeout=WAIT_MS)
pytestmark = [pytest.mark.check, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--host-resolver-rules=MAP evil 127.0.0.1") as found:
        yield found


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two daemons, of which the first has a page and a folder that outlives it."""
    with running(2) as found:
        found[0].stop()
        state = tmp_path_factory.mktemp("state")
        found[0].environment |= {"ULTIMAD_WEB": f"127.0.0.1:{free_port()}", "ULTIMAD_STATE_DIR": str(state)}
        found[0].launch()
        found[0].wait_until_ready()
        yield found


@contextmanager
def training(hosts: Hosts, late_s: float = 0.0) -> Iterator[None]:
    """A job with a wicked name whose ops go on until the block ends; rank 1 calls each so much later."""
    over = threading.Event()

    def one(rank: int, job: ultima.Job) -> None:
        time.sleep(late_s if rank == 1 else 0)
        job.allreduce(np.ones(5000, np.float32))

    def work(jobs: Any) -> None:
        while not over.wait(0.05):
            everywhere(jobs, one)

    with ranks(hosts, job=JOB) as jobs:
        thread = threading.Thread(target=work, args=(jobs,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(30)


@contextmanager
def opened(browser: Browser, hosts: Hosts, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """The page as `ultima web` opens it, and what the browser complains about."""
    context = browser.new_context(**options)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.goto(open_page(str(hosts[0].socket)))
    try:
        yield page, said
    finally:
        context.close()


def test_page__paints_jobs_as_text_and_asks_nobody_else(browser: Browser, hosts: Hosts) -> None:
    with training(hosts), opened(browser, hosts) as (page, said):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        expect(page.locator("article.job h3")).to_have_text(JOB, timeout=WAIT_MS)
        expect(page.locator("article.job .tag")).to_have_text("running")
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("article.job .place")).to_have_text("2 ranks · 2 of 2 hosts")
        expect(page.locator("#why span")).to_contain_text("job", timeout=WAIT_MS)
        expect(page.locator("#peers tbody tr")).to_have_count(2)
        expect(page.locator("#events li").last).to_contain_text("is ready, pid")
        expect(page.locator("article.job dd").nth(1)).to_have_text(re.compile(r"^[\d.]+ ms$"), timeout=WAIT_MS)
        expect(page.locator("path.p50:not(.lone)")).to_have_attribute("d", re.compile("M.*L"), timeout=WAIT_MS)
        assert page.title() in ("Ultima", "! Ultima")
        assert page.locator("main script, main img").count() == 0
        assert said == []
        page.reload()
        expect(page.locator("article.job h3")).to_have_text(JOB, timeout=WAIT_MS)
        assert {url.rpartition("/")[2] for url in asked} == {"", "feed"} and said == []
        print(f"first paint after {page.evaluate(FIRST_PAINT):.0f} ms")
        size = page.evaluate("performance.getEntriesByType('navigation')[0].transferSize")
        assert 5_000 < size < 100_000


def test_page__names_a_rank_that_is_late_while_ops_stay_whole(browser: Browser, hosts: Hosts) -> None:
    with training(hosts, late_s=0.2), opened(browser, hosts) as (page, said):
        late = re.compile(rf"Straggler: \S+:{hosts[1].port} \(rank 1\), \d+ ms late for an op of \d+ ms")
        expect(page.locator("article.job .straggler")).to_have_text(late)
        expect(page.locator("#why span")).to_contain_text(f":{hosts[1].port} (rank 1): it calls an op ")
        expect(page.locator("article.job .tag")).to_have_text("slow or late")
        expect(page.locator("#hosts tbody tr")).to_have_count(2)
        expect(page.locator("#hosts tbody th").last).to_have_text(re.compile(rf":{hosts[1].port} \(rank 1\)$"))
        page.locator("#level").select_option("error")
        expect(page.locator("#none")).to_be_visible()
        assert page.title() == "! Ultima" and said == []


@pytest.mark.filterwarnings("ignore:.* holds NaN or infinity")
def test_page__tells_of_rounds_of_local_sgd(browser: Browser, hosts: Hosts) -> None:
    """Of rank 0, whose page it is: what it is told of rank 1 is of no account here."""
    with ranks(hosts, job="llm") as jobs, opened(browser, hosts) as (page, said):

        def one(rank: int, job: ultima.Job) -> ultima.Outer:
            model = np.zeros(500, np.float32)
            outer = ultima.Outer(job, {"w": model}, 2, weight=1.0 + 2 * rank)
            for step in range(9):
                model += np.inf if step == 5 else rank + 1
                outer.step()
            return outer

        outers = everywhere(jobs, one)
        card = page.locator("article.job", has=page.get_by_text("llm/outer", exact=True))
        expect(card.locator(".rounds")).to_have_text(
            re.compile(r"^Local SGD: 3 rounds, 1 void; round 4 stepped in [\d.]+ m?s, weight 4 of 4; computed \d+.* %")
        )
        expect(page.locator("article.job", has=page.get_by_text("llm", exact=True)).locator(".rounds")).to_have_text("")
        assert said == []
        for outer in outers:
            outer.close()


def test_page__fits_400_pixels_in_the_dark(browser: Browser, hosts: Hosts) -> None:
    narrow = {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"}
    with training(hosts), opened(browser, hosts, **narrow) as (page, said):
        expect(page.locator("article.job h3", has_text=JOB)).to_have_text(JOB, timeout=WAIT_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        brightness = "getComputedStyle(document.body).{}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
        assert (
            page.evaluate(brightness.format("backgroundColor")) < 150 < 500 < page.evaluate(brightness.format("color"))
        )
        assert said == []


def test_page__comes_back_after_a_restart_of_the_daemon(browser: Browser, hosts: Hosts) -> None:
    with opened(browser, hosts) as (page, _):
        expect(page.locator("#link")).to_have_text("live", timeout=WAIT_MS)
        before = page.locator("#events li").last.text_content()
        hosts[0].stop()
        expect(page.locator("#link")).not_to_have_text("live", timeout=WAIT_MS)
        hosts[0].launch()
        hosts[0].wait_until_ready()
        expect(page.locator("#link")).to_have_text("live", timeout=WAIT_MS)
        expect(page.locator("#events li").last).not_to_have_text(before or "")
        expect(page.locator("#events li").last).to_contain_text(f"pid {hosts[0].pid}")


def test_page__under_another_name_or_without_a_token_is_refused(browser: Browser, hosts: Hosts) -> None:
    port = hosts[0].environment["ULTIMAD_WEB"].rpartition(":")[2]
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(f"http://127.0.0.1:{port}/")
    assert answer is not None and answer.status == 401
    assert "ultima web" in page.inner_text("body")
    answer = page.goto(f"http://evil:{port}/")
    assert answer is not None and answer.status == 421
    context.close()


def test_page__that_is_over_says_how_to_open_it_again(browser: Browser, hosts: Hosts) -> None:
    with opened(browser, hosts) as (page, _):
        expect(page.locator("#link")).to_have_text("live", timeout=WAIT_MS)
        key = Path(hosts[0].environment["ULTIMAD_STATE_DIR"]) / "web.key"
        hosts[0].stop()
        key.unlink()
        hosts[0].launch()
        hosts[0].wait_until_ready()
        expect(page.locator("#link")).to_contain_text("run `ultima web`", timeout=WAIT_MS)


def test_page__tells_how_the_view_of_a_job_changed(browser: Browser, hosts: Hosts) -> None:
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], "views", most=2)
    try:
        rank = jobs[1].rank
        jobs.pop(1).leave()
        with opened(browser, hosts) as (page, said):
            card = page.locator("article.job", has=page.get_by_text("views", exact=True))
            summary = card.locator(".views summary")
            expect(summary).to_have_text(re.compile(r"^View \d+ has 1 of 2 hosts; how it changed$"))
            expect(card.locator(".views li").first).to_be_hidden()
            summary.click()
            rows = card.locator(".views li")
            expect(rows.first).to_contain_text(f"1 of 2 hosts: host {rank} leaves")
            expect(rows.last).to_contain_text("view 1 from op 0, 2 of 2 hosts: the job began")
            assert said == []
    finally:
        jobs[0].close()
