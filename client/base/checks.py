# SPDX-License-Identifier: Apache-2.0
"""Checks of single arguments, which name the argument, its value and what is allowed."""

from __future__ import annotations

from ultima.base.errors import InvalidArgument


def check_number(value: object, field: str, low: float, high: float) -> None:
    """Raises InvalidArgument for all but a number from |low| to |high|."""
    if not isinstance(value, float | int) or not low <= value <= high:
        raise InvalidArgument(field, value, f"a number from {low} to {high}")


def check_whole(value: object, field: str, least: int) -> None:
    """Raises InvalidArgument for all but a whole number of |least| or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidArgument(field, value, f"a whole number of {least} or more")


def check_switch(value: object, field: str) -> None:
    """Raises InvalidArgument for all but True, False and None."""
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(field, value, "True or False")


def check_whole_between(value: object, field: str, low: int, high: int) -> None:
    """Raises InvalidArgument for all but a whole number from |low| to |high|."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgument(field, value, f"a whole number from {low} to {high}")
