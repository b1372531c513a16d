# SPDX-License-Identifier: Apache-2.0
"""Words that somebody else has chosen, as terminals and logs may show them."""

from __future__ import annotations

import functools
from typing import Any

WORDS_MAX = 512
"""Characters of one text of another daemon: more than any sentence of ours has, and less than fills a screen."""


def printable(text: str, most: int = WORDS_MAX, keep: str = "") -> str:
    """The text with "?" for what is not printable (controls, ESC and the like; those in |keep| stay), cut to |most|."""
    shown = "".join(letter if letter.isprintable() or letter in keep else "?" for letter in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 2]}.."


def clean(message: Any) -> None:
    """The same for every text in a protobuf message that came from another daemon: no message of theirs has a map."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE and _has_text(field.message_type):
            for each in value if field.is_repeated else (value,):
                clean(each)
        elif field.type == field.TYPE_STRING and field.is_repeated:
            value[:] = map(printable, value)
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, printable(value))


@functools.cache
def _has_text(kind: Any) -> bool:
    """Whether a message of that kind can hold a text: most are numbers alone, and there may be thousands."""
    return any(
        field.type == field.TYPE_STRING or (field.type == field.TYPE_MESSAGE and _has_text(field.message_type))
        for field in kind.fields
    )


def counted(number: int, noun: str) -> str:
    """How many there are of something: "1 host", "2 hosts"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
