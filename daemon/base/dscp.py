# SPDX-License-Identifier: Apache-2.0
"""Classes of service by which routers tell packets apart: the six bits in front of ECN's (RFC 2474)."""

from __future__ import annotations

LARGEST = 63
CLASSES = (
    {f"CS{n}": 8 * n for n in range(8)}
    | {f"AF{n}{drop}": 8 * n + 2 * drop for n in range(1, 5) for drop in range(1, 4)}
    | {"EF": 46, "VA": 44, "LE": 1}
)
"""By their names: RFC 2474, 2597, 3246, 5865, 8622."""


def named(value: object) -> str:
    """`value` as a class is written. Raises ValueError, with what is allowed, of what is none."""
    text = str(value).strip().upper() if isinstance(value, (str, int)) and not isinstance(value, bool) else "?"
    if text and text not in CLASSES and not (text.isdecimal() and int(text) <= LARGEST):
        raise ValueError(f"allowed: {', '.join(CLASSES)}, a number from 0 to {LARGEST}, or empty for none")
    return text


def number(name: str) -> int:
    """Of a class that `named` has taken; 0 for none."""
    return CLASSES[name] if name in CLASSES else int(name or 0)
