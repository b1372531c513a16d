# SPDX-License-Identifier: Apache-2.0
"""Whose a job is, and who it is that calls on the gRPC socket.

A job on this host belongs to the user whose trainer was the first to be admitted to it, until its last trainer here is
gone. Its owner and root may join it; they and the daemon's own user may change its options and read its receipts.

gRPC for Python does not tell who is at the other end of a Unix socket. The attach socket does, by the word of the
kernel: there a caller gets a token, which it puts into the metadata of one call. A token is good for one call and for
a few seconds, and of one user only so many exist at once.

One uid is one tenant. Where containers without user namespaces share a host, the root of each of them is uid 0 to the
kernel, and root of none is the host's: then `root_is_trusted = false` makes uid 0 a user like any other.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from ultima.daemon.base.errors import PermissionDenied, ResourceExhausted, Unauthenticated

UNTRUSTED_ROOT = 2**32 - 2
"""The user that uid 0 counts as where root is not trusted: one like any other, whose number nobody else can have."""
METADATA_KEY = "ultima-token"
TOKEN_SECONDS = 10.0
TOKENS_PER_UID_MAX = 64


def counts_as(uid: int, root_is_trusted: bool) -> int:
    """The user that a caller is to this daemon, by the uid that the kernel tells."""
    return uid if uid or root_is_trusted else UNTRUSTED_ROOT


def check_join(job: str, owner: int, uid: int) -> None:
    """Raises PermissionDenied unless `uid` may put a rank into the job of `owner`."""
    if uid not in (owner, 0):
        raise _foreign(job, owner, uid)


def may_manage(owner: int, uid: int) -> bool:
    """Whether `uid` may change the options of a job of `owner`, and read its receipts."""
    return uid in (owner, 0, os.geteuid())


def check_manage(job: str, owner: int, uid: int) -> None:
    """Raises PermissionDenied unless `may_manage`."""
    if not may_manage(owner, uid):
        raise _foreign(job, owner, uid)


def _foreign(job: str, owner: int, uid: int) -> PermissionDenied:
    return PermissionDenied(f"job {job!r} belongs to uid {owner}, and this is uid {uid}: use that user, or root")


class Tokens:
    """Those that were given out and not used yet. See the module."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._given: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """User and instant of its end, the oldest token first."""

    def __len__(self) -> int:
        """Tokens that can be used now."""
        self._expire()
        return len(self._given)

    def give(self, uid: int) -> str:
        """A new token of that user. Raises ResourceExhausted."""
        self._expire()
        if Counter(owner for owner, _ in self._given.values())[uid] >= TOKENS_PER_UID_MAX:
            raise ResourceExhausted(
                f"who: uid {uid} has {TOKENS_PER_UID_MAX} unused tokens, the most that are allowed; "
                f"each ends after {TOKEN_SECONDS:g} s"
            )
        token = secrets.token_hex(16)
        self._given[token] = (uid, self._clock() + TOKEN_SECONDS)
        return token

    def caller(self, context: Any) -> int:
        """The user who makes a call, whose token this uses up. Raises Unauthenticated."""
        metadata = dict(context.invocation_metadata() or ())
        if METADATA_KEY not in metadata:
            raise Unauthenticated(
                f"{METADATA_KEY}: not in the metadata of the call, so the caller's user is not known: ask the attach "
                'socket for a token with {"v": 4, "who": true}, as `ultima set` and `ultima explain` do'
            )
        self._expire()
        uid, _ = self._given.pop(str(metadata[METADATA_KEY]), (None, 0.0))
        if uid is None:
            raise Unauthenticated(
                f"{METADATA_KEY}: unknown, used or older than {TOKEN_SECONDS:g} s: ask the attach socket for a new one"
            )
        return uid

    def _expire(self) -> None:
        now = self._clock()
        while self._given and next(iter(self._given.values()))[1] <= now:
            self._given.popitem(last=False)
