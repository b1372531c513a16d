# SPDX-License-Identifier: Apache-2.0
"""Values that are only worked out as far as somebody looks.

Most receipts are counted and never read, and to decode the rows of all hosts takes longer than the rest of what Python
does for a small op. So a receipt knows a few of its fields at once and brings in the others together, at the first look
at any of them. Nobody can tell from outside: it compares, copies, pickles and prints like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self


class Deferred:
    """Base of a frozen dataclass with slots, of which `deferred` makes one whose fields are not all set yet."""

    __slots__ = ("_known", "_whole")
    _known: Mapping[str, Any]
    _whole: Callable[[], Self] | None

    @classmethod
    def deferred(cls, known: Mapping[str, Any], whole: Callable[[], Self]) -> Self:
        """A value with the fields |known|; the others are those of `whole()`, which is called once or never."""
        made = object.__new__(cls)
        object.__setattr__(made, "_known", known)
        object.__setattr__(made, "_whole", whole)
        return made

    if not TYPE_CHECKING:  # type checkers would take every name for a field

        def __getattr__(self, name: str) -> Any:
            # Python asks here for what is not set, so never for a field of a value that was made in the usual way.
            if name not in type(self).__slots__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            known, whole = self._known, self._whole
            if name in known:
                object.__setattr__(self, name, known[name])
            elif whole is not None:
                made = whole()
                for field in type(self).__slots__:
                    if not _is_set(self, field):
                        object.__setattr__(self, field, getattr(made, field))
                object.__setattr__(self, "_whole", None)
            # Where it is None by now, another thread was quicker.
            return object.__getattribute__(self, name)


def _is_set(value: object, field: str) -> bool:
    try:
        object.__getattribute__(value, field)
    except AttributeError:
        return False
    return True
