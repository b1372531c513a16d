# SPDX-License-Identifier: Apache-2.0
"""Whose a job is, and the tokens by which a call tells who makes it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from ultima.daemon.base.errors import PermissionDenied, ResourceExhausted, Unauthenticated
from ultima.daemon.trainers.users import (
    METADATA_KEY,
    TOKEN_SECONDS,
    TOKENS_PER_UID_MAX,
    UNTRUSTED_ROOT,
    Tokens,
    check_join,
    check_manage,
    counts_as,
    may_manage,
)


def call(*metadata: tuple[str, str]) -> Any:
    return SimpleNamespace(invocation_metadata=lambda: metadata or None)


def test_check__who_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 990)
    rows = [(1000, True, True), (0, True, True), (990, False, True), (1001, False, False)]
    for uid, joins, manages in rows:
        assert may_manage(1000, uid) is manages
        for check, allowed in ((check_join, joins), (check_manage, manages)):
            if allowed:
                check("j", 1000, uid)
            else:
                with pytest.raises(PermissionDenied, match=f"^job 'j' belongs to uid 1000, and this is uid {uid}: use"):
                    check("j", 1000, uid)


def test_tokens__one_call_each_and_not_for_long() -> None:
    now = [100.0]
    tokens = Tokens(lambda: now[0])
    first, second, third = (tokens.give(uid) for uid in (5, 6, 7))
    assert len({first, second, third}) == 3
    assert tokens.caller(call((METADATA_KEY, second), ("other", "x"))) == 6
    for token in (second, "", "nonsense"):
        with pytest.raises(Unauthenticated, match="unknown, used or older than 10 s"):
            tokens.caller(call((METADATA_KEY, token)))
    with pytest.raises(Unauthenticated, match="not in the metadata"):
        tokens.caller(call())
    assert len(tokens) == 2
    now[0] += TOKEN_SECONDS - 1
    assert tokens.caller(call((METADATA_KEY, third))) == 7
    now[0] += 1
    with pytest.raises(Unauthenticated):
        tokens.caller(call((METADATA_KEY, first)))
    assert len(tokens) == 0


def test_tokens__of_one_user_are_bounded() -> None:
    now = [0.0]
    tokens = Tokens(lambda: now[0])
    for _ in range(TOKENS_PER_UID_MAX):
        tokens.give(5)
    with pytest.raises(ResourceExhausted, match=f"uid 5 has {TOKENS_PER_UID_MAX} unused tokens"):
        tokens.give(5)
    tokens.give(6)
    now[0] += TOKEN_SECONDS
    tokens.give(5)
    assert len(tokens) == 1


def test_counts_as__root_is_one_of_many_where_it_is_not_trusted() -> None:
    assert [counts_as(uid, True) for uid in (0, 1000)] == [0, 1000]
    root = counts_as(0, False)
    assert root == UNTRUSTED_ROOT and counts_as(1000, False) == 1000
    assert may_manage(1000, 0) and not may_manage(1000, root) and may_manage(root, root)
    with pytest.raises(PermissionDenied):
        check_join("job", 1000, root)
