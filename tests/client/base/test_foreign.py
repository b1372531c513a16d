# SPDX-License-Identifier: Apache-2.0
"""Who else is called `ultima`: Python itself says what it would import, and the sentence must agree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ultima
from ultima.api.job import _daemon_connector
from ultima.base.foreign import first_folders, hidden_by, intruder
from ultima.base.warning import UltimaWarning
from ultima.cli import doctor, main

WHICH = "import sys, ultima; print(getattr(ultima, '__file__', None) or list(ultima.__path__)[0])"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that has another project's `ultima`, installed."""
    about = tmp_path / "ultima-1.2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ultima\nVersion: 1.2.0\n")
    (about / "RECORD").write_text("ultima/__init__.py,,\nultima/maps.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path


def test_intruder__is_named_with_its_place_and_the_remedy(stranger: Path) -> None:
    found = intruder()
    assert found is not None and "\n" not in str(found)
    assert "another project's package, ultima 1.2.0, is installed beside ultimad" in found.finding
    assert str(stranger / "ultima") in found.finding
    assert found.remedy == "pip uninstall ultima, then pip install ultimad --force-reinstall"


def test_intruder__is_none_where_nothing_is_shared(stranger: Path) -> None:
    """An editable installation, say, has no files of ours in its list."""
    (stranger / "ultima-1.2.0.dist-info/RECORD").write_text("__editable__.ultima-0.1.0.pth,,\n")
    assert intruder() is None


def test_intruder__is_told_at_connect_and_with_a_name_that_is_not_ours(stranger: Path) -> None:
    with pytest.warns(UltimaWarning, match=r"ultima 1\.2\.0, is installed"):
        _daemon_connector()
    with pytest.raises(AttributeError, match=r"no attribute 'pmap': another project's package, ultima 1\.2\.0"):
        ultima.pmap  # noqa: B018
    (stranger / "ultima-1.2.0.dist-info/RECORD").write_text("")
    with pytest.raises(AttributeError, match=r"has no attribute 'pmap'$"):
        ultima.pmap  # noqa: B018


PLACES = {
    "a file": ("ultima.py", "ultima.py"),
    "a package": ("ultima/__init__.py", "ultima"),
    "a folder without __init__, as of a checkout": ("ultima/README.md", "ultima"),
    "a folder of another name": ("other/__init__.py", ""),
}


@pytest.mark.parametrize(("file", "hides"), PLACES.values(), ids=PLACES)
def test_hidden_by__is_what_python_imports(tmp_path: Path, file: str, hides: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    script = tmp_path / "train.py"
    script.write_text(WHICH)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    found = hidden_by(first_folders([sys.executable, str(script)], {}))
    if not done.stdout.startswith(str(tmp_path)):
        assert found is None
    else:
        assert hides and found is not None
        assert found.finding.startswith(f"{tmp_path / hides} hides the package ultima: programs started there")
        assert found.remedy.startswith("rename it")


def test_hidden_by__a_checkout_behind_an_installed_package_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes a folder without __init__ only if no entry of its path has a package of the name."""
    (tmp_path / "beside/ultima").mkdir(parents=True)
    (tmp_path / "site/ultima").mkdir(parents=True)
    (tmp_path / "site/ultima/__init__.py").symlink_to(ultima.__file__)
    elsewhere = [entry for entry in sys.path if not Path(entry, "ultima").exists()]
    monkeypatch.setattr(sys, "path", elsewhere)  # as after an editable installation
    assert hidden_by([tmp_path / "site"]) is None  # it is this package
    assert hidden_by([tmp_path / "beside"]) is not None
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *elsewhere])
    assert hidden_by([tmp_path / "beside"]) is None


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        (["SCRIPT"], {}),
        (["-u", "SCRIPT", "-c", "x"], {}),
        (["-W", "ignore", "-X", "utf8", "SCRIPT"], {}),
        (["-I", "SCRIPT"], {"PYTHONPATH": "p"}),
        (["-P", "SCRIPT"], {"PYTHONPATH": "p"}),
        (["SCRIPT"], {"PYTHONSAFEPATH": "1", "PYTHONPATH": "p"}),
        (["SCRIPT"], {"PYTHONPATH": f"p{os.pathsep}q"}),
        (["-m", "module"], {}),
        (["-um", "module"], {"PYTHONPATH": "p"}),
        (["-c", "import sys; print(*sys.path, sep=chr(10))"], {}),
        (["LINK"], {}),
    ],
)
def test_first_folders__are_those_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: list[str], variables: dict[str, str]
) -> None:
    text = "import sys; print(*sys.path, sep=chr(10))"
    (tmp_path / "scripts").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "scripts/train.py").write_text(text)
    (tmp_path / "work/module.py").write_text(text)
    (tmp_path / "work/link.py").symlink_to(tmp_path / "scripts/train.py")
    monkeypatch.chdir(tmp_path / "work")
    names = {"SCRIPT": str(tmp_path / "scripts/train.py"), "LINK": "link.py"}
    command = [sys.executable, *(names.get(word, word) for word in program)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, env=clean | variables, capture_output=True, text=True, timeout=60, check=True)
    mine = [Path(line).absolute() for line in done.stdout.splitlines()]
    theirs = [path.absolute() for path in first_folders(command, variables)]
    assert mine[: len(theirs)] == theirs
    assert not any(path.is_relative_to(tmp_path) for path in mine[len(theirs) :])


def test_first_folders__of_other_programs() -> None:
    assert first_folders(["bash", "-c", "x.py"], {}) == []
    assert first_folders(["torchrun", "train.py"], {"PYTHONPATH": "/a"}) == [Path("/a")]
    assert first_folders(["/x/train.py", "-I"], {}) == [Path("/x")]


def test_run__says_it_before_the_ranks_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ultima.py").write_text("")
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("ultima.launch.launcher.launch", lambda plan, environment, say, wanted: say("ranks") or 0)
    result = CliRunner().invoke(main.build(), ["run", "--", sys.executable, str(tmp_path / "train.py")])
    assert result.exit_code == 0
    first, second = result.stderr.splitlines()
    assert first.startswith(f"ultima: {tmp_path / 'ultima.py'} hides the package ultima") and second == "ultima: ranks"


def test_doctor__has_a_row_for_each_clash(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stranger / "work"
    (folder / "ultima").mkdir(parents=True)
    (folder / "ultima/__init__.py").write_text("")
    monkeypatch.chdir(folder)
    rows = doctor.name_checks()
    assert [doctor.to_dict(row)["verdict"] for row in rows] == ["warning", "warning"]
    assert "ultima 1.2.0" in rows[0].finding and rows[0].remedy.startswith("pip uninstall ultima")
    assert rows[1].finding.startswith(f"{folder / 'ultima'} hides") and rows[1].remedy.startswith("rename it")
    monkeypatch.chdir("/")
    (stranger / "ultima-1.2.0.dist-info/RECORD").write_text("")
    assert [row.finding for row in doctor.name_checks()] == ["nothing else here is called ultima"]
