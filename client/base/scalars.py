# SPDX-License-Identifier: Apache-2.0
"""Receipts as curves of an experiment's tracker: TensorBoard, Weights & Biases, MLflow, or whatever has their methods.

None of them is needed to import this: a writer is whatever has `add_scalar(tag, value, step)`, `log(values, step=)` or
`log_metrics(values, step=)`. Times are in seconds, shares from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from ultima.base.errors import InvalidArgument
from ultima.base.receipt import Receipt, Status


def scalars(receipts: Iterable[Receipt]) -> dict[str, float]:
    """What some ops add up to, by tag; nothing where there are none.

    ultima/ops: how many there are. ultima/complete_share: how many of them hold every byte of every rank.
    ultima/missing_share: bytes that never came in time, of those that were due. ultima/op_median_s, ultima/op_max_s:
    how long they took. ultima/ranks_min: ranks in the least covered element of any.
    """
    found = list(receipts)
    if not found:
        return {}
    times, expected = [each.elapsed_s for each in found], sum(each.bytes_expected for each in found)
    return {
        "ultima/ops": float(len(found)),
        "ultima/complete_share": sum(each.status is Status.COMPLETE for each in found) / len(found),
        "ultima/missing_share": sum(each.bytes_missing for each in found) / expected if expected else 0.0,
        "ultima/op_median_s": median(times),
        "ultima/op_max_s": max(times),
        "ultima/ranks_min": float(min(each.weight_min for each in found)),
    }


def log_receipts(writer: Any, receipts: Receipt | Iterable[Receipt], step: int | None = None) -> dict[str, float]:
    """Writes what |receipts| add up to (`scalars`) to a tracker, at |step|; returns it.

        ultima.log_receipts(SummaryWriter(), job.allreduce(gradient), step)      # TensorBoard
        ultima.log_receipts(wandb, receipts, step)                               # Weights & Biases

    With `ultima.torch`, `ultima.torch.log_receipts(writer, step)` finds the receipts by itself. Raises InvalidArgument
    for a writer that has none of the methods.
    """
    values = scalars([receipts] if isinstance(receipts, Receipt) else receipts)
    write(writer, values, step)
    return values


def write(writer: Any, values: dict[str, float], step: int | None) -> None:
    """Hands values to a tracker in its own way. Raises InvalidArgument."""
    if callable(getattr(writer, "add_scalar", None)):
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)
        return
    for name in ("log_metrics", "log"):
        if callable(getattr(writer, name, None)):
            if values:
                getattr(writer, name)(values, step=step)
            return
    raise InvalidArgument(
        "writer", type(writer).__name__, "what has add_scalar, log or log_metrics: a SummaryWriter, wandb, mlflow"
    )
