# SPDX-License-Identifier: Apache-2.0
"""`ultima version`: what is installed here. It asks no daemon and loads nothing heavy."""

from __future__ import annotations

import platform
from importlib.util import find_spec

from ultima.cli.common import AsJson, print_json, say
from ultima.v1 import installed


def version(as_json: AsJson = False) -> None:
    facts = {
        "version": installed.version(),
        "python": platform.python_version(),
        "extension": find_spec("ultima._native") is not None,
        "torch": version_of("torch"),
        "machine": platform.machine(),
        "kernel": platform.release(),
    }
    if as_json:
        print_json(facts)
        return
    say(f"ultima {facts['version']}")
    say(
        f"Python {facts['python']}, torch {facts['torch'] or 'not installed'}, "
        f"extension {'built' if facts['extension'] else 'not built'}, Linux {facts['kernel']} {facts['machine']}"
    )


def version_of(package: str) -> str | None:
    """The installed version of a distribution, without importing it; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    try:
        return of(package)
    except PackageNotFoundError:
        return None
