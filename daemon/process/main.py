# SPDX-License-Identifier: Apache-2.0
"""The process `ultimad`: options, log, signals, exit status.

0  told to stop, and did
1  could not start on this host now (an address, a port or a folder is not to be had), or ended by a mistake of its own
2  could not start, because its configuration is wrong; trying again will not help

Where it could not start, one line on standard error says why. SIGHUP reads the configuration again (reload.py).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from ultima.daemon.base import log_forms, logs
from ultima.daemon.base.errors import StartupError
from ultima.v1.installed import missing, version

if TYPE_CHECKING:
    from ultima.daemon.engine.engine import Engine, EngineConfig


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(message)


def parser() -> argparse.ArgumentParser:
    """What ultimad understands; the manual page is made from it."""
    parser = _Parser(prog="ultimad", description="Ultima's daemon: one on each host.", allow_abbrev=False)
    add = parser.add_argument
    add("--config", metavar="FILE", help="TOML file (default: /etc/ultima/ultimad.toml if it exists)")
    add("--runtime-dir", metavar="DIR", help="folder of its sockets: DIR/ultimad.sock (default: /run/ultima)")
    add("--bind", metavar="ADDR", help="numeric address for other daemons (default: none, this host alone)")
    add("--port", metavar="N", help="TCP port; UDP takes the next two per lane; 0 picks free ones (default: 29520)")
    add("--insecure", action="store_true", default=None, help="talk to other daemons without authentication")
    add("--log-level", metavar="L", help="debug, info, warning or error (default: info)")
    add("--version", action="store_true", default=None, help="print the version and exit")
    return parser


def parse(arguments: Sequence[str]) -> dict[str, object]:
    """The flags that were given, by key of DaemonConfig, and "config". Raises StartupError."""
    return {name: value for name, value in vars(parser().parse_args(arguments)).items() if value is not None}


async def serve(flags: dict[str, object], open_engine: Callable[[EngineConfig], Engine] | None) -> None:
    """Runs one daemon until a signal stops it. Raises StartupError."""
    from ultima.daemon.base.config import DaemonConfig, load
    from ultima.daemon.engine.engine import NativeEngine
    from ultima.daemon.process import doorkeeper, memory_max
    from ultima.daemon.process.address import wait_for_address
    from ultima.daemon.process.reload import reload
    from ultima.daemon.process.server import Daemon
    from ultima.daemon.process.tidy import settle_down

    def read() -> DaemonConfig:
        return memory_max.fitted(load(flags, os.environ), memory_max.memory_max())

    doorkeeper.raise_limit()
    config = read()
    logging.getLogger().setLevel(config.log_level.upper())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(log_forms.formatter(log_forms.chosen(config.log_format)))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if config.bind:
        await wait_for_address(config.bind, config.port, stop)
    if stop.is_set():
        return
    daemon = Daemon(config, open_engine or NativeEngine, version(), stop.set)
    await daemon.start()

    def hang_up() -> None:
        daemon.config = reload(daemon.config, read)
        daemon.bound()

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    settle_down()
    await stop.wait()
    logging.getLogger("ultimad").info("draining")
    daemon.ask_to_stop = lambda: None  # it is about to
    stop.clear()
    drain, again = asyncio.ensure_future(daemon.drain()), asyncio.ensure_future(stop.wait())
    await asyncio.wait({drain, again}, return_when=asyncio.FIRST_COMPLETED)
    for task in (drain, again):
        task.cancel()
    await asyncio.gather(drain, again, return_exceptions=True)
    await daemon.stop()


def main(arguments: Sequence[str] | None = None, open_engine: Callable[[EngineConfig], Engine] | None = None) -> int:
    """Entry point of `ultimad`; returns the exit status. `open_engine` puts another engine behind it, for tests."""
    logs.begin()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    try:
        flags = parse(sys.argv[1:] if arguments is None else arguments)
        if flags.pop("version", None):
            print(f"ultimad {version()}")
            return 0
        asyncio.run(serve(flags, open_engine))
    except StartupError as error:
        print(f"ultimad: {error}", file=sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as error:
        if not (said := missing(error, "ultimad")):
            raise
        print(f"ultimad: {said}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
