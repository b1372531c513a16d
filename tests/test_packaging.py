# SPDX-License-Identifier: Apache-2.0
"""That pyproject.toml describes the tree as it is: what it leaves out is missed only in a wheel."""

import importlib
import tomllib
from pathlib import Path

import pytest

import ultima
from ultima.v1 import installed

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS = {name: ROOT / folder for name, folder in SETUPTOOLS["package-dir"].items()}


def test_packages__are_all_folders_with_an_init() -> None:
    found = {path.parent for top in ("client", "daemon", "proto") for path in (ROOT / top).rglob("__init__.py")}
    assert found == set(FOLDERS.values())
    assert set(SETUPTOOLS["packages"]) == set(FOLDERS)


def test_package_dir__follows_the_names() -> None:
    """A subpackage lies where its name says, below its parent's folder, unless it has one of its own at the top."""
    own = {"ultima": "client", "ultima.daemon": "daemon", "ultima.v1": "proto/ultima/v1"}
    for name, folder in SETUPTOOLS["package-dir"].items():
        parent, _, last = name.rpartition(".")
        assert folder == own.get(name, f"{SETUPTOOLS['package-dir'].get(parent)}/{last}")


@pytest.mark.parametrize(("package", "patterns"), SETUPTOOLS["package-data"].items())
def test_package_data__exists(package: str, patterns: list[str]) -> None:
    for pattern in patterns:
        assert list(FOLDERS[package].glob(pattern)), f"{package} promises {pattern}"


@pytest.mark.parametrize("script", PROJECT["project"]["scripts"])
def test_scripts__are_callable(script: str) -> None:
    module, _, name = PROJECT["project"]["scripts"][script].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_version__is_the_same_everywhere() -> None:
    name, version = PROJECT["project"]["name"], PROJECT["project"]["version"]
    assert name == installed.DISTRIBUTION
    assert installed.version() == ultima.__version__ == version, "the installed metadata is old: `make setup`"
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_extension__is_one_stable_abi_module() -> None:
    """abi3: the one wheel serves every CPython from 3.11 on. So with the simulator, which has a module of its own."""
    import ultima._native
    import ultima._simulator

    assert Path(ultima._native.__file__).name == "_native.abi3.so"
    assert Path(ultima._simulator.__file__).name == "_simulator.abi3.so"
