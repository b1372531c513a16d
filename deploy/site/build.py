# SPDX-License-Identifier: Apache-2.0
"""Builds the site of the documents into FOLDER/site: `make docs`, or python deploy/site/build.py FOLDER

The documents stay where they are; here they are put side by side with the README, the protocol, the changelog, the
manual pages and the C headers. mkdocs makes the site in strict mode: a link that leads nowhere is an error. So is a
script, a style, a font or an image of another host, for clusters are often cut off from the world. The pages of
docs/api name modules, classes and functions, which mkdocstrings explains by their docstrings.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import headers

ROOT = Path(__file__).resolve().parents[2]
SECTIONS: dict[str, tuple[str, ...]] = {
    "Begin": ("tutorial", "install", "concepts", "recipes"),
    "Use": (
        "pytorch",
        "pytorch_hooks",
        "slow_trainers",
        "partial",
        "sparse",
        "quantised",
        "coded",
        "local_sgd",
        "elastic",
        "elastic_torch",
    ),
    "Choose": ("comparison", "migration", "faq"),
    "Operate": ("operations", "far", "failures", "security"),
    "How it works": ("architecture", "papers", "transport", "protocol", "kinds", "control", "decisions", "performance"),
    "API reference": (),
    "C headers": (),
    "Reproductions": (),
    "Manual pages": (),
    "Project": ("contributing", "tests", "fast_path", "torch_compliance", "changelog"),
}
# Pages that lie outside of docs/, and where the site has them.
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "transport_c/PROTOCOL.md": "protocol.md",
    "transport_c/KINDS.md": "kinds.md",
    "transport_c/README.md": "fast_path.md",
    "tests/README.md": "tests.md",
}
FOLDERS = {"API reference": "api", "C headers": "c", "Reproductions": "reproduction", "Manual pages": "man"}
LOADS = {"script": ("src",), "img": ("src",), "iframe": ("src",), "source": ("src", "srcset"), "use": ("href",)}
LINKS_THAT_LOAD = ("stylesheet", "icon", "preload", "prefetch", "preconnect", "modulepreload", "manifest")


def placed(name: str, text: str) -> str:
    """The |text| of the page |name| of the repository, with links as they must be on the site. A link to a file that
    is no page there becomes plain text.
    """

    def on_site(path: str) -> str | None:
        return ELSEWHERE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)

    def there(link: str) -> str | None:
        file, hash_, anchor = link.partition("#")
        if not file or re.match(r"[a-z]+:", link):
            return link
        target = on_site(os.path.normpath(os.path.join(os.path.dirname(name), file)))
        here = os.path.dirname(on_site(name) or name)
        return None if target is None else os.path.relpath(target, here or ".") + hash_ + anchor

    def marked(found: re.Match[str]) -> str:
        link = there(found[2])
        return found[1] if link is None else f"[{found[1]}]({link})"

    text = re.sub(r"\[([^\[\]]*)\]\(([^)\s]+)\)", marked, text)
    return re.sub(r'(?<=src=")[^"]+', lambda found: there(found[0]) or found[0], text)


def collect(source: Path) -> None:
    """Puts all pages below |source|, with links as they must be there."""
    shutil.copytree(ROOT / "docs", source)
    for page in source.rglob("*.md"):
        page.write_text(placed(f"docs/{page.relative_to(source)}", page.read_text()))
    for name, page_name in ELSEWHERE.items():
        (source / page_name).write_text(placed(name, (ROOT / name).read_text()))
    (source / "c").mkdir()
    for name, text in headers.pages().items():
        (source / "c" / name).write_text(text)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(ROOT / "deploy/man/pages.py"), folder], check=True)
        (source / "man").mkdir()
        for page in sorted(Path(folder).iterdir()):
            shown = subprocess.run(["mandoc", "-Tmarkdown", str(page)], capture_output=True, text=True, check=True)
            name, section = page.stem, page.suffix[1:]
            body = "\n".join(shown.stdout.splitlines()[1:])  # without the line of name and section
            (source / "man" / f"{name}.{section}.md").write_text(f"---\ntitle: {name}({section})\n---\n{body}\n")


def navigation(source: Path) -> str:
    """The part of mkdocs.yml that names the pages. Raises ValueError for a page that has no place in it."""
    lines = ["nav:", "  - Ultima: index.md"]
    # Who looks for an entry of the logs comes from a page: they are in no menu.
    known = {"index.md", *(str(page.relative_to(source)) for page in (source / "log").glob("*.md"))}
    for title, names in SECTIONS.items():
        pages = [f"{name}.md" for name in names if (source / f"{name}.md").exists()]
        if folder := FOLDERS.get(title):
            found = sorted((source / folder).glob("*.md"), key=lambda page: (page.stem != "index", page.stem))
            pages += [str(page.relative_to(source)) for page in found]
        lines.append(f"  - {title}:")
        lines.extend(f"    - {page}" for page in pages)
        known.update(pages)
    if lost := {str(page.relative_to(source)) for page in source.rglob("*.md")} - known:
        raise ValueError(f"pages without a place in SECTIONS: {', '.join(sorted(lost))}")
    return "\n".join(lines) + "\n"


class Outside(HTMLParser):
    """Finds what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        loads = [given[name] for name in LOADS.get(tag, ()) if name in given]
        if tag == "link" and any(word in given.get("rel", "").split() for word in LINKS_THAT_LOAD):
            loads.append(given.get("href", ""))
        self.found += [address for address in loads if re.match(r"(?i)\s*(https?:)?//", address)]


def outside(page: Path) -> list[str]:
    """What a page, or a style, loads from other hosts."""
    text = page.read_text()
    if page.suffix == ".css":
        return re.findall(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", text)
    parser = Outside()
    parser.feed(text)
    return parser.found


def main() -> None:
    """Builds and checks the site."""
    if len(sys.argv) != 2:
        sys.exit("usage: python deploy/site/build.py FOLDER   (`make docs` builds it in build/docs)")
    folder = Path(sys.argv[1]).resolve()
    for old in ("source", "site", "python"):
        shutil.rmtree(folder / old, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    collect(folder / "source")
    settings = (ROOT / "deploy/site/mkdocs.yml").read_text() + navigation(folder / "source")
    (folder / "mkdocs.yml").write_text(settings)
    (folder / "python").mkdir()
    (folder / "python/ultima").symlink_to(ROOT / "client")  # mkdocstrings looks for packages by their names
    (folder / "docstrings.py").unlink(missing_ok=True)
    (folder / "docstrings.py").symlink_to(ROOT / "deploy/site/docstrings.py")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--config-file",
        str(folder / "mkdocs.yml"),
    ]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, check=False, env=quiet, cwd=ROOT).returncode:
        sys.exit("the site was not built: see above")
    pages = [page for kind in ("*.html", "*.css") for page in (folder / "site").rglob(kind)]
    if loads := [f"{page.name} loads {address}" for page in pages for address in outside(page)]:
        sys.exit("\n".join(loads))
    print(
        f"{os.path.relpath(folder)}/site/index.html: {len(pages)} pages and styles, none asks another host for anything"
    )


if __name__ == "__main__":
    main()
