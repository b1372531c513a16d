# SPDX-License-Identifier: Apache-2.0
"""An extension of griffe: makes Markdown of docstrings as this house writes them, for the pages in docs/api.

    array: what it is       a parameter, or several, at the start of a line: an item of a list
    |name|                  a parameter, in the text: code
    `Receipt`, Desync       a public name: a link to where it is explained. Errors need no quotes, others do

An indented block is code, and stays as it is. Sources are named by their place in the repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.compile(r"^::: ([\w.]+)$(?!\n    options:\n      members: false)", re.MULTILINE)
ITEM = re.compile(r"(\w+(?:, \w+)*): +(?=\S)")
WORD = re.compile(r"`([A-Za-z_][\w.]*)`|(?<![\w.`\[])([A-Z][a-z]+[A-Za-z]+)(?![\w`\]])")


def shown() -> list[str]:
    """The full names that docs/api explains, page by page, as they stand there; not the introductions of modules."""
    pages = sorted((ROOT / "docs/api").glob("*.md"))
    return [name for page in pages for name in SHOWN.findall(page.read_text())]


class Docstrings(griffe.Extension):
    """Rewrites all docstrings of the package, once it is read as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.places = {name.rpartition(".")[2]: name for name in reversed(shown())}
        """Where a public name is explained."""
        self.errors: set[str] = set()

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Called by griffe."""
        loader.resolve_aliases(implicit=False, external=False)
        self.errors = {name for name in pkg["base.errors"].members if name in self.places}
        for found in _below(pkg):
            if isinstance(found, griffe.Module) and isinstance(link := found.filepath, Path):
                found._filepath = link.resolve()
                loader.lines_collection[link.resolve()] = loader.lines_collection[link]
            if found.docstring is not None:
                found.docstring.value = self.markdown(found.docstring.value, found)

    def markdown(self, text: str, about: griffe.Object) -> str:
        """The docstring |text| of |about|."""
        items, out, code = _names(about), [], False
        for line in text.splitlines():
            if not line.strip():
                code = False
            elif line.startswith("    ") and (code or not out or not out[-1].strip()):
                code = True
            found = None if code else ITEM.match(line)
            if found and set(found[1].split(", ")) <= items:
                if out and out[-1].strip() and not out[-1].startswith(("- ", "    ")):
                    out.append("")
                terms = ", ".join(f"`{name}`" for name in found[1].split(", "))
                out.append(f"- {terms}: {self._linked(line[found.end() :], about)}")
            else:
                out.append(line if code else self._linked(re.sub(r"\|(\w+)\|", r"`\1`", line), about))
        return "\n".join(out)

    def _linked(self, line: str, about: griffe.Object) -> str:
        def link(found: re.Match[str]) -> str:
            quoted, bare = found.groups()
            place = self._place(quoted, about) if quoted else self.places[bare] if bare in self.errors else None
            return f"[`{quoted or bare}`][{place}]" if place and place != about.path else found[0]

        return WORD.sub(link, line)

    def _place(self, name: str, about: griffe.Object) -> str | None:
        """Where |name| is explained, as the docstring of |about| means it; None for what is no public name."""
        head, _, last = name.rpartition(".")
        owner = about if about.is_class else about.parent
        if name in _names(about):
            return None
        if not head and owner is not None and owner.is_class and last in owner.members:
            known = owner.name in self.places and owner.members[last].has_docstring
            return f"{self.places[owner.name]}.{last}" if known else None
        above = head.rpartition(".")[2]
        return f"{self.places[above]}.{last}" if above in self.places else self.places.get(last)


def _names(about: griffe.Object) -> set[str]:
    """Those that a docstring may explain in a list: parameters, or fields."""
    if isinstance(about, griffe.Function):
        return {parameter.name for parameter in about.parameters}
    if isinstance(about, griffe.Class):
        made = about.members.get("__init__")
        fields = {name for name, member in about.members.items() if member.is_attribute}
        return fields | ({p.name for p in made.parameters} if isinstance(made, griffe.Function) else set())
    return set()


def _below(module: griffe.Object) -> Iterator[griffe.Object]:
    yield module
    for member in module.members.values():
        if not member.is_alias:
            yield from _below(member)
