# SPDX-License-Identifier: Apache-2.0
"""What a person sees who types `ultima.` and Tab."""

from types import ModuleType

import ultima


def test_dir__holds_the_interface_and_nothing_of_how_it_is_made() -> None:
    shown = set(dir(ultima))
    assert {"__version__", *ultima.__all__} <= shown
    others = {name for name in shown - set(ultima.__all__) if not name.startswith("_")}
    assert {name for name in others if not isinstance(getattr(ultima, name), ModuleType)} == set()
    assert all(getattr(ultima, name).__name__ == f"ultima.{name}" for name in others), "packages of ours alone"
