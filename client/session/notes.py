# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells for people on the life line: that UDP is blocked, whom a job waits for.

A note becomes a Python warning, so a training script shows it without being asked, and can turn it into an exception
or be rid of it with the `warnings` module.
"""

from __future__ import annotations

import json
import socket
import warnings
from collections.abc import Sequence

from ultima.base.warning import UltimaWarning

NOTE_BYTES_MAX = 4096


def hear(line: socket.socket) -> tuple[list[str], bool]:
    """All notes that have come, and whether the daemon's end is closed. A timeout of |line| would be waited for."""
    notes: list[str] = []
    try:
        while data := line.recv(NOTE_BYTES_MAX, socket.MSG_DONTWAIT):
            text = _text(data)
            if text:
                notes.append(text)
    except BlockingIOError:
        return notes, False
    except OSError:
        pass
    return notes, True


def tell(notes: Sequence[str]) -> None:
    """Warns of each."""
    for note in notes:
        warnings.warn(note, UltimaWarning, stacklevel=3)


def _text(data: bytes) -> str:
    """The text of a note; nothing for what is none, such as a byte that only rings."""
    try:
        note = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    text = note.get("text") if isinstance(note, dict) else None
    return text if isinstance(text, str) else ""


def ended(line: socket.socket) -> bool:
    """Whether the daemon's end of a socket is closed; takes out what was sent before, for it says no more than that."""
    try:
        return not line.recv(4096, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
