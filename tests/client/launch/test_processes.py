# SPDX-License-Identifier: Apache-2.0
"""Children: what they inherit, what is said of one that cannot be started, and that none outlives who started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ultima
from ultima.launch import processes

ROOT = Path(ultima.__file__).parent
TREE = """
import os, subprocess, sys, time
from ultima.launch.processes import start
child = start([sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(60)"], os.environ)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_start__hands_on_environment_descriptors_and_signals() -> None:
    near, far = os.pipe()
    program = f"import os; os.write({far}, os.environ['GIVEN'].encode())"
    with processes.start([sys.executable, "-c", program], {**os.environ, "GIVEN": "this"}, [far]) as child:
        assert child.wait(20) == 0
    assert os.read(near, 10) == b"this"
    for each in (near, far):
        os.close(each)
    with processes.start(["sh", "-c", "kill -s PIPE $$"], os.environ) as child:
        assert child.wait(20) == -signal.SIGPIPE, "Python ignores it; the program does not"


@pytest.mark.parametrize("program", ["/no/such/program", "no-such-program", "./"])
def test_start__says_why_not(program: str) -> None:
    why = "Permission denied" if program == "./" else "No such file or directory"
    with pytest.raises(processes.LaunchFailed, match=f"'{program}' cannot be started: {why}"):
        processes.start([program], os.environ)


def test_start__what_the_kernel_does_not_run_says_so(tmp_path: Path) -> None:
    program = tmp_path / "empty"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o700)
    with processes.start([str(program)], os.environ, streams=(None, None, subprocess.PIPE)) as child:
        assert child.stderr is not None and child.stderr.read().decode().endswith(
            "cannot be started: Exec format error\n"
        )
    assert child.returncode == 127


def test_start__an_interrupt_in_the_first_moments_ends_the_child_without_a_trace() -> None:
    """It waits until the child is about to become the program, which has it as usual."""
    for at in range(12):
        child = processes.start(["sleep", "9"], os.environ, streams=(None, None, subprocess.PIPE))
        time.sleep(at * 0.002)
        child.send_signal(signal.SIGINT)
        assert (child.communicate(timeout=30)[1], child.returncode) == (b"", -signal.SIGINT), at
    told = processes.start(["grep", "SigBlk", "/proc/self/status"], os.environ, streams=(None, subprocess.PIPE, None))
    assert int(told.communicate(timeout=30)[0].split()[1], 16) == 0


def test_start__no_child_outlives_who_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = sorted(parent.stdout.readline().strip() for _ in range(2))
        assert lines[1] == "runs"
        parent.kill()
    limit = time.monotonic() + 20
    while Path(f"/proc/{lines[0]}").exists() and "\nState:\tZ" not in Path(f"/proc/{lines[0]}/status").read_text():
        assert time.monotonic() < limit, "it lives on"
        time.sleep(0.01)


def test_house__nothing_forks_where_grpc_has_threads() -> None:
    """Popen forks for a preexec_fn; gRPC starts its threads anew in the child, and aborts there once descriptors are
    closed (grpc/grpc#43157). It is a matter of moments, so the code is looked at."""
    told = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in ROOT.rglob("*.py")
        for word in ("preexec_fn=", "os.fork(")
        if word in path.read_text()
    ]
    assert told == []
