# SPDX-License-Identifier: Apache-2.0
"""Tells systemd how the daemon is: one datagram a message, to the socket that NOTIFY_SOCKET names.

The protocol is that small and that stable, so it needs no package. Without the variable, nothing is sent. A message
that cannot be delivered is not an error for the daemon: systemd then draws its own conclusion from the silence.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(message: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Sends `message` ("READY=1", "WATCHDOG=1", lines may be joined by newlines); returns whether it was sent."""
    path = environment.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(message.encode(), address)
        except OSError:
            return False
    return True


def watchdog_period(environment: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between two signs of life that systemd asks for, half of WATCHDOG_USEC; None if it asks for none."""
    value = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID") not in (None, "", str(os.getpid())):
        return None
    if not value.isdigit() or int(value) == 0:
        return None
    return int(value) / 2e6
