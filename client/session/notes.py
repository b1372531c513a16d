# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells for people on the life line: that UDP is blocked, whom a job waits for.

A note becomes a Python warning, so a training script shows it without being asked, and can turn it into an exception
or be rid of it with the `warnings` module.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from ultima.base.warning import warn

NOTE_BYTES_MAX = 4096
BACK_S_MAX = 600.0  # the largest limits.drain_window_seconds of any daemon


class Heard(NamedTuple):
    """What has come on a life line."""

    notes: list[str]
    """For people."""
    ended: bool
    """The daemon's end is closed."""
    back_within_s: float
    """Above 0: the daemon was told to stop, and should be back so soon."""
    views: list[object]
    """Who is in a job whose hosts come and go, one after another."""
    state_wanted: bool | None = None
    """Whether another rank of such a job waits for state, if that has changed."""
    followed: bool | None = None
    """Whether another rank follows this one, likewise."""


def hear(line: socket.socket) -> Heard:
    """All that has come. A timeout of |line| would be waited for."""
    notes: list[str] = []
    views: list[object] = []
    back_within_s, wanted, followed = 0.0, None, None
    try:
        while data := line.recv(NOTE_BYTES_MAX, socket.MSG_DONTWAIT):
            said = _said(data)
            text, back = said.get("text"), said.get("back_within_ms")
            if "view" in said:
                views.append(said["view"])
            if "state_wanted" in said:
                wanted, followed = said["state_wanted"] is True, said.get("followed") is True
            if isinstance(text, str) and text:
                notes.append(text)
            if isinstance(back, int) and back > 0:
                back_within_s = min(back / 1e3, BACK_S_MAX)
    except BlockingIOError:
        return Heard(notes, False, back_within_s, views, wanted, followed)
    except OSError:
        pass
    return Heard(notes, True, back_within_s, views, wanted, followed)


def tell(notes: Sequence[str]) -> None:
    """Warns of each."""
    for note in notes:
        warn(note)


def _said(data: bytes) -> dict[str, Any]:
    """A note; nothing for what is none, such as a byte that only rings."""
    try:
        note = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def ended(line: socket.socket) -> bool:
    """Whether the daemon's end of a socket is closed; takes out what was sent before, for it says no more than that."""
    try:
        return not line.recv(4096, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
