# SPDX-License-Identifier: Apache-2.0
"""Broadcast where hosts come and go: a sum to which all but the root give zeros, in whole numbers, which are exact.

A rank that is not in the sum gave zeros, so it is missed by nobody; and the receipt says whether the root is in every
element. Four numbers before the bytes show that all ranks meant the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ultima.api.collectives import _taken
from ultima.base.buffers import as_bytes
from ultima.base.durations import Duration
from ultima.base.errors import Desync, InvalidArgument, RanksGone
from ultima.base.receipt import Receipt
from ultima.v1.limits import HOSTS_MAX

HEAD = 4  # ranks that gave, and the sums of root, its square, and the size


class ElasticBroadcast:
    """What `ElasticJob` has for this."""

    def broadcast(self, array: Any, root: int = 0, *, deadline: Duration | None = None, dtype: Any = None) -> Receipt:
        """Copies `array` of the rank `root` into `array` on all ranks of the view: to the bit, or not at all.

        array, deadline, dtype: as for `Job.broadcast`. root: a seat, the same on all ranks.

        It takes the bytes of an allreduce of as many, and counts as one. Ranks other than the root may be missing from
        it. Raises RanksGone if the root is not in all of it; Desync if ranks named different roots or sizes; and as
        `allreduce`. After an exception the array is untouched.
        """
        _check_root(root)
        target, _ = _taken(array, dtype, "array", writable=True)
        flat = as_bytes(target)
        box = np.zeros(HEAD + -(-flat.size // 8), np.int64)
        told = np.array([1, root + 1, (root + 1) ** 2, flat.size], np.int64)
        box[:HEAD] = told
        mine = self.rank == root  # type: ignore[attr-defined]
        if mine:
            box[HEAD:].view(np.uint8)[: flat.size] = flat
        receipt: Receipt = self.allreduce(box, "sum", deadline=deadline, mode="bounded")  # type: ignore[attr-defined]
        if not mine and root not in receipt.contributors:
            text = f"op {receipt.op_seq}: rank {root} is not in all of it; in are {list(receipt.contributors)}"
            raise RanksGone(text, (root,), receipt)
        count = int(box[0])
        for field, here, there in zip(("root", "root", "count"), told[1:], box[1:HEAD], strict=True):
            if count < 1 or int(there) != count * int(here):
                raise Desync(None, field, root if field == "root" else flat.size, "another", receipt.op_seq)
        if not mine:
            flat[:] = box[HEAD:].view(np.uint8)[: flat.size]
        return receipt


def _check_root(root: object) -> None:
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < HOSTS_MAX:
        raise InvalidArgument("root", root, f"a rank, 0 to {HOSTS_MAX - 1}")
