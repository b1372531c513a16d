# SPDX-License-Identifier: Apache-2.0
"""What a daemon that forwards packets of others opens for it, and how much it forwards."""

from __future__ import annotations

from pathlib import Path

from ultima.daemon.base.addresses import interface_of
from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.engine.forwarder import NativeRelay
from ultima.daemon.engine.host_engine import HostEngine

INTERFACES = Path("/sys/class/net")
MBIT_UNSAID = 1000  # of an interface whose driver tells no speed, as those of virtual machines
SHARE = 2  # a relay has the half of a link: what is forwarded comes in and goes out, as this host's own packets do


def relay_port(config: DaemonConfig) -> int:
    """UDP; 0: the kernel picks one."""
    if config.relay.port or not config.port:
        return config.relay.port
    return max(port for pair in config.udp_ports() for port in pair) + 1


def rate(config: DaemonConfig, interfaces: Path = INTERFACES) -> int:
    """Bytes a second that are forwarded at most."""
    if config.relay.rate_bytes_per_s:
        return config.relay.rate_bytes_per_s
    name = interface_of(config.bind)
    try:
        mbit = int((interfaces / name / "speed").read_text()) if name else 0
    except (OSError, ValueError):
        mbit = 0  # a driver that does not know answers -1, or with an error
    return (mbit if mbit > 0 else MBIT_UNSAID) * 10**6 // 8 // SHARE


def open_relay(config: DaemonConfig, engine: HostEngine) -> NativeRelay:
    """What it forwards counts as sent by the host of `engine`, which is closed after it. Raises StartFailed."""
    return NativeRelay(config.bind, relay_port(config), rate(config), engine.engines[0])
