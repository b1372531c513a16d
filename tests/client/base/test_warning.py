# SPDX-License-Identifier: Apache-2.0
"""Where a warning points: at the line of the program, never at one of this library or of torch."""

import functools
import threading
import types
import warnings
from collections.abc import Callable

import pytest

from ultima.base.warning import UltimaWarning, warn


def inside(module: str, call: Callable[[], None]) -> Callable[[], None]:
    """A function of a module of that name which calls |call|."""
    made = types.ModuleType(module)
    vars(made)["call"] = call
    exec("def through():\n    call()", vars(made))
    through: Callable[[], None] = vars(made)["through"]
    return through


@pytest.mark.parametrize("through", [(), ("ultima.api.job",), ("ultima", "torch.nn.parallel", "ultima.torch")])
def test_warn__points_at_the_program(through: tuple[str, ...]) -> None:
    call = inside("ultima.session.notes", functools.partial(warn, "slow"))
    for module in through:
        call = inside(module, call)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call()
    (one,) = told
    assert issubclass(one.category, UltimaWarning) and str(one.message) == "slow"
    line = test_warn__points_at_the_program.__code__.co_firstlineno + 7
    assert (one.filename, one.lineno) == (__file__, line)


def test_warn__in_a_thread_of_the_library_points_at_its_beginning() -> None:
    run = inside("ultima.session.silence", functools.partial(warn, "late"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert [str(one.message) for one in told] == ["late"]
