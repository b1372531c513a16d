# SPDX-License-Identifier: Apache-2.0
"""A value that is worked out late is like any other, and is worked out at most once."""

import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ultima.base.deferred import Deferred


@dataclasses.dataclass(frozen=True, slots=True)
class Value(Deferred):
    name: str
    size: int
    rows: tuple[int, ...] = ()
    seen: int = 0


WHOLE = Value("a", 3, (1, 2), 9)


def late(asked: list[int] | None = None) -> Value:
    def whole() -> Value:
        if asked is not None:
            asked.append(1)
        return WHOLE

    return Value.deferred({"name": "a"}, whole)


def test_field__known_ones_ask_for_nothing_and_others_once() -> None:
    asked: list[int] = []
    value = late(asked)
    assert value.name == "a" and asked == []
    assert (value.size, value.rows, value.seen) == (3, (1, 2), 9)
    assert asked == [1]


def test_field__one_that_was_set_meanwhile_stays() -> None:
    value = late()
    object.__setattr__(value, "seen", 4)
    assert (value.size, value.seen) == (3, 4)


@pytest.mark.parametrize("value", [late, lambda: WHOLE], ids=["late", "as usual"])
def test_attribute__that_is_no_field(value: Callable[[], Value]) -> None:
    with pytest.raises(AttributeError, match="'Value' object has no attribute 'sizes'"):
        value().sizes  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(value(), "__deepcopy__")


def test_field__cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        late().size = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    "made",
    [
        lambda value: value,
        copy.copy,
        copy.deepcopy,
        dataclasses.replace,
        lambda value: pickle.loads(pickle.dumps(value)),
    ],
    ids=["itself", "copy", "deepcopy", "replace", "pickle"],
)
def test_value__is_like_one_made_as_usual(made: Callable[[Any], Any]) -> None:
    for value in (made(late()), made(WHOLE)):
        assert value == WHOLE and hash(value) == hash(WHOLE)
        assert repr(value) == "Value(name='a', size=3, rows=(1, 2), seen=9)"
        assert dataclasses.asdict(value) == dataclasses.asdict(WHOLE)
    assert made(late()) != dataclasses.replace(WHOLE, size=4)


def test_field__two_threads_ask_at_once() -> None:
    both = threading.Barrier(2)

    def whole() -> Value:
        both.wait(10)  # so both found it missing
        return WHOLE

    value, found = Value.deferred({"name": "a"}, whole), []
    threads = [threading.Thread(target=lambda: found.append(value.size)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [3, 3]
