# SPDX-License-Identifier: Apache-2.0
"""`ultima metrics`: the daemon's metrics in the text form of Prometheus; `ultima metrics write PATH` for its textfile
collector, which must never see half a file: the new one takes the place of the old one at once.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from ultima.cli.common import AsJson, Socket, print_json, say, socket_named


def metrics(
    action: Annotated[str, typer.Argument(metavar="[write]", help="Write them to a file.")] = "",
    path: Annotated[Path | None, typer.Argument(metavar="[PATH]", help="The file; its name ends in .prom.")] = None,
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.past import get_metrics
    from ultima.base.errors import InvalidArgument

    if action not in ("", "write"):
        raise InvalidArgument("ACTION", action, "write, with a PATH; or nothing, which prints the metrics")
    if action and (path is None or path.suffix != ".prom"):
        raise InvalidArgument("PATH", str(path or ""), "a file whose name ends in .prom, or its collector ignores it")
    text = get_metrics(socket_named(socket))
    if path is not None:
        write(path, text)
    if as_json:
        from prometheus_client.parser import text_string_to_metric_families as families

        rows = [{"name": each.name, "type": each.type, "help": each.documentation, "samples": [
            {"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in each.samples
        ]} for each in families(text)]  # fmt: skip
        print_json({"written": str(path) if path is not None else None, "metrics": rows})
    elif path is None:
        say(text, nl=False)


def write(path: Path, text: str) -> None:
    """Puts |text| in the place of the file at |path|, readable for all. Raises InvalidArgument."""
    from ultima.base.errors import InvalidArgument

    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text)
        new.chmod(0o644)
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise InvalidArgument("PATH", str(path), f"a file in a folder that can be written ({error.strerror})") from None
