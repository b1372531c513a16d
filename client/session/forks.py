# SPDX-License-Identifier: Apache-2.0
"""Tells sessions that they are in a forked child, as a data loader's worker is: there they are not to be used."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """What is told."""

    def after_fork(self) -> None:
        """In the child, before anything else runs there."""


_living: weakref.WeakSet[Forked] = weakref.WeakSet()


def follow(one: Forked) -> None:
    """Tells it of each fork for as long as it lives."""
    _living.add(one)


def _after_fork_in_child() -> None:
    for one in list(_living):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
