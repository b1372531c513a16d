# SPDX-License-Identifier: Apache-2.0
"""Runs tests of torch's own c10d suite, each on fresh ranks. `suite.py` starts it, one for each world size and backend.

    WORLD_SIZE=4 BACKEND=gloo RANK_SOCKETS='["/…/ultimad.sock", …]' python -m tests.torch.c10d.ranks ultima

Reads names of tests from standard input and answers each with a line of JSON. Torch starts every rank of every test
from nothing, seconds of imports each. Here this process imports once and forks the ranks, which is the same thing as
long as nothing has started a thread before.

The suite looks at BACKEND while it is imported, to skip what is for another backend, and at the module's variable when
a test runs. So the environment says "gloo", which lets every test stay that Gloo can do, and the variable is then set
to the backend under test.
"""

import atexit
import ctypes
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.distributed import distributed_test

import ultima.torch  # noqa: F401  # makes the backend known

BACKEND = sys.argv[1]
WORLD = int(os.environ["WORLD_SIZE"])
SOCKETS = json.loads(os.environ["RANK_SOCKETS"])
TEST_S = float(os.environ.get("TEST_S", "60"))
ERROR_STATUS = distributed_test.MultiProcessTestCase.TEST_ERROR_EXIT_CODE
SKIP_REASONS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
SKIP_MARK = "this rank skips: "
FOR_MPI = "Only MPI supports"
# Builds a module on the CPU for the backends that it knows by name, and nothing for others.
NEEDS_GLOO_NAME = "test_accumulate_gradients_no_sync"
LOG_BYTES = 4000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests of `_DistTestBase`, as torch's own test_distributed_spawn.py puts them together."""

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        """Torch's, but a rank that skips says why: torch keeps that to a log that nobody has."""
        test = getattr(self, test_name)

        def say_why() -> None:
            try:
                test()
            except unittest.SkipTest as skipped:
                print(SKIP_MARK + str(skipped).replace("\n", " "), flush=True)
                raise

        if test_name.startswith(NEEDS_GLOO_NAME):
            distributed_test.BACKEND = "gloo"
        setattr(self, test_name, say_why)
        super().run_test(test_name, parent_pipe)


def tests() -> dict[str, str | None]:
    """Name of each test, and why it is skipped whatever the ranks say; None when it is not."""
    found: dict[str, str | None] = {}
    for name, function in inspect.getmembers(Suite, callable):
        if name.startswith("test"):
            skipped = getattr(function, "__unittest_skip__", False)
            reason = str(function.__unittest_skip_why__) if skipped else None
            # Gloo can do these by now; the suite has not heard of it.
            found[name] = None if reason is not None and reason.startswith(FOR_MPI) else reason
    return found


def run(name: str) -> dict[str, Any]:
    """One test on WORLD ranks: its outcome ("passed", "skipped" or "failed") and the reason of what is not passed."""
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="ultima-c10d-"))
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir()
    os.environ["TEMP_DIR"] = str(folder)
    os.environ["INIT_METHOD"] = f"file://{folder}/init_dir/shared_init_file"
    distributed_test.Barrier.init()
    ranks = dict(_fork(rank, name, folder) for rank in range(WORLD))
    statuses = _wait(ranks)
    logs = [(folder / f"rank{rank}.log").read_text(errors="replace")[-LOG_BYTES:] for rank in range(WORLD)]
    shutil.rmtree(folder)
    answer: dict[str, Any] = {"test": name, "seconds": round(time.monotonic() - started, 2)}
    # As torch reads them: a failure anywhere counts, and otherwise the first rank speaks for all.
    failed = [rank for rank, status in enumerate(statuses) if status == ERROR_STATUS or status is None or status < 0]
    if failed:
        texts = [f"rank {rank} ended with {statuses[rank]}\n{logs[rank]}" for rank in failed]
        return {**answer, "outcome": "failed", "reason": "\n".join(texts)}
    if statuses[0] in SKIP_REASONS:
        said = [line.removeprefix(SKIP_MARK) for line in logs[0].splitlines() if line.startswith(SKIP_MARK)]
        return {**answer, "outcome": "skipped", "reason": said[0] if said else SKIP_REASONS[statuses[0]]}
    if any(statuses):
        return {**answer, "outcome": "failed", "reason": f"statuses {statuses}\n" + "\n".join(logs)}
    return {**answer, "outcome": "passed", "reason": ""}


def _fork(rank: int, name: str, folder: Path) -> tuple[int, int]:
    """Starts one rank; its process id and its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child, rank
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    log = os.open(folder / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    os.environ["ULTIMA_SOCKET"] = SOCKETS[rank % len(SOCKETS)] if SOCKETS else ""
    _, sending = torch.multiprocessing.Pipe()
    status = 1
    try:
        Suite._run(rank, name, str(folder / "store"), sending)
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    # Without taking the interpreter down: that writes to every page which is shared with the parent, six seconds of it.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _wait(ranks: dict[int, int]) -> list[int | None]:
    """Exit status of each rank of {process: rank}; None for one that was killed when time was up or another failed."""
    statuses: list[int | None] = [None] * len(ranks)
    limit = time.monotonic() + TEST_S
    while ranks and time.monotonic() < limit and ERROR_STATUS not in statuses:
        for process, rank in list(ranks.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[rank] = os.waitstatus_to_exitcode(status)
                del ranks[process]
        time.sleep(0.01)
    time_is_up = ERROR_STATUS not in statuses
    for process, rank in ranks.items():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        # A rank that was waiting for one that failed is no failure of its own.
        statuses[rank] = None if time_is_up else 0
    return statuses


def main() -> None:
    distributed_test.BACKEND = BACKEND
    # Asked at run time only by the decorator that wants eight ranks of every backend but this.
    os.environ["BACKEND"] = "mpi"
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(tests()), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(line.strip())), file=answers, flush=True)


if __name__ == "__main__":
    main()
