# SPDX-License-Identifier: Apache-2.0
"""`ultima bugreport`: one archive with what somebody needs who is to find out what went wrong.

It holds what the verbs show (version, status, options, events, history, metrics, doctor), for jobs of this user the
flight record, what the kernel counts of this host's network, and the daemon's log of the last day where systemd keeps
it and this user may read it. Gradients are not in it; names of jobs and addresses of hosts are, and it says so.
"""

from __future__ import annotations

import io
import json
import platform
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ultima.cli.common import AsJson, Socket, formed, print_json, say, socket_named
from ultima.cli.files import new_file

# Interfaces with errors and drops, UDP's errors, and what limits its buffers.
KERNEL = {
    "net_dev.txt": "/proc/net/dev",
    "net_snmp.txt": "/proc/net/snmp",
    "rmem_max.txt": "/proc/sys/net/core/rmem_max",
    "wmem_max.txt": "/proc/sys/net/core/wmem_max",
}
LOG = ("journalctl", "--unit=ultimad", "--since=-24h", "--lines=20000", "--no-pager", "--output=short-iso-precise")
LOG_S = 20.0


def bugreport(
    path: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The archive; its name ends in .tar.gz.")
    ] = None,
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.base.errors import InvalidArgument

    file = path or Path(time.strftime("ultima-bugreport-%Y%m%d-%H%M%S.tar.gz"))
    if not file.name.endswith(".tar.gz"):
        raise InvalidArgument("FILE", str(file), "a name that ends in .tar.gz")
    parts, failed = gathered(socket_named(socket))
    try:
        with new_file(file) as to, tarfile.open(fileobj=to, mode="w:gz") as archive:
            for name, text in parts.items():
                entry = tarfile.TarInfo(f"{file.name.removesuffix('.tar.gz')}/{name}")
                entry.size, entry.mtime, entry.mode = len(text), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(text))
    except FileExistsError:
        raise InvalidArgument("FILE", str(file), "a file that is not there yet: none is replaced") from None
    except OSError as error:
        raise InvalidArgument("FILE", str(file), f"a file that can be written ({error.strerror})") from None
    if as_json:
        print_json({"file": str(file), "parts": sorted(parts), "failed": failed})
        return
    say(f"{file}: {', '.join(sorted(parts))}")
    for name, why in failed.items():
        say(f"without {name}: {why}", err=True)
    say("It names jobs and addresses of hosts; look at it before you send it.")


def gathered(socket: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Names and contents, and why others are missing. Raises DaemonUnavailable if nobody answers at all."""
    from ultima.admin import operate, past
    from ultima.admin.calls import examine, get_status
    from ultima.admin.flight import life_facts
    from ultima.base.errors import UltimaError
    from ultima.cli import doctor
    from ultima.cli.events import facts
    from ultima.cli.status import to_dict
    from ultima.cli.version import version_of
    from ultima.v1 import installed

    answer = get_status(socket)
    status = to_dict(answer)
    host = {"python": platform.python_version(), "kernel": platform.release(), "machine": platform.machine()}
    asked: dict[str, Callable[[], Any]] = {
        "version.json": lambda: {"version": installed.version(), "torch": version_of("torch"), **host},
        "status.json": lambda: status,
        "config.json": lambda: {
            row.key: {"value": json.loads(row.value), "origin": row.origin} for row in operate.get_config(socket)
        },
        "events.json": lambda: {"events": [facts(event) for event in past.get_events(socket)]},
        "history.json": lambda: to_dict(past.get_history(socket)),
        "doctor.json": lambda: {
            "checks": [
                doctor.to_dict(each) for each in [*doctor.client_checks(socket, answer.version), *examine(socket, [])]
            ]
        },
        "ops.json": lambda: {"lives": [life_facts(life) for life in past.get_ops(socket).lives]},
    }
    parts, failed = {}, {}
    for name, ask in asked.items():
        try:
            parts[name] = json.dumps(formed(ask()), indent=1).encode()
        except UltimaError as error:
            failed[name] = str(error)
    try:
        parts["metrics.prom"] = past.get_metrics(socket).encode()
    except UltimaError as error:
        failed["metrics.prom"] = str(error)
    for name, file in KERNEL.items():
        try:
            parts[name] = Path(file).read_bytes()
        except OSError as error:
            failed[name] = f"{file}: {error.strerror}"
    try:
        done = subprocess.run(LOG, capture_output=True, timeout=LOG_S, check=False)
        if done.returncode == 0 and done.stdout.count(b"\n") > 1:
            parts["log.txt"] = done.stdout
        else:
            failed["log.txt"] = "systemd has none of the unit ultimad that this user may read"
    except (OSError, subprocess.TimeoutExpired):
        failed["log.txt"] = "journalctl is not here, or did not answer"
    return parts, failed
