# SPDX-License-Identifier: Apache-2.0
"""What one rank does in the tests of backward passes that fail, one class of failure after the other. As `cases.py`.

Each time both ranks wrap a model of several buckets in DDP, over a group of its own, and make one good step. Then
something goes wrong in the next one, on one rank. It prints with what each backward pass ended.
"""

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ultima
import ultima.torch
from tests.patience import GRACE_S, be_patient

RANK = int(os.environ["RANK"])
DEADLINE_S = 0.5
SIZE, LAYERS, BUCKETS = 300, 6, 3
be_patient()


def model_on(group: Any, hook: str = "none") -> DistributedDataParallel:
    """A model with several buckets, after one good step."""
    layers = [nn.Linear(SIZE, SIZE) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.5)
    if hook == "average_hook":
        model.register_comm_hook(group, ultima.torch.average_hook)
    elif hook == "allreduce_hook":
        model.register_comm_hook(ultima.torch.HookState(group), ultima.torch.allreduce_hook)
    for _ in range(2):  # after the first step DDP cuts its buckets anew
        assert step(model) == ""
    return model


def step(model: nn.Module) -> str:
    """With what a step ended; "" if it did not raise."""
    try:
        model(torch.ones(2, SIZE)).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def group_with(**environment: str) -> Any:
    """A new group, made under these variables."""
    os.environ.update(environment)
    try:
        return dist.new_group([0, 1])
    finally:
        for name in environment:
            del os.environ[name]


def desync() -> list[str]:
    group = group_with()
    model = model_on(group)
    if RANK == 0:
        return [step(model)]
    works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(BUCKETS)]
    for work in works:
        with suppress(ultima.Desync):
            work.wait()
    return []


def gone() -> list[str]:
    """Rank 1, in reliable mode."""
    found = []
    for hook in ("none", "allreduce_hook"):
        group = group_with(ULTIMA_MODE="reliable")
        model = model_on(group, hook)
        found += [step(model)] if RANK == 0 else []
        dist.destroy_process_group(group)
    return found


def insufficient() -> list[str]:
    """Rank 1 does not come by the deadline, where own values alone are an error."""
    found = []
    for hook in ("none", "average_hook"):
        model = model_on(group_with(ULTIMA_ON_INSUFFICIENT="raise", ULTIMA_DEADLINE=f"{DEADLINE_S}s"), hook)
        found += [step(model)] if RANK == 0 else []
    return found


def while_it_waits(act: Callable[[], None], seconds: float = 0.1) -> threading.Thread:
    def later() -> None:
        time.sleep(seconds)
        act()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


def killed() -> list[str]:
    """The daemon of rank 1, while that waits for buckets that rank 0 does not call; and the steps after that.

    Nothing else may end the wait: rank 0 lives until rank 1 has seen everything, and the deadline is long
    beside the 0.1 s after which the daemon is killed. Each later step waits for a daemon up to its deadline.
    """
    model = model_on(group_with(ULTIMA_DEADLINE="3s"))
    store = dist.distributed_c10d._get_default_store()
    found = []
    if RANK == 0:
        store.wait(["killed"], timedelta(seconds=60))
    else:
        thread = while_it_waits(lambda: os.kill(int(os.environ["ULTIMA_TEST_DAEMON"]), signal.SIGKILL))
        found = [step(model)]
        thread.join()
        found += [step(model), step(model)]
        store.set("killed", "seen")
    return found


def stalled() -> list[Any]:
    """The daemon of rank 1 is stopped for the deadline and more, while that makes a step: what that ended with, what
    was warned of, and the value of a later sum. Buckets that a hook put into the arena wait for the daemon."""
    found: list[Any] = []
    daemon = int(os.environ["ULTIMA_TEST_DAEMON"])
    for hook in ("none", "average_hook"):
        group = group_with(ULTIMA_DEADLINE=f"{DEADLINE_S}s")
        model = model_on(group, hook)
        if RANK == 1:
            os.kill(daemon, signal.SIGSTOP)
            thread = while_it_waits(lambda: os.kill(daemon, signal.SIGCONT), DEADLINE_S + GRACE_S + 0.3)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                error = step(model)
            thread.join()
            receipts = ultima.torch.last_receipts(BUCKETS, group)
            texts = [str(each.message) for each in told if each.category is ultima.UltimaWarning]
            found.append({"error": error, "told": texts, "troubles": [str(receipt.trouble) for receipt in receipts]})
        else:
            assert step(model) == ""
        total = torch.ones(1)
        dist.all_reduce(total, group=dist.group.WORLD)
        found.append(float(total))
    return found


CASES = (desync, gone, insufficient, stalled, killed)

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("always")
    dist.init_process_group("ultima", timeout=timedelta(seconds=20))
    print(json.dumps({case.__name__: case() for case in CASES}), flush=True)
    sys.exit(0)
