# SPDX-License-Identifier: Apache-2.0
"""The wheel as a user gets it: built and checked as `make wheels` does, then used in environments without compiler."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from deploy import wheels

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]

pytestmark = [pytest.mark.check, pytest.mark.timeout(900)]  # two extensions are compiled


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("apt-get") is None:
        pytest.skip("the old C library comes from Debian's packages")
    (made,) = wheels.make([platform.machine()], tmp_path_factory.mktemp("wheel"))
    return made


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which no compiler is found and nothing of this checkout is."""
    bare = tmp_path_factory.mktemp("bin")
    for name in ("sh", "env", "uname", "dirname", "realpath"):
        (bare / name).symlink_to(str(shutil.which(name)))
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "HOME"))}
    return kept | {"PATH": str(bare), "UV_PYTHON_DOWNLOADS": "never"}


def python_of(version: str) -> Path | None:
    """An installed Python of that version."""
    found = [shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))]
    for path in filter(None, found):
        asked = subprocess.run([path, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout:
            return Path(asked.stdout.strip())
    return None


PYTHONS = {
    version: python for version in ("3.11", "3.12", "3.13", "3.14") if (python := python_of(version)) is not None
} or {"this": Path(sys.executable)}


def said(*command: str | Path, env: dict[str, str]) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_wheel__holds_every_package_and_no_library(wheel: Path) -> None:
    normal = re.sub(r"[-_.]+", "_", PROJECT["project"]["name"]).lower()
    assert wheel.name.startswith(f"{normal}-{PROJECT['project']['version']}-cp311-abi3-manylinux_2_")
    inside = set(ZipFile(wheel).namelist())
    assert {f"{name.replace('.', '/')}/__init__.py" for name in FOLDERS} <= inside
    assert {"ultima/_native.abi3.so", "ultima/_simulator.abi3.so", "ultima/daemon/web/page.html"} <= inside
    tops = {name.split("/")[0] for name in inside}
    assert tops == {"ultima", f"{normal}-{PROJECT['project']['version']}.dist-info"}, "no library is bundled"


@pytest.mark.parametrize("version", PYTHONS)
def test_wheel__serves_each_python(version: str, wheel: Path, clean: dict[str, str], tmp_path: Path) -> None:
    """`ultima --version`, and two ranks that average with numpy, in an environment that holds the wheel alone."""
    uv, python = wheels.tool("uv"), PYTHONS[version]
    said(uv, "venv", "-q", "--python", python, tmp_path / "venv", env=clean)
    here = clean | {"PATH": f"{tmp_path / 'venv/bin'}:{clean['PATH']}", "XDG_RUNTIME_DIR": str(tmp_path)}
    extra = "[daemon]" if "daemon" in PROJECT["project"].get("optional-dependencies", {}) else ""
    said(uv, "pip", "install", "-q", "--python", tmp_path / "venv/bin/python", f"{wheel}{extra}", env=here)
    assert PROJECT["project"]["version"] in said(tmp_path / "venv/bin/ultima", "--version", env=here)
    script = shutil.copy(ROOT / "examples/average.py", tmp_path)
    ranks = said(tmp_path / "venv/bin/ultima", "run", "--nproc-per-node", "2", "--", "python", script, env=here)
    assert sorted(re.findall(r"rank (\d) of 2: mean 0\.50; op 0: COMPLETE", ranks)) == ["0", "1"]


def test_wheel__can_be_run_without_being_installed(wheel: Path, clean: dict[str, str]) -> None:
    """As `uvx` does: the demo answers. It trains with torch, which is not asked for here."""
    extra = "[daemon]" if "daemon" in PROJECT["project"].get("optional-dependencies", {}) else ""
    asked = ("tool", "run", "--quiet", "--python", sys.executable, "--from", f"{wheel}{extra}")
    assert "Usage" in said(wheels.tool("uv"), *asked, "ultima", "demo", "--help", env=clean)
