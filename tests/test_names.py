# SPDX-License-Identifier: Apache-2.0
"""One word for a thing: identifiers keep to the glossary of transport_c/README.md; modules of one name have reasons."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A slot is the part of a chunk that a packet carries. What a rank of a partial job gives is a gift; `Receipt.slot` is
# an old name.
MAY_SAY_SLOT = {"__slots__", "slots", "slot", "slot_elements"}

# Why two modules have one name. Those of a verb, of a client's and a daemon's side, and of a row of the schema may.
SAME_NAME = {
    "__main__": "what `python -m` runs",
    "main": "the programs: `ultima`, `ultimad`",
    "attach": "both ends of the attach protocol",
    "calls": "calls that operators make, and calls of gRPC that end well",
    "cluster": "daemons of a demo, and engines of a fake",
    "config": "what each side is told",
    "durations": "times that people write, and a histogram of ops",
    "errors": "what each side raises",
    "events": "the verb, what the engine tells, what is kept of it, and its rows",
    "feedback": "what is left of a tensor for later, quantised and sparse",
    "files": "the verb, and files of keys",
    "job": "a rank's face of a job, and a daemon's",
    "memory": "memory of a trainer on both sides, and of gradients",
    "metrics": "the verb, what it shows, and its rows",
    "names": "what parameters are called, and where hosts of a name are",
    "native": "the extension in the client, and collectives of torch that it does",
    "options": "the same table on each side, and its rows",
    "ping": "the verb, and what a daemon does for it",
    "receipt": "the receipt, and its rows",
    "rows": "verbs that print rows, and rows of the schema",
    "state": "what a hook keeps, dense and sparse",
}


def _modules() -> list[Path]:
    return [path for room in ("client", "daemon", "schema") for path in sorted((ROOT / room).rglob("*.py"))]


def _defined(tree: ast.AST) -> set[str]:
    """What a module names itself: classes, functions, arguments, attributes, variables."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def _wrong_slots(text: str) -> set[str]:
    return {name for name in _defined(ast.parse(text)) if "slot" in name.lower() and name not in MAY_SAY_SLOT}


def test_identifiers__keep_to_the_glossary() -> None:
    wrong = {str(path.relative_to(ROOT)): found for path in _modules() if (found := _wrong_slots(path.read_text()))}
    wrong |= {str(path.relative_to(ROOT)): {path.stem} for path in _modules() if "slot" in path.stem}
    assert wrong == {}


def test_identifiers__a_wrong_one_is_seen() -> None:
    text = "class SlotBuffers:\n    def f(self, slot_a):\n        self._slot_b = slot = 1\n"
    assert _wrong_slots(text) == {"SlotBuffers", "slot_a", "_slot_b"}


def test_modules__of_one_name_have_a_reason() -> None:
    places = defaultdict(list)
    for path in _modules():
        if path.name != "__init__.py":
            places[path.stem].append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == SAME_NAME.keys(), {name: twice.get(name) for name in twice.keys() ^ SAME_NAME.keys()}


def test_headers__one_of_a_name() -> None:
    """Of the shells too: an include by its file name alone must not find another one."""
    headers = defaultdict(list)
    for path in sorted((ROOT / "transport_c").rglob("*.h")):
        if "build" not in path.relative_to(ROOT).parts:
            headers[path.name].append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in headers.items() if len(found) > 1}
    allowed = re.compile(r"transport_c/(core|ext|sim|kernels)/")
    assert all(allowed.match(one) for found in twice.values() for one in found), twice
