# SPDX-License-Identifier: Apache-2.0
"""The API reference: each public name is on one page, and whoever reads it there is told what it is."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import griffe
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client"
INHERITED = {"UltimaProcessGroup"}
"""Classes whose calls are those of a class of torch, which explains them."""


def tool(name: str) -> ModuleType:
    """deploy/site/NAME.py."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / f"deploy/site/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


docstrings, headers = tool("docstrings"), tool("headers")


def public() -> Iterator[tuple[str, str]]:
    """Each public module, and a name in its `__all__`. The rooms below the packages are not public."""
    for file in sorted(CLIENT.rglob("__init__.py")):
        module = ".".join(["ultima", *file.parent.relative_to(CLIENT).parts])
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from ((module, name) for name in ast.literal_eval(node.value))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> griffe.Module:
    """`ultima` as griffe reads it, without an import; docstrings as they stand in the sources."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "ultima").symlink_to(CLIENT)
    loader = griffe.GriffeLoader(search_paths=[folder], allow_inspection=False)
    loaded = loader.load("ultima")
    assert isinstance(loaded, griffe.Module)
    loader.resolve_aliases(implicit=False, external=False)
    return loaded


def canonical(package: griffe.Module, full: str) -> str:
    """Where it is defined. What a package loads late is none of its members: its name alone tells."""
    try:
        return package[full.removeprefix("ultima.")].canonical_path
    except KeyError:
        return full.rpartition(".")[2]


def test_pages__each_public_name_is_explained_once(package: griffe.Module) -> None:
    """What two modules offer stands under the shorter of its full names."""
    shown = docstrings.shown()
    assert len(shown) == len(set(shown))
    wanted: dict[str, str] = {}
    for module, name in sorted(public(), key=lambda it: it[0].count(".")):
        full = f"{module}.{name}"
        wanted.setdefault(canonical(package, full), full)
    assert len(wanted) > 80
    assert set(shown) == set(wanted.values())


def untold(package: griffe.Module, names: list[str]) -> list[str]:
    """Public things that no docstring explains: their own, or for a member that of its class or of its module."""
    ret = []
    for name in names:
        found = package[name.removeprefix("ultima.")]
        found = found.final_target if found.is_alias else found
        if not found.has_docstring:
            ret.append(name)
        if not found.is_class or found.name in INHERITED:
            continue
        about = "\n".join(it.docstring.value for it in (found, found.module) if it.docstring)
        told = set(re.findall(r"[`|](\w+)[`|]|^ *(\w+)  ", about, re.MULTILINE))
        terms = re.findall(r"^ *((?:\w+, )*\w+): ", about, re.MULTILINE)
        named = {word for words in told for word in words} | {word for term in terms for word in term.split(", ")}
        bare = (member.name for member in found.members.values() if not member.has_docstring)
        ret += [f"{name}.{member}" for member in bare if not member.startswith("_") and member not in named]
    return ret


@pytest.mark.check
def test_docstrings__nothing_public_is_left_to_guess(package: griffe.Module) -> None:
    assert untold(package, docstrings.shown()) == []


def unnamed(package: griffe.Module, names: list[str]) -> list[str]:
    """Parameters of public calls that the docstring does not name, unless it says whose it is like: see `other`."""
    ret = []
    for name in names:
        found = package[name.removeprefix("ultima.")]
        found = found.final_target if found.is_alias else found
        calls = {name: found} if found.is_function else {}
        if found.is_class and found.name not in INHERITED:
            calls = {f"{name}.{key}": it for key, it in found.members.items() if it.is_function and key[0] != "_"}
        for call, function in calls.items():
            about = function.docstring.value if function.docstring else ""
            words = set() if re.search(r"(?i)\b(see|what|as|for) `", about) else {it.name for it in function.parameters}
            ret += [f"{call}({word})" for word in sorted(words - {"self"} - set(re.findall(r"\w+", about)))]
    return ret


@pytest.mark.check
def test_docstrings__each_parameter_is_named(package: griffe.Module) -> None:
    assert unnamed(package, docstrings.shown()) == []


def test_docstrings__become_markdown() -> None:
    about = griffe.Function("f", parameters=griffe.Parameters(*map(griffe.Parameter, ("a", "b", "c"))))
    made = docstrings.Docstrings()
    made.places, made.errors = {"Desync": "ultima.Desync", "Job": "ultima.Job"}, {"Desync"}
    text = (
        "Adds |a|.\n\na, b: floats\n    in a row\nc: see `Job.empty`\nother: text\n\n    a: b `Job`\n\nRaises Desync."
    )
    assert made.markdown(text, about).splitlines() == [
        *("Adds `a`.", "", "- `a`, `b`: floats", "    in a row", "- `c`: see [`Job.empty`][ultima.Job.empty]"),
        *("other: text", "", "    a: b `Job`", "", "Raises [`Desync`][ultima.Desync]."),
    ]


HEADER = """\
/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of |n| numbers, a < b *c*.
 *
 *     code(a[0]);
 */
#ifndef UT_X_H
#define UT_X_H

#include "core/base/ut.h"

/* ---- adding (x.c) ---- */

/* A pair. */
typedef struct ut_pair {
    int a; /* first */

    int b;
} ut_pair;

/* Adds. UT_OK, or an error. */
int ut_add(ut_pair *p,
           int n);
int ut_sub(ut_pair *p, int n);

#define UT_MAX 3 /* most */

#endif
"""


def test_headers__a_page_has_each_comment_above_its_code() -> None:
    add = "int ut_add(ut_pair *p,\n           int n);\nint ut_sub(ut_pair *p, int n);"
    pair = "typedef struct ut_pair {\n    int a; /* first */\n\n    int b;\n} ut_pair;"
    assert headers.page("x.h", HEADER).splitlines() == [
        *("# x.h", "", "Sums of `n` numbers, a &lt; b \\*c\\*.", "", "    code(a[0]);", "", "## Adding (x.c)", ""),
        *("### ut_pair", "", "A pair.", "", "```c", *pair.splitlines(), "```", ""),
        *("### ut_add, ut_sub", "", "Adds. UT_OK, or an error.", "", "```c", *add.splitlines(), "```", ""),
        *("### UT_MAX", "", "```c", "#define UT_MAX 3 /* most */", "```"),
    ]


@pytest.mark.parametrize("header", headers.HEADERS)
def test_headers__each_function_has_a_heading(header: str) -> None:
    text = (ROOT / "transport_c" / header).read_text()
    page = headers.page(header, text)
    titles = {name for line in re.findall(r"(?m)^### (.*)$", page) for name in line.split(", ")}
    declared = set(re.findall(r"(?m)^[a-z][\w ]*[ *](ut_\w+)\(", text))
    assert declared <= titles and titles, header
