# SPDX-License-Identifier: Apache-2.0
"""The manual pages: made from the programs, complete, and without a mistake that mandoc knows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, written as a packager would."""
    ret = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, str(ROOT / "deploy/man/pages.py"), str(ret)], check=True, timeout=60)
    return ret


def read(page: Path) -> str:
    """A page as a reader sees it, without bold and underlining."""
    shown = subprocess.run(["mandoc", "-Tutf8", "-Owidth=200", str(page)], capture_output=True, text=True, check=True)
    return re.sub(".\b", "", shown.stdout)


def test_pages__there_is_one_for_each_program_verb_and_file(folder: Path) -> None:
    from ultima.cli.main import VERBS

    wanted = {"ultima.1", "ultima-ca.1", "ultimad.8", "ultimad.toml.5", *(f"ultima-{verb.name}.1" for verb in VERBS)}
    assert {page.name for page in folder.iterdir()} == wanted


def test_pages__mandoc_finds_nothing(folder: Path) -> None:
    command = ["mandoc", "-Tlint", "-W", "warning", *map(str, sorted(folder.iterdir()))]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and not found.stdout, found.stdout


def test_pages__tell_each_option_as_the_verbs_own_help_does(folder: Path) -> None:
    events, ca, run = (read(folder / f"ultima-{verb}.1") for verb in ("events", "ca", "run"))
    assert "-f, --follow" in events and "Keep printing new events." in events
    assert "--job-secret FILE" in run and "ULTIMA_SOCKET" not in run
    assert "ultima ca issue" in ca and "Name of the host: hostname -s." in ca
    assert "No daemon answers." in events, "the exit statuses"


def test_pages__of_the_configuration_tells_each_key_of_the_shipped_file(folder: Path) -> None:
    shown = read(folder / "ultimad.toml.5")
    keys = re.findall(r"(?m)^(?:#: )?(\w+) = ", (ROOT / "deploy/ultimad.toml").read_text())
    assert len(keys) > 30
    for key in keys:
        assert re.search(rf"(?m)^ +{key} = ", shown), key
    assert all(word in shown for word in ("[tls]", "[engine]", "[limits]"))


@pytest.mark.parametrize("text", [".Sh gone", "'quoted first", "a \\fB b", "Pp and Sh", 'say "it"', "--dash"])
def test_words__nothing_is_taken_for_a_macro(text: str, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "deploy/man"))
    try:
        import pages
    finally:
        sys.path.pop(0)
    rows = pages.listed("OPTIONS", [(text, text)])
    page = tmp_path / "x.1"
    page.write_text("\n".join([*pages.head("x", 1, "a test"), *rows, ""]))
    assert read(page).count(text) == 2, read(page)
