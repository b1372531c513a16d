# SPDX-License-Identifier: Apache-2.0
"""The share of the gradients that the demo is asked to send. Without torch: whoever starts the ranks reads it, too."""

from __future__ import annotations

from ultima.base.errors import InvalidArgument


def share_of(text: str) -> float:
    """Of "1%" or "0.01": above 0, to 1. Raises InvalidArgument."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InvalidArgument("sparse", text, "a share above 0, to 100%, as in 1% or 0.01")
    return share
