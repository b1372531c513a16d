# SPDX-License-Identifier: Apache-2.0
"""What documents point at is there: headings that links name, tests that tests/README.md names, verbs in the README.

That linked and named files exist is held by tests/test_architecture.py.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from ultima.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
README_LINES_MAX = 160
# What stays the same in the messages that docs/faq.md answers.
SAID = (
    "is imported by the same name, from ",
    "Is ultimad running, is ULTIMA_SOCKET right?",
    "another process listens on TCP port ",
    "in use by another ultimad (pid ",
    "peers must be authenticated: set tls.certificate, tls.key and tls.authority",
    "; coordinator ",
    " cannot take part any more",
    " descriptors open that it may have",
    " to blame: ",
)


def _documents() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no repository of git here: which documents are ours is not known")
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def _prose(text: str) -> str:
    """Without blocks of code, whose lines may look like headings or links."""
    return re.sub(r"(?ms)^```.*?^```$|^ {4,}.*?$", "", text)


@cache
def _anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, by the rules of GitHub, which number the second of two alike."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"(?m)^#{1,6} +(.*?)\s*$", _prose(path.read_text())):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(found)


def _dead_anchors(path: Path) -> list[str]:
    """Links in |path| to headings that are not there; of files that are not there another test tells."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(path.read_text())):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if anchor and not re.match(r"[a-z]+:", link) and target.suffix == ".md" and target.exists():
            dead += [link] if anchor not in _anchors(target.resolve()) else []
    return dead


def _dead_tests(text: str, folder: Path) -> list[str]:
    """The tests `file.py` and `file.py::name` of |text| that are not in |folder|."""
    dead = []
    for file, name in re.findall(r"`([\w/]*test_\w+\.py)(?:::(\w+))?`", text):
        path = folder / file.removeprefix("tests/")
        if not path.exists() or (name and not re.search(rf"(?m)^(?:async )?def {name}\(", path.read_text())):
            dead.append(f"{file}::{name}" if name else file)
    return dead


def test_anchors__are_headings_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# One `two`: three?\n## Same\n## Same\n```\n# code\n```\n"
        "[x](#one-two-three) [x](#same-1) [x](#code) [x](a.md#same-2) [x](https://x.org/#y) [x](b.md#z)\n"
    )
    assert _dead_anchors(tmp_path / "a.md") == ["#code", "a.md#same-2"]
    documents = _documents()
    assert ROOT / "README.md" in documents
    assert {str(path.relative_to(ROOT)): dead for path in documents if (dead := _dead_anchors(path))} == {}


def test_promises__each_has_a_test_that_exists(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_b() -> None: ...\nasync def test_c() -> None: ...\n")
    text = "`test_a.py::test_b`, `tests/test_a.py::test_c`, `test_a.py`, `test_a.py::test_d`, `test_e.py`"
    assert _dead_tests(text, tmp_path) == ["test_a.py::test_d", "test_e.py"]
    page = (TESTS / "README.md").read_text()
    assert len(re.findall(r"`[\w/]+\.py::\w+`", page)) > 80
    assert _dead_tests(page, TESTS) == []


def test_prose__names_tests_that_exist() -> None:
    """Also outside of the table of promises."""
    text = (TESTS / "README.md").read_text()
    defined = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    named = set(re.findall(r"\b(test_\w+__\w+)", text))
    assert named and named <= defined, sorted(named - defined)


def test_folders__each_is_in_the_table() -> None:
    page = (TESTS / "README.md").read_text()
    there = {path.parent.name for path in TESTS.glob("*/*") if path.suffix in (".py", ".c")}
    assert {name for name in there if f"`{name}/`" not in page} == set()


def test_readme__names_every_verb_and_stays_short() -> None:
    """Who reads it in a terminal should be through in five minutes: what is longer has a page of its own."""
    page = (ROOT / "README.md").read_text()
    assert {verb.name for verb in VERBS if f"`{verb.name}`" not in page} == set()
    assert len(page.splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("said", SAID)
def test_faq__quotes_what_the_programs_say(said: str) -> None:
    """Who searches a page for the message on the screen finds it only if both have the same words."""
    assert said in " ".join((ROOT / "docs/faq.md").read_text().split())
    sources = (path.read_text() for room in ("client", "daemon") for path in (ROOT / room).rglob("*.py"))
    assert any(said in re.sub(r'"\s*\n\s*f?"', "", source) for source in sources)
