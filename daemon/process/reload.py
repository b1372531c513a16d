# SPDX-License-Identifier: Apache-2.0
"""SIGHUP: reads the configuration again and takes over what may change while jobs run: the log level, the limits, and
the most that the host may send in all.

All else (addresses, ports, the rest of the engine) needs a restart, and is named in the log. A configuration that is
wrong changes nothing: the daemon goes on with what it has, and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ultima.daemon.base.config import KEYS, DaemonConfig
from ultima.daemon.base.errors import StartupError

log = logging.getLogger("ultimad")

CHANGEABLE = ("log_level", "limits.", "engine.rate_bytes_per_s")  # keys, and beginnings of keys


def reload(running: DaemonConfig, read: Callable[[], DaemonConfig]) -> DaemonConfig:
    """The configuration in force from now on; `read` reads all sources again. Limits and the rate change in the
    objects that the whole daemon holds; the engine is told by the caller."""
    try:
        found = read()
    except StartupError as error:
        log.error("reload refused reason=%s", error)
        return running
    changed = differences(running, found)
    fixed = [name for name in changed if not name.startswith(CHANGEABLE)]
    if fixed:
        log.warning("reload incomplete keys=%s: these change with a restart alone", ",".join(fixed))
    running.limits.become(found.limits)
    running.engine.become(found.engine)
    logging.getLogger().setLevel(found.log_level.upper())
    log.info("reloaded changed=%s", _values(changed, found, fixed) or "nothing")
    return running.model_copy(update={"log_level": found.log_level})


def differences(before: DaemonConfig, after: DaemonConfig) -> list[str]:
    """The keys, with dots, of which the two hold different values."""
    return [".".join(key) for key in KEYS if _value(before, key) != _value(after, key)]


def _value(config: object, key: tuple[str, ...]) -> object:
    for part in key:
        config = getattr(config, part)
    return config


def _values(names: list[str], config: DaemonConfig, fixed: list[str]) -> str:
    taken: Mapping[str, object] = {name: _value(config, tuple(name.split("."))) for name in names if name not in fixed}
    return " ".join(f"{name}={value}" for name, value in taken.items())
