# SPDX-License-Identifier: Apache-2.0
"""Where the hosts of an elastic job meet, as arguments and the environment say it."""

from __future__ import annotations

import pytest

from ultima.base.errors import InvalidArgument
from ultima.settings import config

ELASTIC = {"job": "j", "world": "elastic", "socket": "/s"}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("", ""),
        ([], ""),
        ("a:1", "a:1"),
        ("a:1, [::1]:2", "a:1,[::1]:2"),
        (["a:1", "b:2"], "a:1,b:2"),
        (("a:1",), "a:1"),
    ],
)
def test_meet__is_one_daemon_or_several(said: object, meant: str) -> None:
    assert config.resolve({}, meet=said, **ELASTIC).rendezvous == meant  # type: ignore[arg-type]
    if isinstance(said, str):
        assert config.resolve({"ULTIMA_MEET": said}, **ELASTIC).rendezvous == meant  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["a", "a:1,", "a:1,b", ["a:1", 7], 7, ["a:1"] * 9, ",".join(["a:1"] * 9)])
def test_meet__of_another_form_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="meet"):
        config.resolve({}, meet=wrong, **ELASTIC)  # type: ignore[arg-type]
