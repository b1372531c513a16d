# SPDX-License-Identifier: Apache-2.0
"""The daemon at work in the unit's sandbox: what it does there must all be allowed, and what it need not do is not."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ultima
from tests.daemon.process.test_deploy import UNIT
from tests.e2e.hosts import ADDRESS, DaemonProcess, everywhere, ranks, running
from tests.e2e.test_past import told
from ultima.admin.operate import open_page

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(120)]

SANDBOX = [sys.executable, "-m", "tests.daemon.process.sandbox", str(UNIT)]
ROOT = UNIT.parents[2]
FORBIDDEN = """
import ctypes, errno, mmap, os, socket, sys

def refused(what, *wanted):
    try:
        what()
    except OSError as error:
        assert error.errno in wanted, error
    else:
        sys.exit(f"allowed: {what}")

libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)

with open(sys.argv[1] + "/mine", "w") as file:
    file.write("writable")
assert os.stat(file.name).st_mode & 0o777 == 0o600
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
refused(lambda: open(sys.argv[2], "a"), errno.EROFS)
refused(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW), errno.EAFNOSUPPORT)
refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1), errno.EPERM)
refused(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC), errno.EPERM)
refused(lambda: call("unshare", 0x10000000), errno.EPERM)
refused(lambda: call("mount", b"/", b"/", None, 0x1000, None), errno.EPERM)
refused(lambda: call("ptrace", 0, 0, 0, 0), errno.EPERM)
refused(lambda: os.chown(file.name, 1, 1), errno.EPERM)
refused(lambda: os.setuid(1), errno.EPERM)
"""


def test_sandbox__refuses_what_a_daemon_need_not_do(tmp_path: Path) -> None:
    """Else the next test would show nothing."""
    command = [*SANDBOX, str(tmp_path), sys.executable, "-c", FORBIDDEN, str(tmp_path), str(ROOT / "README.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


class Confined(DaemonProcess):
    """A daemon in the sandbox; only its own folder can be written to."""

    def launch(self) -> None:
        (self.folder / "state").mkdir(exist_ok=True)
        flags = ["--runtime-dir", str(self.folder / "run"), "--port", str(self.port), "--bind", ADDRESS, "--insecure"]
        variables = {
            "ULTIMAD_STATE_DIR": str(self.folder / "state"),
            "ULTIMAD_WEB": f"unix:{self.folder}/run/web.sock",
            "ULTIMAD_METRICS": f"unix:{self.folder}/run/metrics.sock",
        }
        command = [*SANDBOX, str(self.folder), str(Path(sys.executable).with_name("ultimad")), *flags]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[assignment]
                command, cwd=ROOT, env=os.environ | variables, stdout=log, stderr=log
            )


@contextlib.contextmanager
def confined(folder: Path) -> Iterator[Confined]:
    daemon = Confined(folder)
    try:
        daemon.launch()
        daemon.wait_until_ready()
        yield daemon
    finally:
        daemon.kill()


def test_sandbox__a_daemon_trains_records_and_ends_in_it() -> None:
    with tempfile.TemporaryDirectory(prefix="ultima-") as folder, running(1) as (free,):
        with confined(Path(folder) / "d") as daemon:
            status = Path(f"/proc/{daemon.pid}/status").read_text()
            assert "\nSeccomp:\t2\n" in status and "\nCapEff:\t0000000000000000\n" in status
            assert "\nNoNewPrivs:\t1\n" in status
            with ranks([daemon, free]) as jobs:
                for count in (10, 100_000, 1_000_000):
                    found = everywhere(jobs, lambda _, job, n=count: job.allreduce(np.ones(n, np.float32), "sum"))
                    assert all(isinstance(each, ultima.Receipt) and each.complete for each in found), daemon.log()
                everywhere(jobs, lambda _, job: job.barrier())
                job = told(daemon, "jobs")["jobs"][0]
                assert job["ops"]["complete"] >= 3
                assert told(daemon, "metrics")["metrics"] and told(daemon, "config", "show")
                assert open_page(str(daemon.socket)).startswith("unix:")
                checks = told(daemon, "doctor", "--peer", free.rendezvous)["checks"]
                verdicts = {each["name"]: each["verdict"] for each in checks}
                assert "failure" not in verdicts.values() and verdicts["interface mtu"] == "ok", checks
            daemon.signal(signal.SIGHUP)
            until = time.monotonic() + 20
            while not told(daemon, "history")["minutes"]:
                assert time.monotonic() < until, "the history reaches the disk"
                time.sleep(0.5)
            assert told(daemon, "history")["on_disk"] is True
            assert daemon.stop() == 0, daemon.log()
        log = (Path(folder) / "d" / "log").read_text()
        assert "Operation not permitted" not in log and "Traceback" not in log, log
