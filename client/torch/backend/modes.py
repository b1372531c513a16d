# SPDX-License-Identifier: Apache-2.0
"""The modes of torch that belong to a thread, for what one thread calls and another one does.

Torch keeps inference mode per thread, and lets a tensor that was made in it be written in it alone. What a collective
writes, it writes in whatever thread finds it ended. Results are only written, never recorded for autograd: the views
that a functional collective fills may not be written otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def in_mode_of_caller(act: Callable[[], Result]) -> Callable[[], Result]:
    """|act|, for any thread: it runs in the inference mode of the thread that asks here, and without autograd."""
    inference = torch.is_inference_mode_enabled()

    def acting() -> Result:
        with torch.inference_mode(inference), torch.no_grad():
            return act()

    return acting
