# SPDX-License-Identifier: Apache-2.0
"""Who may look at the status page, and who may not."""

import os
from pathlib import Path

import pytest

from ultima.daemon.web.guard import KEY_FILE, SESSION_SECONDS, TOKEN_SECONDS, TOKENS_MAX, Guard, key_in


class Clocks:
    wall, monotonic = 1.7e9, 100.0


def guard(clocks: type[Clocks] = Clocks, key: bytes = b"k" * 32, tokens: bool = True) -> Guard:
    return Guard(key, tokens, lambda: clocks.wall, lambda: clocks.monotonic)


@pytest.mark.parametrize(
    ("method", "host", "origin", "site", "status"),
    [
        ("GET", "127.0.0.1:29518", None, None, None),
        ("GET", "localhost", None, "none", None),
        ("GET", "[::1]:1", "http://[::1]:1", "same-origin", None),
        ("POST", "localhost", None, None, 405),
        ("HEAD", "localhost", None, None, 405),
        ("OPTIONS", "evil", None, None, 405),
        ("GET", "evil", None, None, 421),
        ("GET", "", None, None, 421),
        ("GET", "localhost.evil:29518", None, None, 421),
        ("GET", "127.0.0.1:x", None, None, 421),
        ("GET", "evil:127.0.0.1", None, None, 421),
        ("GET", "localhost:1", "http://evil", None, 403),
        ("GET", "localhost:1", "http://localhost:2", None, 403),
        ("GET", "localhost:1", "https://localhost:1", None, 403),
        ("GET", "localhost:1", "null", None, 403),
        ("GET", "localhost:1", None, "cross-site", 403),
        ("GET", "localhost:1", None, "same-site", 403),
    ],
)
def test_refusal__by_method_name_and_origin(
    method: str, host: str, origin: str | None, site: str | None, status: int | None
) -> None:
    refused = guard().refusal(method, host, origin, site)
    assert (refused[0] if refused else None) == status


def test_token__opens_once_and_leaves_a_cookie() -> None:
    it = guard()
    token = it.token()
    assert it.redeem(("y" if token[0] == "x" else "x") + token[1:]) is None
    cookie = it.redeem(token)
    assert cookie is not None and it.known(cookie)
    assert it.redeem(token) is None, "it was used"


def test_token__is_good_for_a_minute_and_the_oldest_go() -> None:
    class Later(Clocks):
        pass

    it = guard(Later)
    tokens = [it.token() for _ in range(TOKENS_MAX + 1)]
    assert len(set(tokens)) == len(tokens)
    assert it.redeem(tokens[0]) is None and it.redeem(tokens[1]) is not None
    Later.monotonic = Clocks.monotonic + TOKEN_SECONDS + 1
    assert it.redeem(tokens[2]) is None


def test_cookie__holds_for_half_a_day_and_for_its_key_alone() -> None:
    class Later(Clocks):
        pass

    it = guard(Later)
    cookie = it.redeem(it.token())
    assert cookie is not None
    assert guard(Later).known(cookie), "a daemon that was started anew has the same key"
    assert not guard(Later, b"another key").known(cookie)
    end, _, signature = cookie.partition(".")
    for forged in (
        None,
        "",
        ".",
        f"{int(end) + 1}.{signature}",
        f"{end}.",
        f"{end}.{signature[:-1]}",
        "x.é",
        "²." + "a",
    ):
        assert not it.known(forged), forged
    Later.wall = Clocks.wall + SESSION_SECONDS + 1
    assert not it.known(cookie)


def test_socket__needs_no_token() -> None:
    it = guard(tokens=False)
    assert it.token() == "" and it.known(None)


def test_key__is_kept_where_it_can_be(tmp_path: Path) -> None:
    first = key_in(tmp_path)
    assert key_in(tmp_path) == first and len(first) == 32
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert key_in(None) != key_in(None)
    assert key_in(tmp_path / "gone") != first


@pytest.mark.parametrize("spoil", ["readable", "short", "link"])
def test_key__that_others_may_know_is_not_used(tmp_path: Path, spoil: str) -> None:
    path, first = tmp_path / KEY_FILE, key_in(tmp_path)
    if spoil == "readable":
        path.chmod(0o644)
    elif spoil == "short":
        path.write_bytes(b"short")
    else:
        path.rename(tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", path)
    assert key_in(tmp_path) not in (first, b"short")
