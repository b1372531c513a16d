# SPDX-License-Identifier: Apache-2.0
"""Whose address is whose: what is on this host, and whether a call comes from where it says it does."""

from __future__ import annotations

import array
import asyncio
import fcntl
import ipaddress
import socket
import struct

LISTENS_SECONDS = 1.0
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES, _INTERFACES_MAX = 40, 1024  # of struct ifreq on 64-bit Linux


def numeric(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, IPv4 where it is one in IPv6's clothes; None if it is not numeric."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def same_machine(source: str, address: str) -> bool:
    """Whether a call from `source` can be one of the host at `address`. All of loopback is one machine."""
    one, other = numeric(source), numeric(address)
    return one is not None and other is not None and (one == other or (one.is_loopback and other.is_loopback))


def is_here(address: str) -> bool:
    """Whether a numeric address is one of this host's own: only those can be bound."""
    found = numeric(address)
    if found is None or found.is_unspecified or found.is_multicast:
        return False
    if found.is_loopback:
        return True
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind((str(found), 0))
        except OSError:
            return False
    return True


async def listens(address: str, port: int) -> bool:
    """Whether somebody takes TCP connections there. Asked of this host only, where the answer comes at once."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), LISTENS_SECONDS)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def interface_of(address: str) -> str:
    """Name of the interface with that IPv4 address; "" if it cannot be found out.

    socket.if_nameindex() would ask by a netlink socket, which the service's sandbox does not allow.
    """
    rows = array.array("B", bytes(_IFREQ_BYTES * _INTERFACES_MAX))
    asked = struct.pack("iL", len(rows), rows.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            size, _ = struct.unpack("iL", fcntl.ioctl(probe, _SIOCGIFCONF, asked))
        except OSError:
            return ""
        for at in range(0, size, _IFREQ_BYTES):
            name, found = struct.unpack_from("16s4x4s", rows, at)
            if socket.inet_ntoa(found) == address:
                return str(name.split(b"\0", 1)[0].decode(errors="replace"))
    return ""
