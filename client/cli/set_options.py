# SPDX-License-Identifier: Apache-2.0
"""`ultima set`: changes options of a job while it runs, on all its hosts."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def set_options(
    job: Annotated[str, typer.Argument(help="Name of the job, as `ultima status` shows it.")],
    pairs: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="incast=3 t_b=300ms policy=solo ...")],
    socket: Annotated[
        str | None, typer.Option(help="The daemon's gRPC socket; ULTIMA_SOCKET, else /run/ultima/ultimad.sock.")
    ] = None,
) -> None:
    from ultima.admin.calls import tune
    from ultima.settings.config import DEFAULT_SOCKET, socket_path
    from ultima.settings.options import changes, words

    said = changes(pairs)
    named = socket or os.environ.get("ULTIMA_SOCKET") or DEFAULT_SOCKET
    answer = tune(socket_path(named, "--socket" if socket else "ULTIMA_SOCKET"), job, said)
    typer.echo(" ".join(f"{name}={word}" for name, word in words(answer).items()))
