# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a process group find one another's daemons: through the c10d store that brought the ranks together.

Each rank asks its own daemon for the address on which its peers reach it, writes that into the store and reads
everyone's. So torchrun's variables and ULTIMA_SOCKET are all that is needed. Rank 0 also makes up the job's name: two
groups, or two trainings on the same daemons, must never meet in one job. A rank that cannot reach its daemon writes
that instead, so the others hear of it at once and by whom, rather than wait for somebody who will not come.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from ultima.admin import get_status
from ultima.config import join_address
from ultima.errors import DaemonError, DaemonUnavailable, JoinTimeout
from ultima.receipt import ranks_text
from ultima.session import START_PATIENCE_NS

NAME_PART_MAX = 40
POLL_S_MIN, POLL_S_MAX = 0.002, 0.1
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the ranks agreed on: the job's name, and per rank the "address:port" of its daemon."""

    job: str
    rank_addresses: tuple[str, ...]


def meet(store: Store, rank: int, size: int, group_name: str, socket_path: str, timeout_s: float) -> Meeting:
    """Brings the ranks of a group together. |socket_path| is the gRPC socket of the daemon on this host.

    Raises DaemonError when this rank's daemon or another's does not answer (the message names the rank), and
    JoinTimeout, naming the ranks, when some did not come within |timeout_s| seconds.
    """
    limit = time.monotonic() + timeout_s
    try:
        store.set(_key(rank), json.dumps({"address": daemon_address(socket_path)}))
    except DaemonError as error:
        store.set(_key(rank), json.dumps({"error": str(error)}))
        raise
    if rank == 0:
        store.set(_JOB_KEY, _job_name(group_name))
    addresses = [_address_of(store, other, size, limit, timeout_s) for other in range(size)]
    job = _read(store, _JOB_KEY, limit)
    if job is None:
        raise JoinTimeout(f"rank 0 did not name the job within {timeout_s:g} s")
    return Meeting(job, tuple(addresses))


_JOB_KEY = "ultima/job"


def _key(rank: int) -> str:
    return f"ultima/daemon/{rank}"


def daemon_address(socket_path: str) -> str:
    """The "address:port" on which other daemons reach the one behind |socket_path|.

    A daemon that does not answer may be starting: it gets as long as `ultima.connect` gives it. Raises DaemonError.
    """
    limit = time.monotonic_ns() + START_PATIENCE_NS
    while True:
        try:
            status = get_status(socket_path)
            break
        except DaemonUnavailable:
            if time.monotonic_ns() >= limit:
                raise
            time.sleep(RETRY_S)
    address = status.address
    if not address or ipaddress.ip_address(address).is_unspecified:
        address = address_towards(os.environ.get("MASTER_ADDR") or "127.0.0.1")
    return join_address(address, status.grpc_port)


def address_towards(host: str) -> str:
    """This host's own address on the way to another one: a datagram socket is connected, nothing is sent."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _job_name(group_name: str) -> str:
    """Unique on every daemon that it may meet; the readable part is for `ultima status`."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if run in ("", "none"):
        run = os.environ.get("ULTIMA_JOB") or "torch"
    parts = [run, group_name or "group"]
    readable = ["".join(letter if letter.isprintable() else "?" for letter in part)[:NAME_PART_MAX] for part in parts]
    return "-".join([*readable, secrets.token_hex(4)])


def _address_of(store: Store, rank: int, size: int, limit: float, timeout_s: float) -> str:
    text = _read(store, _key(rank), limit)
    if text is None:
        missing = [other for other in range(size) if not store.check([_key(other)])]
        raise JoinTimeout(f"{ranks_text(missing)} did not come to the process group within {timeout_s:g} s")
    said = json.loads(text)
    if "error" in said:
        raise DaemonUnavailable(f"rank {rank} has no daemon: {said['error']}")
    return str(said["address"])


def _read(store: Store, key: str, limit: float) -> str | None:
    """A key's value once somebody wrote it; None when |limit| passes first.

    Looks again and again: the store's own wait cannot be interrupted, and complains on standard error when it gives up.
    """
    pause = POLL_S_MIN
    while not store.check([key]):
        left = limit - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(left, pause))
        pause = min(2 * pause, POLL_S_MAX)
    return store.get(key).decode()
