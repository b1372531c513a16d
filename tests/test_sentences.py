# SPDX-License-Identifier: Apache-2.0
"""What people read on a screen is plain English: the kinds of sentence that once made readers stop do not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS_MIN = 4  # shorter constants are keys and labels

# A kind, and what to write in its place.
STOPS = {
    re.compile(
        r"(?:^|[,;:\"'] ?)for (?:the |its |their |an? |this |that |no )?(?:other )?\w+(?: of \w+)* "
        r"(?:is|are|was|were|has|have|had|did|does|do|ever|came|went|must|may|can|could|will)\b"
    ): "'because', and a subject",
    re.compile(r"\banew\b"): "'again', or 'restarted'",
    re.compile(r"\b(?:who|whoever) (?:came|comes|has|had|is|was|starts?|started|makes?|wants?|calls?)\b"): "a subject",
    re.compile(r"\bnone of it\b|\bof it came\b|\bnot a word\b|\bin vain\b"): "what did not arrive",
    re.compile(r"\bso long ago\b|\bwhich is all that\b"): "an example, or 'only'",
    re.compile(r"\bby itself alone\b|\bis there already\b"): "'already exists'",
}


def _shown(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each constant of |source| that may be shown: no docstrings. Of f-strings each part by itself."""
    tree = ast.parse(source)
    unseen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in unseen else None
        if isinstance(text, str) and len(text.split()) >= WORDS_MIN:
            yield node.lineno, text


def _stops(source: str) -> list[str]:
    if not any(pattern.search(source) for pattern in STOPS):
        return []  # parsing takes longer than looking
    return [
        f"line {line}: {text!r}: write {instead}"
        for line, text in _shown(source)
        for pattern, instead in STOPS.items()
        if pattern.search(text)
    ]


def test_sentences__say_subject_and_cause() -> None:
    """Each kind is seen where it stands, and docstrings, which programmers read, are left alone."""
    planted = (
        '"""for the host is gone, and who came first."""\nx = "missing, for the host is gone"\n'
        'y = "start the job anew to move it"\nz = "belongs to uid 5, who came first"\n'
        'ok = "time for the ranks that were drawn to start an op"\n'
    )
    assert [stop.split(":")[0] for stop in _stops(planted)] == ["line 2", "line 3", "line 4"]
    found = {
        str(path.relative_to(ROOT)): stops
        for folder in ("client", "daemon")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (stops := _stops(path.read_text()))
    }
    assert found == {}
