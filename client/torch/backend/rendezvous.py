# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a process group find one another's daemons: through the c10d store that brought the ranks together.

Each rank asks its own daemon for the address on which its peers reach it and tells rank 0, which tells everyone. So
torchrun's variables and ULTIMA_SOCKET are all that is needed. Rank 0 also draws the number at the end of the job's
name: two groups, or two trainings on the same daemons, must never meet in one job. The rest of the name each rank knows
from its own environment, and only fingerprints of it pass the store, which everybody on the network can read. A rank
that cannot reach its daemon says that instead, so the others hear of it at once and by whom, rather than wait for
somebody who will not come.

The store may hold what an earlier life of the same ranks wrote: torchrun starts them again beside the same store, and
tells nobody which life it is. So rank 0 opens with a number of its own, the others answer under that number, and its
table counts for a rank only if that rank's own number stands in it. A rank that read an old number soon sees the new
one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ultima.base.errors import DaemonError, DaemonUnavailable, JoinTimeout
from ultima.base.receipt import ranks_text
from ultima.launch.reach import daemon_reach

NAME_PART_MAX = 40
POLL_S_MIN, POLL_S_MAX = 0.002, 0.1
# A rank without a daemon stays this long to see that the others have heard of it.
HEARD_S = 10.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the ranks agreed on: the job's name, the number in it, and per rank the "address:port" of its daemon.

    No addresses if one daemon serves all of them and no other host.
    """

    job: str
    number: str
    rank_addresses: tuple[str, ...]


def meet(store: Store, rank: int, size: int, group_name: str, socket_path: str, timeout_s: float) -> Meeting:
    """Brings the ranks of a group together. |socket_path| is the gRPC socket of the daemon on this host.

    Raises DaemonError when this rank's daemon or another's does not answer (the message names the rank), and
    JoinTimeout, naming the ranks, when some did not come within |timeout_s| seconds.
    """
    limit = time.monotonic() + timeout_s
    readable = job_prefix(group_name)
    mine, failure = {"life": secrets.token_hex(8)}, None
    try:
        reach = daemon_reach(socket_path)
        mine |= {"address": reach.address, "daemon": str(reach.life)}
    except DaemonError as error:
        mine["error"], failure = str(error), error
        limit = min(limit, time.monotonic() + HEARD_S)
    try:
        if rank == 0:
            agreed, said = _ask(store, size, readable, mine, limit)
        else:
            agreed, said = _answer(store, rank, size, readable, mine, limit)
    except dist.DistError:
        # The rank that holds the store has heard of our failure, and is gone with it.
        if failure is None:
            raise
    if failure is not None:
        raise failure
    for other, word in enumerate(said):
        if word is not None and "error" in word:
            raise DaemonUnavailable(f"rank {other} has no daemon: {word['error']}")
    missing = [other for other, word in enumerate(said) if word is None]
    if missing:
        raise JoinTimeout(f"{ranks_text(missing)} did not come to the process group within {timeout_s:g} s")
    number, alike = agreed
    job = f"{readable if alike else NAMELESS}-{number}"
    return Meeting(job, number, _addresses([word for word in said if word is not None]))


def _addresses(said: list[dict[str, Any]]) -> tuple[str, ...]:
    """Where the daemon of each rank is reached; nothing if it is one for all, which serves its own host alone."""
    alone = [rank for rank, word in enumerate(said) if not word["address"]]
    if alone and len({word["daemon"] for word in said}) > 1:
        raise DaemonUnavailable(
            f"{ranks_text(alone)}: the daemon there has no `bind` and serves its own host alone, but the ranks are on "
            "several: start it with --bind ADDR and certificates"
        )
    return () if alone else tuple(str(word["address"]) for word in said)


Words = list[dict[str, Any] | None]
"""What each rank said of itself, None for one that did not come."""
Agreed = tuple[str, bool]
"""The job's number, and whether all ranks have the same words before it."""
_CALL = "ultima/call"
NAMELESS = "torch-group"


def _ask(store: Store, size: int, readable: str, mine: dict[str, Any], limit: float) -> tuple[Agreed, Words]:
    """Rank 0: opens, waits for the answers, and tells everyone what came."""
    call, number = secrets.token_hex(8), secrets.token_hex(4)
    store.set(_CALL, call)
    name = _fingerprint(call, readable)
    said: Words = [mine | {"name": name}]
    for other in range(1, size):
        text = _read(store, _key(call, other), limit)
        said.append(None if text is None else json.loads(text))
    agreed = number, all(word is not None and word["name"] == name for word in said)
    store.set(_key(call, "all"), json.dumps([agreed, said]))
    return agreed, said


def _answer(
    store: Store, rank: int, size: int, readable: str, mine: dict[str, Any], limit: float
) -> tuple[Agreed, Words]:
    """The others: answer whatever rank 0 opened with last, until they find themselves in its table."""
    answered, pause = "", POLL_S_MIN
    while True:
        call = store.get(_CALL).decode() if store.check([_CALL]) else ""
        if call != answered:
            store.set(_key(call, rank), json.dumps(mine | {"name": _fingerprint(call, readable)}))
            answered = call
        if answered and store.check([_key(call, "all")]):
            (number, alike), said = json.loads(store.get(_key(call, "all")))
            own = said[rank] if rank < len(said) else None
            if own is not None and own["life"] == mine["life"]:
                return (number, alike), said
        left = limit - time.monotonic()
        if left <= 0:
            came: Words = [
                {} if answered and store.check([_key(answered, other)]) else None for other in range(1, size)
            ]
            # Where all the others are here, it is rank 0 that says nothing.
            return ("", False), [{} if None in came and answered else None, *came]
        time.sleep(min(left, pause))
        pause = min(2 * pause, POLL_S_MAX)


def _key(call: str, part: int | str) -> str:
    return f"ultima/{call}/{part}"


def _fingerprint(call: str, readable: str) -> str:
    """By which ranks see that they mean the same name; another one for each call."""
    return hashlib.sha256(f"{call} {readable}".encode()).hexdigest()[:16]


def job_prefix(group_name: str) -> str:
    """What stands before the number in the job's name, for `ultima status`."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if run in ("", "none"):
        run = os.environ.get("ULTIMA_JOB") or "torch"
    parts = [run, group_name or "group"]
    return "-".join(
        "".join(letter if letter.isprintable() else "?" for letter in part)[:NAME_PART_MAX] for part in parts
    )


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
