# SPDX-License-Identifier: Apache-2.0
"""Where a job stands by the word of its other hosts, one of which may say anything.

Hosts of a job are a few ops apart. So a word near what is known here is taken; one that is out of reach counts only if
more hosts say such a thing than do not, and then the middle one of them is believed, and what is near it. This host's
own knowledge is one voice, if it has any.
"""

from __future__ import annotations

from ultima.daemon.base.ranges import WINDOW


class Standing:
    """See the module."""

    def __init__(self, told: int) -> None:
        """`told` is where the coordinator says that the job stands; 0 if it does not know."""
        self._told = told
        self._words: dict[int, int] = {}

    def hear(self, host: int, op_seq: int) -> None:
        """A host says what op comes next there."""
        self._words[host] = op_seq

    def next_op_seq(self, here: int) -> int:
        """The op that comes next, where this host's own engine says `here`."""
        known = max(here, self._told)
        near = [word for word in self._words.values() if word <= known + WINDOW]
        far = sorted(word for word in self._words.values() if word > known + WINDOW)
        if len(far) > len(near) + (known > 0):
            middle = far[(len(far) - 1) // 2]
            return max(word for word in far if word <= middle + WINDOW)
        return max([known, *near])
