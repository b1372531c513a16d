# SPDX-License-Identifier: Apache-2.0
"""The site of the documents: every page has its place, every link leads somewhere, nothing is from other hosts."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.packages.test_api_reference import tool

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "deploy/site"))  # as for a program that is started there
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "deploy/site/build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "deploy/site"))


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


def test_placed__links_lead_to_where_the_site_has_the_page(site: ModuleType) -> None:
    rows = [
        ("README.md", "[a](docs/install.md#x) ![b](docs/plots/tta.png)", "[a](install.md#x) ![b](plots/tta.png)"),
        ("README.md", "[a](examples/ddp.py) [b](CONTRIBUTING.md)", "a [b](contributing.md)"),
        ("transport_c/README.md", "[a](PROTOCOL.md#life) [b](../docs/log/x.md)", "[a](protocol.md#life) [b](log/x.md)"),
        ("docs/log/x.md", "[a](../plots/p.svg) [b](../../README.md)", "[a](../plots/p.svg) [b](../index.md)"),
        ("docs/x.md", "[a](#own) [b](https://x.org/)", "[a](#own) [b](https://x.org/)"),
        ("README.md", '<img src="docs/plots/tta.png">', '<img src="plots/tta.png">'),
    ]
    for name, text, wanted in rows:
        assert site.placed(name, text) == wanted


@pytest.mark.check
def test_site__is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "deploy/site/build.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index.html", "install.html", "protocol.html", "man/ultima-doctor.1.html", "reproduction/rna.html"):
        assert (tmp_path / "site" / page).exists(), page
    listed = zlib.decompress((tmp_path / "site/objects.inv").read_bytes().partition(b"zlib.\n")[2]).decode()
    explained = {row.split()[0] for row in listed.splitlines()}
    assert {"ultima.Job.allreduce", "ultima.Receipt.status", "ultima.torch.hooks.Bucket"} <= explained
    assert set(tool("docstrings").shown()) <= explained
    reduce = (tmp_path / "site/api/job.html").read_text()
    assert 'href="errors.html#ultima.Desync"' in reduce
    assert "client/api/job.py" in reduce and "ut_engine_init" in (tmp_path / "site/c/face_engine.html").read_text()
    assert "ultima-doctor" in (tmp_path / "site/man/ultima-doctor.1.html").read_text()
