# SPDX-License-Identifier: Apache-2.0
"""The tree of exceptions is what its docstring draws, and messages name what they should."""

import inspect
import pickle
import re

import pytest

import ultima
from ultima.base import errors


def drawn_tree() -> dict[str, str]:
    """Name to parent, read from the drawing in the docstring of `ultima.base.errors`."""
    assert errors.__doc__ is not None
    parents, stack = {}, [(4, "UltimaError")]
    for indent, name in re.findall(r"^( +)[x-] (\w+)", errors.__doc__, re.MULTILINE):
        while stack[-1][0] >= len(indent):
            stack.pop()
        parents[name] = stack[-1][1]
        stack.append((len(indent), name))
    return parents


def test_errors__the_drawing_is_the_tree() -> None:
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    actual = {name: kind.__mro__[1].__name__ for name, kind in classes.items() if name != "UltimaError"}
    assert drawn_tree() == actual
    assert set(errors.__all__) == set(classes)


def test_errors__all_are_public_names() -> None:
    for name in errors.__all__:
        assert getattr(ultima, name) is getattr(errors, name)
        assert name in ultima.__all__


@pytest.mark.parametrize(("kind", "base"), [(ultima.InvalidArgument, ValueError), (ultima.TimedOut, TimeoutError)])
def test_errors__also_what_python_calls_it(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ultima.InvalidArgument("op", "mean", "one of sum, avg"), "op is 'mean'; allowed: one of sum, avg"),
        (ultima.ResourceExhausted("arena_bytes", "8 needed, 4 free", 8, 4), "arena_bytes: 8 needed, 4 free"),
        (
            ultima.Desync(2, "dtype", "float32", "float64", 7),
            "op 7: dtype differs: 'float32' here, 'float64' on rank 2",
        ),
        (ultima.Desync(None, "count", 3, 4), "count differs: 3 here, 4 on another rank"),
        (ultima.DaemonLost("hangup", "the daemon hung up"), "the daemon hung up"),
    ],
)
def test_errors__message(error: Exception, text: str) -> None:
    assert str(error) == text


def test_errors__travel_between_processes() -> None:
    sent = ultima.Desync(2, "dtype", "float32", "float64", 7)
    back = pickle.loads(pickle.dumps(sent))
    assert (back.rank, back.field, back.mine, back.theirs, back.op_seq) == (2, "dtype", "float32", "float64", 7)
    assert str(back) == str(sent)
    lost = pickle.loads(pickle.dumps(ultima.DaemonLost("hangup", "gone")))
    assert (lost.reason, str(lost)) == ("hangup", "gone")


def test_invalid_argument__long_values_are_cut() -> None:
    assert len(str(ultima.InvalidArgument("job", "x" * 10000, "less"))) < 200
