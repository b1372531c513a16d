# SPDX-License-Identifier: Apache-2.0
"""What tests/nursery.py starts is as `python -m` would have it, and ends as it should."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.nursery import Nursery, Process

PROGRAM = """
import atexit, json, os, signal, sys, threading
atexit.register(lambda: print("the end"))
here = sys.modules["__main__"]
print(json.dumps({
    "name": __name__, "file": __file__, "main": here.__spec__.name, "argv": sys.argv, "cwd": os.getcwd(),
    "variables": [os.environ.get(name) for name in ("NURSERY_TEST", "HOME")], "stdin": sys.stdin.read(),
    "group": os.getpgid(0) == os.getpid(), "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler, "mine": vars(here) is globals(),
    "preloaded": "graphlib" in sys.modules, "threads": threading.active_count(), "path": sys.path[0],
}))
"""
ENDS = {
    "pass": 0,
    "raise SystemExit(7)": 7,
    "raise ValueError('the reason')": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
    "raise KeyboardInterrupt": -signal.SIGINT,
}
SLEEPS = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery(["graphlib"])
    yield made
    made.close()


@pytest.fixture
def begin(nursery: Nursery, tmp_path: Path) -> Callable[..., Process]:
    def start(text: str, **options: Any) -> Process:
        (tmp_path / "program.py").write_text(text)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return nursery.start("program", ["one", "two words"], cwd=tmp_path, **{**pipes, **options})

    return start


def test_child__is_what_python_would_have_made(begin: Callable[..., Process], tmp_path: Path) -> None:
    """But for one thing: the module that the nursery has imported is there already."""
    variables = {"NURSERY_TEST": "x", "PATH": os.environ["PATH"]}
    out, errors = begin(PROGRAM, environment=variables).communicate(30)
    command = [sys.executable, "-m", "program", "one", "two words"]
    usual = subprocess.run(
        command, cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, process_group=0
    )
    assert (usual.returncode, usual.stderr, errors) == (0, "", "")
    assert '"preloaded": false' in usual.stdout
    assert out == usual.stdout.replace('"preloaded": false', '"preloaded": true')
    assert out.endswith("\nthe end\n")


@pytest.mark.parametrize("text", ENDS)
def test_end__status_is_pythons(begin: Callable[..., Process], text: str) -> None:
    process = begin(text)
    _, errors = process.communicate(30)
    assert process.returncode == process.wait() == process.poll() == ENDS[text]
    assert ("ValueError: the reason" in errors) == (ENDS[text] == 1)


def test_signals__reach_it_and_patience_ends(begin: Callable[..., Process]) -> None:
    process = begin(SLEEPS)
    assert process.stdout.readline() == b"up\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(0.01)
    process.terminate()
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    process.kill()  # nobody, and certainly nobody else's process
    assert process.communicate(30) == process.communicate(30) == ("", "")


def test_children__may_be_many_and_end_in_any_order(begin: Callable[..., Process]) -> None:
    first, second = begin(SLEEPS), begin(SLEEPS)
    assert first.pid != second.pid
    second.kill()
    assert second.wait(30) == -signal.SIGKILL
    assert first.poll() is None
    first.kill()
    assert first.wait(30) == -signal.SIGKILL


def test_files__get_what_is_said(begin: Callable[..., Process], tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        process = begin("import sys; print('out', flush=True); print('err', file=sys.stderr)", stdout=log, stderr=log)
    assert process.wait(30) == 0
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_files__standard_error_can_follow_standard_output(begin: Callable[..., Process]) -> None:
    text = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    assert begin(text, stderr=subprocess.STDOUT).communicate(30) == ("out\nerr\n", "")


@pytest.mark.root
def test_namespace__is_the_network_that_the_child_has(begin: Callable[..., Process]) -> None:
    """As under `ip netns exec`; the nursery itself, and its next child, stay where they are."""
    where = "import os; print(os.readlink('/proc/self/ns/net'))"
    here = os.readlink("/proc/self/ns/net") + "\n"
    with Lab(1) as lab:
        usual = lab.host(0).run(["readlink", "/proc/self/ns/net"]).stdout
        assert usual != here
        assert begin(where, namespace=lab.host(0).namespace).communicate(30) == (usual, "")
        assert begin(where).communicate(30) == (here, "")
    gone = begin(where, namespace=lab.host(0).namespace)
    out, errors = gone.communicate(30)
    assert (out, gone.returncode) == ("", 1) and "FileNotFoundError" in errors


def test_nursery__takes_its_children_along(tmp_path: Path) -> None:
    """Also when whoever made it was killed: then its line is closed as well."""
    (tmp_path / "program.py").write_text(SLEEPS)
    made = Nursery([])
    process = made.start("program", cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    made.close()
    made.close()
    assert process.wait(30) == -signal.SIGKILL
    limit = time.monotonic() + 30
    while Path(f"/proc/{process.pid}").exists():
        assert time.monotonic() < limit, "it outlived its nursery"
        time.sleep(0.01)


def test_nursery__of_one_name_is_one_process_whose_children_end_with_who_asked(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os; print(os.getppid(), flush=True); " + SLEEPS)
    first, second = (Nursery([], f"test-{os.getpid()}") for _ in range(2))
    mine, other = (
        made.start("program", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for made in (first, second)
    )
    assert mine.stdout.readline() == other.stdout.readline() != b""
    first.close()
    assert mine.wait(30) == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.2)
    again = second.start("program", cwd=tmp_path, stdout=subprocess.PIPE)
    assert again.stdout.readline().strip().isdigit()
    second.close()
    assert (other.wait(30), again.wait(30)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_nursery__refuses_to_fork_with_a_thread(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    command, environment = (
        [sys.executable, "-m", "tests.nursery", "threaded"],
        os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
    )
    assert done.returncode != 0
    assert "a fork would leave a thread behind" in done.stderr
