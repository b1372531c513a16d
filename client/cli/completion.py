# SPDX-License-Identifier: Apache-2.0
"""`ultima completion bash|zsh|fish`: what a shell must read so that Tab completes verbs and options."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ultima.cli.common import AsJson, print_json, say

VARIABLE = "_ULTIMA_COMPLETE"
"""Set by a shell that asks what fits."""
SHELLS = {
    "bash": "source <(ultima completion bash)",
    "zsh": "source <(ultima completion zsh)",
    "fish": "ultima completion fish | source",
}


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")],
    as_json: AsJson = False,
) -> None:
    from typer._completion_shared import get_completion_script

    from ultima.base.errors import InvalidArgument

    if shell not in SHELLS:
        raise InvalidArgument("SHELL", shell, ", ".join(SHELLS))
    prepare()
    script = get_completion_script(prog_name="ultima", complete_var=VARIABLE, shell=shell)
    if as_json:
        print_json({"shell": shell, "use": SHELLS[shell], "script": script})
        return
    say(f"# {SHELLS[shell]}")
    say(script)


def words() -> list[str]:
    """Those of the command line that is to be completed, as one shell or the other tells it."""
    return [word for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS") for word in os.environ.get(name, "").split()]


def prepare() -> None:
    """Makes typer's shells known. It does so by itself only with options of its own, which we leave out."""
    from typer._completion_classes import completion_init

    completion_init()
