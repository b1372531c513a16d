# SPDX-License-Identifier: Apache-2.0
"""What code and documents cite is there: sections of docs/papers.md, headings of other pages, claims of the papers."""

import dataclasses
import inspect
import os
import re
import subprocess
from pathlib import Path

import pytest

import ultima

ROOT = Path(__file__).resolve().parents[1]
PAPERS = "docs/papers.md"
KINDS = {".py", ".pyi", ".c", ".h", ".proto", ".sh", ".md", ".toml"}
# A citation may go on in the next line of a comment.
BREAK = re.compile(r"\n[ \t]*(?:\*|#|//|\|)?[ \t]*")
NUMBERS = re.compile(r"papers\.md`?, sections? ((?:\d+(?:\.\d+)*(?:, and |, | and | to )?)+)")
FORMER = re.compile(r"\bSPEC\b")
NOT_IN_A_LOG = "docs/log/"  # entries of the past stay as they were written


def _texts() -> dict[str, str]:
    """Path -> content of each text of the repository that somebody reads."""
    there = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.splitlines()  # fmt: skip
    kept = [name for name in there if Path(name).suffix in KINDS and not name.startswith(NOT_IN_A_LOG)]
    return {name: (ROOT / name).read_text() for name in kept if (ROOT / name).exists()}


def _cited(text: str) -> list[str]:
    """The numbers of the sections of docs/papers.md that |text| names."""
    return [number for found in NUMBERS.findall(BREAK.sub(" ", text)) for number in re.findall(r"\d+(?:\.\d+)*", found)]


def _sections(text: str) -> list[str]:
    return re.findall(r"^##+ (\d+(?:\.\d+)*) ", text, re.MULTILINE)


def _anchors(text: str) -> set[str]:
    """The names under which headings can be linked to, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _dead_anchors(name: str, texts: dict[str, str]) -> list[str]:
    """The links of a document to headings that are not there."""
    dead = []
    for link, anchor in re.findall(r"\]\(([^)\s:#]*)#([^)\s]+)\)", texts[name]):
        page = os.path.normpath(Path(name).parent / link) if link else name
        if page.endswith(".md") and anchor not in _anchors(texts.get(page, "")):
            dead.append(f"{link}#{anchor}")
    return dead


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: the files of the repository are not known")
    return _texts()


def test_sections_of_the_papers__are_cited_by_numbers_that_exist(texts: dict[str, str]) -> None:
    """A reader who follows a number must find the mechanism there."""
    planted = (
        "a (docs/papers.md,\n * section 1.2). b (`docs/papers.md`, sections 2.6 and 3.5). # docs/papers.md, section 4"
    )
    assert _cited(planted) == ["1.2", "2.6", "3.5", "4"]
    sections = _sections(texts[PAPERS])
    assert len(sections) == len(set(sections)) > 30
    cited = {name: _cited(text) for name, text in texts.items() if name != "tests/test_citations.py"}
    assert sum(map(len, cited.values())) > 40
    dead = {name: set(numbers) - set(sections) for name, numbers in cited.items()}
    assert {name: numbers for name, numbers in dead.items() if numbers} == {}


def test_nothing_cites_what_is_not_in_the_repository(texts: dict[str, str]) -> None:
    """The papers' precise form had another home once, which readers of this repository do not have."""
    assert FORMER.search("(SPEC 1a.2)") and FORMER.search("SPEC's vectors") and not FORMER.search("UNSPECIFIED")
    mine = "tests/test_citations.py"
    assert [name for name, text in texts.items() if name != mine and FORMER.search(text)] == []


def test_claims_named_beside_a_mechanism__are_in_its_report(texts: dict[str, str]) -> None:
    """Each section says which claims test its mechanism. The report of that paper must have them."""
    reports = {"U": "ultima", "E": "eager", "R": "rna", "C": "coded", "D": "deepreduce"}
    named = {claim for line in re.findall(r"Claims?: ([^.]+)\.", BREAK.sub(" ", texts[PAPERS]))
             for claim in re.findall(r"\b[UERCD]\d+\b", line)}  # fmt: skip
    assert len(named) > 25
    lost = [claim for claim in sorted(named)
            if not re.search(rf"\b{claim}\b", texts[f"docs/reproduction/{reports[claim[0]]}.md"])]  # fmt: skip
    assert lost == []


def test_links_into_a_page__lead_to_a_heading(texts: dict[str, str]) -> None:
    """A heading that changes takes its links along."""
    planted = {"docs/planted.md": "[a](#b-c) [d](../e.md#f) [d](../e.md#gone)\n## B: c\n", "e.md": "# F\n"}
    assert _dead_anchors("docs/planted.md", planted) == ["../e.md#gone"]
    documents = [name for name in texts if name.endswith(".md")]
    assert {name: dead for name in documents if (dead := _dead_anchors(name, texts))} == {}


def test_glossary__is_alphabetic_and_names_what_the_interface_has(texts: dict[str, str]) -> None:
    """A term that is looked up is found where the alphabet has it, and its name in the API is one that can be typed."""
    glossary = " ".join(texts["docs/concepts.md"].split("## Glossary")[1].split())
    terms = [term.lower().replace("_", "") for term in re.findall(r"\*\*([^*]+)\*\*", glossary)]
    first = [term for term in terms if term not in ("fresh", "tc")]  # these stand beside another term
    assert len(first) > 50 and first == sorted(first)
    named = re.findall(r"`([^`]+)`", " ".join(re.findall(r"API: (.*?)(?= \*\*|$)", glossary)))
    assert len(named) > 30
    assert [name for name in named if not _is_in_the_interface(name)] == []


def _is_in_the_interface(name: str) -> bool:
    if options := re.match(r"Options\((.+)\)", name):
        there = {field.name for field in dataclasses.fields(ultima.Options)}
        return set(re.findall(r"(\w+)=", options[1])) <= there
    if keyword := re.match(r"(?:allreduce\(\.\.\., )?(\w+)=", name):
        return keyword[1] in inspect.signature(ultima.Job.allreduce).parameters
    owner, _, member = name.partition("(")[0].rpartition(".")
    if owner.startswith("ultima.torch"):  # importing torch takes seconds
        return (
            f'"{member}"'
            in (ROOT / "client" / owner.removeprefix("ultima.").replace(".", "/") / "__init__.py").read_text()
        )
    place = {"ultima": ultima, "job": ultima.Job}.get(owner) or getattr(ultima, owner or "nothing", None)
    return hasattr(place, member) or member in getattr(place, "__dataclass_fields__", {})
