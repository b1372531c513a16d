# SPDX-License-Identifier: Apache-2.0
"""What is installed here: the distribution's name and version, and which of its extras brings a package that is not.

The index has another project called `ultima`, so the distribution has the daemon's name. What it installs is imported
as `ultima` all the same. This module is cheap to import: it loads what it needs when it is asked.
"""

from __future__ import annotations

DISTRIBUTION = "ultimad"
"""As pip knows it."""

# Module -> its distribution. Each extra brings what stands here for it and what it contains.
_CORE = {"numpy": "numpy", "_cffi_backend": "cffi", "grpc": "grpcio", "google.protobuf": "protobuf"}
_CLI = {"typer": "typer", "rich": "rich"}
_DAEMON = {
    "cryptography": "cryptography",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "prometheus_client": "prometheus-client",
    "pydantic": "pydantic",
}
EXTRAS = {"": _CORE, "cli": _CLI, "daemon": _DAEMON, "web": {"aiohttp": "aiohttp"}, "torch": {"torch": "torch"}}
"""By extra: the modules that are imported, and the distribution of each. The extra without a name is always there."""
CONTAINS = {"daemon": ("cli", "daemon"), "demo": ("cli", "daemon", "torch")}
"""Extras that bring others."""


def version() -> str:
    """Of this distribution, without importing more than the standard library."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    try:
        return of(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+unknown"


def command(extra: str) -> str:
    """What a user types to get that extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"


def missing(error: ModuleNotFoundError, what: str) -> str | None:
    """One sentence for a user: which package |what| lacks, and what brings it. None if none of our extras would bring
    it: then the error is the mistake of a program.
    """
    parts = (error.name or "").split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    for extra, modules in EXTRAS.items():
        for name in names:
            if name in modules:
                return _sentence(what, [modules[name]], extra)
    return _sentence(what, [_CORE["google.protobuf"]], "") if names == ["google"] else None


def lacks(extra: str, what: str) -> str | None:
    """The same sentence, before anything of that extra is imported. None if all of it is installed."""
    from importlib.util import find_spec

    wanted = {module: name for each in CONTAINS.get(extra, (extra,)) for module, name in EXTRAS[each].items()}
    absent = [name for module, name in wanted.items() if find_spec(module) is None]
    return _sentence(what, absent, extra) if absent else None


def _sentence(what: str, packages: list[str], extra: str) -> str:
    *first, last = packages
    named, are = (f"{', '.join(first)} and {last}", "are") if first else (last, "is")
    return f"{what} needs {named}, which {are} not installed: {command(extra)}"
