# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium out of Debian's packages for tests of pages; playwright drives it, and downloads none itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium-headless-shell", "chromium")


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """One that ends with the block. Fails, and says what to do, if there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path, "no Chromium is here: run .ci/browser, or install the Debian package chromium-headless-shell"
    with sync_playwright() as driver:
        # As root Chromium has no sandbox of its own; it sees no page but ours.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", *flags])
        try:
            yield browser
        finally:
            browser.close()
