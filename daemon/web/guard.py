# SPDX-License-Identifier: Apache-2.0
"""Who may look at the status page.

The page is for this host: a port of loopback, or a unix socket that ssh forwards. On a port any user of the host could
knock, so `ultima web` fetches a token over the daemon's own socket, whose mode says who may; the token opens the page
once, within a minute, and leaves a cookie that is good for half a day. A unix socket has a mode itself and needs none.

Pages of other sites in the same browser are kept out three times: by name (`Host:` must be one of loopback, which
stops names that were rebound to it), by origin, and by a cookie that is never sent from elsewhere (SameSite=Strict).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

NAMES = ("localhost", "127.0.0.1", "[::1]")
TOKEN_SECONDS, TOKENS_MAX = 60.0, 64
SESSION_SECONDS = 43_200
KEY_FILE, KEY_BYTES = "web.key", 32


class Guard:
    """See the module."""

    def __init__(
        self,
        key: bytes,
        tokens: bool,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`key` signs cookies; without `tokens` whoever can connect may look."""
        self._key, self._needed = key, tokens
        self._wall, self._monotonic = wall, monotonic
        self._tokens: OrderedDict[str, float] = OrderedDict()
        """Until when each may be used."""

    def refusal(self, method: str, host: str, origin: str | None, site: str | None) -> tuple[int, str] | None:
        """The status and sentence by which a request is refused, by its method and headers; None if it is not.

        `origin` is what the browser says of the page that asks, `site` its Sec-Fetch-Site.
        """
        if method != "GET":
            return 405, "only GET is answered here\n"
        if _name(host) not in NAMES:
            return 421, "this is for loopback alone\n"
        if origin not in (None, f"http://{host}"):
            return 403, "pages of other origins may not ask\n"
        if site in ("cross-site", "same-site"):
            return 403, "pages of other sites may not ask\n"
        return None

    def token(self) -> str:
        """A fresh one; the oldest goes where there are too many. Empty if none is needed."""
        if not self._needed:
            return ""
        token = secrets.token_urlsafe(32)
        self._tokens[token] = self._monotonic() + TOKEN_SECONDS
        while len(self._tokens) > TOKENS_MAX:
            self._tokens.popitem(last=False)
        return token

    def redeem(self, token: str) -> str | None:
        """The value of a cookie for a token, which is used up by it; None for one that is not, or too old."""
        until = self._tokens.pop(token, None)
        if until is None or until < self._monotonic():
            return None
        end = str(int(self._wall()) + SESSION_SECONDS)
        return f"{end}.{self._signed(end)}"

    def known(self, cookie: str | None) -> bool:
        """Whether a request with that cookie may look."""
        if not self._needed:
            return True
        end, _, signature = (cookie or "").partition(".")
        genuine = hmac.compare_digest(signature.encode(errors="replace"), self._signed(end).encode())
        return genuine and end.isdecimal() and int(end) > self._wall()

    def _signed(self, end: str) -> str:
        return hmac.new(self._key, end.encode(errors="replace"), "sha256").hexdigest()


def key_in(folder: Path | None) -> bytes:
    """The key that signs cookies: kept in the state folder, so that a page that is open survives the daemon's restart.
    Without a folder, or where it cannot be written or is not ours, a key of this life alone."""
    fresh = secrets.token_bytes(KEY_BYTES)
    if folder is None:
        return fresh
    path = folder / KEY_FILE
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(fresh)
        return fresh
    with contextlib.suppress(OSError):
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found, kept = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
        if found.st_uid == os.geteuid() and not found.st_mode & 0o077 and len(kept) == KEY_BYTES:
            return kept
    return fresh


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
