# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: which may be skipped, which come first, which run alone, how patient they are, and that
signals do what they usually do.
"""

import fcntl
import os
import resource
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path

import pytest

from tests.lab.lab import unavailable
from tests.patience import be_patient

HERE = Path(__file__).parent
be_patient()
PIDS_MAX = [Path("/proc/sys/kernel/threads-max"), Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids/pids.max")]
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where a test failed: what the machine has, since that is often why it failed there and nowhere else."""
    if not terminalreporter.stats.get("failed"):
        return
    tasks = sum(_threads(each) for each in Path("/proc").glob("[0-9]*"))
    most = {each.name: each.read_text().strip() for each in PIDS_MAX if each.is_file()}
    user = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    terminalreporter.write_line(
        f"machine: {os.cpu_count()} processors, load {load}; {tasks} threads now, allowed: {user} a user, {most}"
    )


def _threads(process: Path) -> int:
    """Of one process; none if it has ended meanwhile."""
    with suppress(OSError):
        return len(os.listdir(process / "task"))
    return 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Workers that all import every test begin at different files, so that each finds most of them compiled.

    pytest rewrites the asserts of a test when it is first imported and keeps the result; at a new checkout workers in
    step would each do that for all. A file that cannot be imported is reported by the collection that follows.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if workers == 1 or [os.path.abspath(path) for path in session.config.args] != [str(HERE)]:
        return
    mine = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    files = sorted(HERE.rglob("test_*.py"))
    first = len(files) * mine // workers
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(HERE.parent).with_suffix("").parts))


# By their longest files: a worker that is through with a file takes the next, and the last ones should be short.
FIRST = ("sim/test_sim.py", "torch/", "sim/", "c/", "lab/", "client/cli/", "e2e/", "reproduce/", "hostile/", "daemon/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `root` are skipped, with the reason, where no lab of namespaces can be made. Files with a test that
    is to run alone go first, where no other has to end before it, and then long rooms.
    """
    marked = [item for item in items if item.get_closest_marker("root") is not None]
    reason = unavailable() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
    begin = [f"tests/{name}" for name in FIRST]
    lonely = {item.path for item in items if item.get_closest_marker("alone") is not None}

    def place(item: pytest.Item) -> int:
        if item.path in lonely:
            return -1
        return next((place for place, room in enumerate(begin) if item.nodeid.startswith(room)), len(begin))

    items.sort(key=place)


@contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """A lock on a file of ours, shared by all runs of this checkout; the kernel drops it with its holder."""
    with path.open("rb") as file:
        fcntl.flock(file, how)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` runs while no other does: what it measures, another's work would change.

    All pass the gate one by one. Whoever wants to be alone stays in it until the others have left the floor, so that
    they cannot come back before. This waits outside of the test's timeout.
    """
    gate, floor = HERE / "__init__.py", Path(__file__)
    alone = item.get_closest_marker("alone") is not None
    with ExitStack() as locks:
        with held(gate, fcntl.LOCK_EX):
            locks.enter_context(held(floor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        return (yield)
