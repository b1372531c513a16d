# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: which may be skipped, how patient they are, and that signals do what they usually do."""

import os
import signal
from collections.abc import Generator

import pytest

from tests.lab.lab import unavailable
from tests.patience import be_patient

be_patient()
# In the background, or under nohup, a shell has them ignored, and what the tests start would rightly inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    """With ULTIMA_NO_SKIP=1 a skipped test is a failed one, save those marked `gpu`.

    Continuous integration has root and namespaces. A test that skips there guards nothing, and nobody would notice.
    """
    report = yield
    assert isinstance(report, pytest.TestReport)
    strict = os.environ.get("ULTIMA_NO_SKIP") == "1"
    if strict and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("gpu") is None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may not be skipped here: {report.longrepr}"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `root` are skipped, with the reason, where no lab of namespaces can be made."""
    marked = [item for item in items if item.get_closest_marker("root") is not None]
    reason = unavailable() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
