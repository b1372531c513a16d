# SPDX-License-Identifier: Apache-2.0
"""How a part of a training ends that other ranks may still need: at the end of a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Finishing:
    """A context manager over `finish` and `close`: a block that ends well waits for the others, one that raised leaves
    at once.
    """

    def finish(self) -> None:
        """Leaves when the other ranks need this one no more."""
        raise NotImplementedError

    def close(self) -> None:
        """Leaves at once. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()
