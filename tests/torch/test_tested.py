# SPDX-License-Identifier: Apache-2.0
"""The releases of torch that were tested, in all places that name them."""

import re
import tomllib
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from deploy import lock  # noqa: E402
from ultima.torch.tested import NEWEST, OLDEST, warn_of  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FLOOR = ".".join(OLDEST.split(".")[:2])
TOP = ".".join(NEWEST.split(".")[:2])


@pytest.mark.parametrize("version", ["2.16.0", "2.16.0a0+gitb1c2d3", "3.0.1+cu140", "2.11.0"])
def test_warn_of__another_release_is_told_once(version: str) -> None:
    with pytest.warns(UserWarning, match=f"tested with torch {FLOOR} to {TOP}, and this is torch {re.escape(version)}"):
        warn_of(version)


@pytest.mark.parametrize("version", [OLDEST, NEWEST, "2.13.0+cpu", "2.14.1", f"{TOP}.9+cu132", f"{FLOOR}.0"])
def test_warn_of__a_tested_one_is_not(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of(version)


def test_lock__reads_the_same() -> None:
    assert (lock.OLDEST, lock.NEWEST) == (OLDEST, NEWEST)


def test_pyproject__asks_for_the_oldest() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"torch>={FLOOR}" in extras["torch"] and any("torch" in each for each in extras["demo"])


@pytest.mark.parametrize("document", ["README.md", "docs/install.md", "docs/pytorch.md"])
def test_documents__name_the_range(document: str) -> None:
    text = " ".join((ROOT / document).read_text().split())
    assert f"{FLOOR} to {TOP}" in text
