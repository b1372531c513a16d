# SPDX-License-Identifier: Apache-2.0
"""The site of the documents: every page has its place, every link leads somewhere, nothing is from other hosts."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "deploy/site/build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "loads"),
    [
        ('<script src="https://x.org/a.js"></script>', ["https://x.org/a.js"]),
        ('<script src="//x.org/a.js"></script>', ["//x.org/a.js"]),
        ('<link rel="preconnect stylesheet" href="HTTPS://x.org/a.css">', ["HTTPS://x.org/a.css"]),
        ('<img src="http://x.org/badge.svg">', ["http://x.org/badge.svg"]),
        ('<a href="https://x.org">a link that is only followed</a>', []),
        ('<link rel="canonical" href="https://x.org/">', []),
        ('<script src="assets/a.js"></script><img src="plots/loss.svg">', []),
    ],
)
def test_outside__finds_what_a_page_loads_from_other_hosts(
    site: ModuleType, tmp_path: Path, page: str, loads: list[str]
) -> None:
    (tmp_path / "x.html").write_text(page)
    assert site.outside(tmp_path / "x.html") == loads


def test_outside__looks_into_styles(site: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x.css").write_text(
        '@import "https://a.org/b.css"; p { background: url(//c.org/d.png) } q { src: url(e.woff) }'
    )
    assert site.outside(tmp_path / "x.css") == ["https://a.org/b.css", "//c.org/d.png"]


def test_navigation__a_page_without_a_place_is_an_error(site: ModuleType, tmp_path: Path) -> None:
    for name in ("index", "install", "stray"):
        (tmp_path / f"{name}.md").write_text("text")
    with pytest.raises(ValueError, match=r"pages without a place in SECTIONS: stray\.md"):
        site.navigation(tmp_path)


@pytest.mark.check
def test_site__is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "deploy/site/build.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index.html", "install.html", "protocol.html", "man/ultima-doctor.1.html", "reproduction/rna.html"):
        assert (tmp_path / "site" / page).exists(), page
    assert "ultima-doctor" in (tmp_path / "site/man/ultima-doctor.1.html").read_text()
