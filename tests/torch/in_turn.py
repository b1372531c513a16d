# SPDX-License-Identifier: Apache-2.0
"""What the ranks of one group do, case by case, and how it went."""

import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist


def in_turn(cases: Iterable[Callable[[], dict[str, Any]]], seconds: float) -> dict[str, Any]:
    """Runs |cases| in a group whose timeout is |seconds|: results and traces by name, up to the first that fails."""
    dist.init_process_group("ultima", timeout=timedelta(seconds=seconds))
    results: dict[str, Any] = {}
    traces: dict[str, str] = {}
    for case in cases:
        try:
            results[case.__name__] = case()
        except Exception:
            traces[case.__name__] = traceback.format_exc()
            break  # the other rank may be elsewhere by now
    dist.destroy_process_group()
    return {"results": results, "traces": traces}
