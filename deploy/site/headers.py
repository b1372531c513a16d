# SPDX-License-Identifier: Apache-2.0
"""Makes a page of each C header that the parts of Ultima promise each other: what a shell around the core calls.

The introduction is the comment at the head of the file. A comment that begins a line becomes the text above the
declarations which follow it, up to the next such comment or blank line. Comments inside a struct stay in the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "transport_c"
HEADERS = (
    *("core/face/engine.h", "core/face/ring.h", "core/base/submission.h", "core/base/receipt.h"),
    *("core/base/options.h", "core/base/host.h", "core/base/ut.h", "udp/driver.h", "kernels/kernels.h"),
    *("kernels/block.h", "kernels/hadamard.h", "kernels/sparse.h"),
)
AROUND = re.compile(r"#(ifndef|define) UT\w*_H$|#include |#endif|$")
SECTION = re.compile(r"-{4} (.*?) -{4}")
NAME = re.compile(
    r"""^(?:static\ inline\ )?[a-z][\w\ *]*?[\ *](ut_\w+)\(   # a function
      | ^}\ (ut_\w+); | ^(?:enum|struct|union)\ (ut_\w+)\b    # a type
      | ^typedef\ [^{(]*?\b(ut_\w+)(?:\[.*\])?;$ | ^typedef\ .*\(\*(ut_\w+)\)
      | ^\#define\ (\w+)                                      # a number""",
    re.VERBOSE | re.MULTILINE,
)


def page_name(header: str) -> str:
    """The page of |header|, a path below transport_c: kernels/block.h is on kernels_block.md."""
    return f"{header.removeprefix('core/').removesuffix('.h').replace('/', '_')}.md"


def pages() -> dict[str, str]:
    """All pages, by name of file; index.md says what each is."""
    texts = {header: (FOLDER / header).read_text() for header in HEADERS}
    rows = [f"| [{header}]({page_name(header)}) | {_summary(text)} |" for header, text in texts.items()]
    ret = {page_name(header): page(header, text) for header, text in texts.items()}
    top = "# C headers\n\nWhat the engine, the kernels and the UDP driver promise to the code that calls them.\n"
    return {"index.md": "\n".join([top, "| header | what it has |\n|---|---|", *rows, ""]), **ret}


def page(header: str, text: str) -> str:
    """The page of one header with this |text|."""
    lines = [f"# {header}"]
    for comment, code in blocks(text):
        if title := SECTION.fullmatch(comment):
            lines.append(f"## {title[1][0].upper()}{title[1][1:]}")
            continue
        names = [next(filter(None, found)) for found in NAME.findall(code)]
        if names:
            lines.append(f"### {', '.join(dict.fromkeys(names))}")
        lines += [markdown(comment)] if comment else []
        lines += [f"```c\n{code}\n```"] if code else []
    return "\n\n".join(lines) + "\n"


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each comment that begins a line, without its signs, and the code right below it; "" where there is none."""
    comment, code, depth = "", "", 0
    rest = iter([*("" if AROUND.match(line) else line for line in text.splitlines()), ""])
    for line in rest:
        if depth or (line and not line.startswith("/*")):
            code += line + "\n"
            depth += line.count("{") - line.count("}")
            continue
        if comment or code:
            yield comment, code.rstrip()
        comment = code = ""
        if line:
            while not line.endswith("*/"):
                line += "\n" + next(rest)
            comment = re.sub(r"(?m)^ \* ?", "", line[2:-2].strip(" ")).strip()
            comment = comment.removeprefix("SPDX-License-Identifier: Apache-2.0").strip()


def markdown(comment: str) -> str:
    """The text of a comment: |names| become code, an indented block stays as it is, signs of Markdown stay signs."""
    lines: list[str] = []
    code = False
    for line in comment.splitlines():
        code = line.startswith("    ") and (code or not lines or not lines[-1].strip())
        pieces = re.split(r"(\|\w+\||`[^`]+`)", line)
        shown = (f"`{it.strip('|`')}`" if at % 2 else _plain(it) for at, it in enumerate(pieces))
        lines.append(line if code else "".join(shown))
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Without a meaning in Markdown."""
    return re.sub(r"([*\[\]`]|^[+-](?= ))", r"\\\1", text).replace("<", "&lt;")


def _summary(text: str) -> str:
    """The first sentence of a header's introduction."""
    introduction = " ".join(next(blocks(text))[0].split("\n\n")[0].split())
    return markdown(introduction.partition(". ")[0].rstrip(".:"))
