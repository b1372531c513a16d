# SPDX-License-Identifier: Apache-2.0
"""`ultima version`: what is installed here. It asks no daemon and loads nothing heavy."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from importlib.util import find_spec
from typing import Annotated

import typer


def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False) -> None:
    facts = {
        "version": version_of("ultima"),
        "python": platform.python_version(),
        "extension": find_spec("ultima._native") is not None,
        "torch": version_of("torch"),
        "machine": platform.machine(),
        "kernel": platform.release(),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"ultima {facts['version']}")
    typer.echo(
        f"Python {facts['python']}, torch {facts['torch'] or 'not installed'}, "
        f"extension {'built' if facts['extension'] else 'not built'}, Linux {facts['kernel']} {facts['machine']}"
    )


def version_of(package: str) -> str | None:
    """The installed version of a distribution, without importing it; None if it is not installed."""
    try:
        return installed(package)
    except PackageNotFoundError:
        return None
