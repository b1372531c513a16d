# SPDX-License-Identifier: Apache-2.0
"""`ultima set`: changes options of a job while it runs, on all its hosts, and says what that changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from ultima.cli.common import AsJson, Socket, print_json, say, socket_named


def set_options(
    job: Annotated[str, typer.Argument(help="Name of the job, as `ultima status` shows it.")],
    pairs: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="incast=3 t_b=300ms policy=solo ...")],
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.calls import get_status, tune
    from ultima.settings.options import changes, words

    said = changes(pairs)
    path = socket_named(socket)
    known = [words(found.options) for found in get_status(path, job).jobs if found.HasField("options")]
    after = words(tune(path, job, said))
    changed = changed_options(known[0] if known else {}, after)
    if as_json:
        told = {name: {"before": before, "after": now} for name, (before, now) in changed.items()}
        print_json({"job": job, "changed": told, "options": after})
        return
    for name, (before, now) in changed.items():
        say(f"{job}: {name} is {now} now, it was {before}")
    if not changed:
        names = [pair.partition("=")[0] for pair in pairs]
        say(f"{job}: nothing changed: " + ", ".join(f"{name} is {after[name]} already" for name in names))


def changed_options(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The options whose words differ, with both words."""
    return {name: (before.get(name, "unknown"), now) for name, now in after.items() if before.get(name) != now}
