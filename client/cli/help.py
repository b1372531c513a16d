# SPDX-License-Identifier: Apache-2.0
"""How the command line explains itself: verbs in groups, a whole sentence for each, and an example under each verb.

The parser (typer) calls arguments by its own types, such as `<list[str]>`, and cuts sentences to fit a column. Both are
replaced here, with what every version of typer from the lowest that pyproject.toml names has in common.
"""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

GROUPS = ("Train and measure", "See what goes on", "Operate", "Set up")


def argument_name(parameter: Any) -> str:
    """An argument as usage shows it: "HOST...", or "[FILE]" where it may be left out."""
    name = str(parameter.metavar or parameter.name.upper()).strip("[]").removesuffix("...")
    name += "..." if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def usage(command: Any) -> str:
    """What follows a verb's name."""
    names = [argument_name(each) for each in command.params if each.param_type_name == "argument"]
    return " ".join(["[OPTIONS]", *names])


def records(command: Any, context: Any, kind: str) -> list[tuple[str, str]]:
    """A verb's arguments or options and what they mean; |kind| is "argument" or "option"."""
    found: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        if parameter.param_type_name != kind:
            continue
        term, told = parameter.get_help_record(context) or ("", "")
        if kind == "argument":
            found.append((argument_name(parameter).strip("[]"), told.removesuffix("[required]").rstrip()))
        elif term:
            found.append((option_term(term), told))
    return found


def option_term(term: str) -> str:
    """An option as the parser shows it, with our words for values: "--job TEXT", "--ranks N", "--mode on|off"."""
    for theirs, ours in _VALUES:
        term = theirs.sub(ours, term)
    return term


_VALUES = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (r"<int( range)?>|\bINTEGER( RANGE)?\b", "N"),
        (r"<float( range)?>|\bFLOAT( RANGE)?\b", "X"),
        (r"<path>", "PATH"),
        (r"<(list\[)?str\]?>", "TEXT"),
        (r"[<\[]([^<>\[\]]*\|[^<>\[\]]*)[>\]]", r"\1"),
    )
)


def for_completion(parameters: list[Any], context: Any) -> list[Any]:
    """The parameters of a command; while a shell asks what fits, their values are taken as they are. To check them the
    parser loads a library that takes longer than all the rest of a completion."""
    if context.resilient_parsing:
        for parameter in parameters:
            parameter.process_value = _as_it_is
    return parameters


def _as_it_is(context: Any, value: Any) -> Any:
    return value


class WithExample(TyperCommand):
    """A verb whose epilog is a line that can be typed."""

    def get_params(self, ctx: Any) -> list[Any]:
        return for_completion(super().get_params(ctx), ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [usage(self)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            if rows := records(self, ctx, kind):
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Example"):
                formatter.write(f"{'':{formatter.current_indent}}{self.epilog}\n")


class Group(TyperGroup):
    """Verbs below another one."""

    def get_params(self, ctx: Any) -> list[Any]:
        return for_completion(super().get_params(ctx), ctx)


class InGroups(Group):
    """All verbs, by group, in the order of the table."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        for group in GROUPS:
            rows = [
                (f"{name:{width}}", each.help or "") for name, each in self.commands.items() if in_group(each) == group
            ]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            formatter.write_paragraph()
            formatter.write_text(self.epilog)


def in_group(command: Any) -> str:
    """Where a verb belongs; what is in no group is for setting up."""
    return getattr(command.callback, "ultima_group", GROUPS[-1])
