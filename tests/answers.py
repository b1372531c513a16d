# SPDX-License-Identifier: Apache-2.0
"""What several child processes print: a line of each, by a time."""

from __future__ import annotations

import selectors
import subprocess
import time
from collections.abc import Sequence
from typing import IO


class Ended(Exception):
    """A child closed its output instead."""

    def __init__(self, index: int) -> None:
        super().__init__(f"child {index} ended")
        self.index = index


class Silent(Exception):
    """Children of which no line came in time."""

    def __init__(self, indices: list[int]) -> None:
        super().__init__(f"nothing of children {indices}")
        self.indices = indices


def next_lines(children: Sequence[subprocess.Popen[str]], seconds: float) -> list[str]:
    """The next line of every child's output, in their order. Raises Ended or Silent."""
    end = time.monotonic() + seconds
    said: dict[int, str] = {}
    with selectors.DefaultSelector() as ready:
        for index, child in enumerate(children):
            assert child.stdout is not None
            ready.register(child.stdout, selectors.EVENT_READ, index)
        while len(said) < len(children):
            found = ready.select(max(0.0, end - time.monotonic()))
            if not found:
                raise Silent([index for index in range(len(children)) if index not in said])
            for key, _ in found:
                stream: IO[str] = key.fileobj  # type: ignore[assignment]
                line = stream.readline()
                if not line:
                    raise Ended(key.data)
                said[key.data] = line
                ready.unregister(stream)
    return [said[index] for index in range(len(children))]
