# SPDX-License-Identifier: Apache-2.0
"""The rules of the house that a reviewer would otherwise have to remember. Each test says why its rule is one."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.making import objects as objects_of

ROOT = Path(__file__).resolve().parents[1]
# Where each package of the distribution lives.
PACKAGES = {"ultima.daemon": ROOT / "daemon", "ultima.v1": ROOT / "proto/ultima/v1", "ultima": ROOT / "client"}
SOURCE_KINDS = {".py", ".c", ".h", ".proto", ".sh"}
LINES_MAX = 500
LINE_MAX = 120  # characters of a line of a document; ruff and clang-format hold the sources to the same
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")

# What the core may ask of the world: moving bytes, and stopping on a mistake of its own.
CORE_MAY_USE = {"memcpy", "memset", "memmove", "memcmp", "__assert_fail"}
# Fortified and position-independent builds name these in addition; they are the compiler's, not the core's. The last
# one counts bits where the CPU's own instruction is not assumed.
COMPILER_MAY_ADD = {"_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail", "__popcountdi2"}


def _sources() -> list[Path]:
    """Every source file that we wrote."""
    files = []
    for folder in ("client", "daemon", "deploy", "proto", "schema", "tests", "transport_c"):
        for path in (ROOT / folder).rglob("*"):
            ours = path.suffix in SOURCE_KINDS and not GENERATED.search(path.name)
            if ours and not {"build", "__pycache__"} & set(path.relative_to(ROOT).parts):
                files.append(path)
    return files


def _module_name(path: Path) -> str:
    for package, folder in PACKAGES.items():
        if path.is_relative_to(folder):
            return ".".join([package, *path.relative_to(folder).with_suffix("").parts]).removesuffix(".__init__")
    raise AssertionError(f"{path} belongs to no package")


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of all that |path| imports, at the top or in a function; `from a import b` gives a.b."""
    module = _module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _who_imports(folder: Path, forbidden: tuple[str, ...]) -> dict[str, list[str]]:
    """File -> the imports in it that lie in a |forbidden| module."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        bad = [f"line {line}: {name}" for line, name in _imports(path)
               if any(name == module or name.startswith(module + ".") for module in forbidden)]  # fmt: skip
        if bad:
            found[str(path.relative_to(ROOT))] = bad
    return found


def test_imports__are_read_as_python_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader above is what the next tests stand on: each way to write an import must be seen."""
    monkeypatch.setitem(PACKAGES, "ultima", tmp_path)
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "file.py"
    path.write_text("import a.b\nfrom .. import c\nfrom .d import e\ndef f():\n    from ultima import _native\n")
    assert list(_imports(path)) == [(1, "a.b"), (2, "ultima.c"), (3, "ultima.sub.d.e"), (5, "ultima._native")]
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert _who_imports(tmp_path, ("ultima._native",)) == {"sub/file.py": ["line 5: ultima._native"]}


def test_arrows__one_file_a_side_imports_the_extension() -> None:
    """cffi's `lib` and `ffi` are untyped and can crash the process: one file a use holds them, typed for the rest."""
    for folder, door in (("daemon", "daemon/engine/engine.py"), ("client", "client/base/native.py")):
        users = _who_imports(ROOT / folder, ("ultima._native",))
        assert set(users) == {door}, users
    doors = {"client/admin/simulator.py", "client/testing/lan.py"}
    assert set(_who_imports(ROOT / "client", ("ultima._simulator",))) == doors
    assert _who_imports(ROOT / "daemon", ("ultima._simulator",)) == {}


def test_arrows__client_and_daemon_meet_only_in_proto() -> None:
    """A trainer must not load the daemon's code, nor a daemon the client's: each could then no longer be replaced, and
    the daemon would start with torch in it."""
    assert _who_imports(ROOT / "client", ("ultima.daemon",)) == {}
    entries = (ROOT / "client").iterdir()
    modules = {path.name for path in entries if path.suffix == ".py" or (path / "__init__.py").exists()}
    client = tuple(f"ultima.{name.removesuffix('.py')}" for name in sorted(modules - {"__init__.py"}))
    assert len(client) > 5
    assert _who_imports(ROOT / "daemon", client) == {}


def test_arrows__nothing_shipped_imports_tests_or_scapy() -> None:
    """scapy is GPL and a tool of the tests; the product may not need it."""
    for folder in ("client", "daemon"):
        assert _who_imports(ROOT / folder, ("tests", "scapy")) == {}


def test_arrows__torch_stays_behind_its_own_doors() -> None:
    """`import ultima` must work, and be quick, where torch is not installed."""
    users = _who_imports(ROOT / "client", ("torch",)).keys() | _who_imports(ROOT / "daemon", ("torch",)).keys()
    assert {name for name in users if not name.startswith(("client/torch/", "client/demo/"))} == set()


# The Python rooms, lowest floor first: a room may use those that stand before it, so no two of them can form a circle.
# "." is the folder's own __init__: what `import ultima` gives, for which the rooms of the Job below it may not ask;
# `python -m ultima` is a door to the command above all of them.
FLOORS = {
    "client": "base authority quant coded settings state session api local . sparse speed_groups testing admin launch "
    "torch/backend torch/hooks torch/partial torch/elastic torch/coded torch/sparse torch/quant torch/diloco "
    "torch/ft torch demo cli __main__",
    "daemon": "base trust engine hosts trainers observe jobs probe rpc web process .",
}
CIRCLE_MAX = 3  # files of one room that may need each other


def _arrows(folder: Path) -> set[tuple[Path, Path]]:
    """File -> file, for all imports inside |folder|, wherever in a file they stand."""
    modules = {_module_name(path): path for path in folder.rglob("*.py")}
    package, arrows = _module_name(folder / "__init__.py"), set()
    elsewhere = tuple({"ultima.daemon.", "ultima.v1.", "ultima._native.", "ultima._simulator."} - {f"{package}."})
    for path in modules.values():
        for _, name in _imports(path):
            while name not in modules and name.startswith(package) and not f"{name}.".startswith(elsewhere):
                name = name.rpartition(".")[0]
            if name in modules and modules[name] != path:
                arrows.add((path, modules[name]))
    return arrows


def _upward(folder: Path, floors: str) -> set[str]:
    """The arrows that break the order of |floors|, and the rooms that it leaves out."""
    heights = {room: height for height, room in enumerate(floors.split())}
    rooms = {path: str(path.parent.relative_to(folder)) for path in folder.rglob("*.py")}
    rooms |= {path: path.stem for path in folder.glob("__main__.py")}
    bad = {f"{room} is on no floor" for room in rooms.values() if room not in heights}
    for source, target in _arrows(folder):
        if not bad and heights[rooms[source]] < heights[rooms[target]]:
            bad.add(f"{source.relative_to(folder)} imports {target.relative_to(folder)}")
    return bad


def _circles(folder: Path) -> set[tuple[str, ...]]:
    """Files that all need one another, more than CIRCLE_MAX of them."""
    arrows = _arrows(folder)
    reach = {file: {target for source, target in arrows if source == file} for file in folder.rglob("*.py")}
    for middle in reach:
        for found in reach.values():
            if middle in found:
                found |= reach[middle]
    groups = {tuple(sorted(str(other.relative_to(folder)) for other in reach[file] if file in reach[other]))
              for file in reach}  # fmt: skip
    return {group for group in groups if len(group) > CIRCLE_MAX}


@pytest.mark.parametrize("side", FLOORS)
def test_rooms__arrows_of_python_point_down(side: str) -> None:
    """Whoever reads a room has to know those below it, and none above: so each can be read, and tested, by itself."""
    assert _upward(ROOT / side, FLOORS[side]) == set()
    assert _circles(ROOT / side) == set()


def test_rooms__a_planted_arrow_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "ultima", tmp_path)
    files = {
        "__init__": "from ultima.high.door import f",
        "low/__init__": "",
        "low/a": "from ultima.low import b\nfrom ultima._native import lib\nfrom ultima.v1 import x_pb2",
        "low/b": "from .c import g",
        "low/c": "def f():\n    import ultima.low.a",
        "high/__init__": "",
        "high/door": "from ultima.low.a import f",
    }
    for name, text in files.items():
        (tmp_path / name).with_suffix(".py").parent.mkdir(exist_ok=True)
        (tmp_path / name).with_suffix(".py").write_text(text)
    assert _upward(tmp_path, "low high .") == set() and _circles(tmp_path) == set()
    assert _upward(tmp_path, "low .") == {"high is on no floor"}
    planted = {
        "from ultima.high import door": "high/door.py",
        "from ultima import connect": "__init__.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..high.door import f": "high/door.py",
    }
    for text, target in planted.items():
        (tmp_path / "low/b.py").write_text(f"{files['low/b']}\n{text}")
        assert _upward(tmp_path, "low high .") == {f"low/b.py imports {target}"}
    (tmp_path / "low/b.py").write_text("from ultima.low import c, d")
    (tmp_path / "low/d.py").write_text("import ultima.low.b")
    assert _circles(tmp_path) == {("low/a.py", "low/b.py", "low/c.py", "low/d.py")}


def _includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', path.read_text(), re.MULTILINE)


def test_arrows__core_includes_no_system() -> None:
    """The core is driven in virtual time by the simulator: a header of the system would be the first step out of it."""
    allowed = {"assert.h", "stdbool.h", "stddef.h", "stdint.h", "string.h"}
    core, extensions = ((ROOT / "transport_c" / folder).rglob("*.[ch]") for folder in ("core", "ext"))
    for path in [*core, *extensions, *(ROOT / "transport_c/kernels").glob("*.h")]:
        may = ("core/", "kernels/", "ext/") if "ext" in path.parts else ("core/", "kernels/")
        for name in _includes(path):
            ours = name.startswith(may) and (ROOT / "transport_c" / name).exists()
            beside = path.parent.name == "kernels" and (path.parent / name).exists()
            assert name in allowed or ours or beside, f"{path.relative_to(ROOT)} includes {name}"


def test_wire__nobody_else_knows_how_long_a_header_is() -> None:
    """Not even the simulator: what a cipher adds to a datagram must be counted in one place (core/wire/seal.h)."""
    transport = ROOT / "transport_c"
    secret = re.compile(r"\bUT_(?:DATA|PIECE|FEEDBACK|COMMON)_HEADER\b")
    outside = [path for path in sorted(transport.rglob("*.[ch]")) if "wire" not in path.relative_to(transport).parts]
    assert outside
    assert not [str(path.relative_to(transport)) for path in outside if secret.search(path.read_text())]


@pytest.mark.timeout(600)  # the first to ask builds the simulator
@pytest.mark.parametrize("level", ["-O2", *(pytest.param(level, marks=pytest.mark.check) for level in ("-O0", "-O3"))])
def test_core__objects_ask_nothing_of_the_system(level: str, tmp_path: Path) -> None:
    """No system call, clock, allocation or output: what the objects leave undefined is all that they could call."""
    made = [*objects_of("core").values(), *objects_of("ext").values()]
    objects = sorted(made) if level == "-O2" else _core_compiled(level, tmp_path)
    assert objects
    headers = ("kernels", "hadamard", "block", "quant", "parity")
    kernels = set().union(*(_declared(ROOT / f"transport_c/kernels/{name}.h") for name in headers))
    defined = _symbols(objects, "--defined-only")
    for file in objects:
        for name in _symbols([file], "--undefined-only") - CORE_MAY_USE - COMPILER_MAY_ADD:
            assert name in defined or name in kernels, f"{file.stem}.c calls {name}"
    assert _writable(objects) == set(), "state outside of what the caller gave it: two engines would share it"


def _core_compiled(level: str, into: Path) -> list[Path]:
    """Objects of the core and its extensions at a |level| of optimization."""
    sources = [str(path) for folder in ("core", "ext") for path in (ROOT / "transport_c" / folder).rglob("*.c")]
    flags = ["-std=c11", level, "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "transport_c")]
    command = [os.environ.get("CC", "gcc"), *flags, "-c", *sources]
    done = subprocess.run(command, cwd=into, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return sorted(into.glob("*.o"))


def test_udp__the_data_path_allocates_nothing(tmp_path: Path) -> None:
    """Between two packets nobody asks for memory: not the engine's loop, nor what it sends and receives with."""
    forbidden = {"malloc", "calloc", "realloc", "reallocarray", "aligned_alloc", "posix_memalign", "memalign", "valloc",
                 "strdup", "strndup", "asprintf", "vasprintf", "mmap", "mmap64", "mremap", "brk", "sbrk", "free",
                 "fopen", "getaddrinfo", "ut_driver_map"}  # fmt: skip
    files = [ROOT / "transport_c/udp" / name for name in ("loop.c", "send.c", "recv.c")]
    command = [os.environ.get("CC", "gcc"), "-std=gnu11", "-O1", "-c", f"-I{ROOT / 'transport_c'}", *map(str, files)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    called = {path.stem: _symbols([path], "--undefined-only") for path in tmp_path.glob("*.o")}
    assert "recvmmsg" in called["recv"] and "sendmmsg" in called["send"], "the listing is of something else"
    assert {name: found for name, symbols in called.items() if (found := symbols & forbidden)} == {}


def _declared(header: Path) -> set[str]:
    return set(re.findall(r"\b(ut_\w+)\s*\(", header.read_text()))


def _symbols(objects: list[Path], *options: str) -> set[str]:
    listing = subprocess.run(["nm", "-P", *options, *map(str, objects)], capture_output=True, text=True, check=True)
    rows = (line.split() for line in listing.stdout.splitlines() if not line.endswith(":"))
    return {row[0] for row in rows if len(row) >= 2}


def _writable(objects: list[Path]) -> set[str]:
    """The names of variables. What the loader alone fills in (.data.rel.ro), as tables of functions, is none."""
    listing = subprocess.run(["objdump", "-t", *map(str, objects)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\s(?:\.t?data(?!\.rel\.ro)|\.t?bss|\*COM\*)\S*\t\S+\s+(.*)$", listing, re.MULTILINE))


def test_files__stay_small() -> None:
    """A file past 500 lines has a second job. Cut it by the packet's stage, or by who calls it, before it grows on."""
    long = {str(path.relative_to(ROOT)): count for path in _sources()
            if (count := len(path.read_text().splitlines())) > LINES_MAX}  # fmt: skip
    assert long == {}


def _documents() -> list[Path]:
    """Every Markdown file of the repository; without git, every one that is not in a hidden folder or a build."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return [ROOT / path for path in found if not any(part.startswith(".") or part == "build" for part in path.parts)]


def _too_wide(path: Path) -> list[int]:
    return [at for at, line in enumerate(path.read_text().splitlines(), 1) if len(line) > LINE_MAX]


def _dead_links(path: Path) -> list[str]:
    """The links in |path| to files that are not there. Those to other sites and into the same page are not followed."""
    found = re.findall(r"\]\(([^)\s]+)\)", path.read_text())
    files = (link.partition("#")[0] for link in found if not re.match(r"[a-z]+:", link))
    return [file for file in files if file and not (path.parent / file).exists()]


def _dead_names(path: Path, there: set[str]) -> list[str]:
    """The source files that |path| names in code spans, by a path or the end of one, and that are not |there|."""
    found = re.findall(r"`((?!/)[\w./-]+\.(?:c|h|py|proto|md|toml|sh))`", path.read_text())
    ends = {name[at:] for name in there for at in (0, *(m.end() for m in re.finditer("/", name)))}
    return [name for name in found if name not in ends]


def test_documents__can_be_read_in_a_terminal(tmp_path: Path) -> None:
    """No line is too wide, tables included: a table that does not fit is two, or a list."""
    (tmp_path / "planted.md").write_text(f"{'x' * LINE_MAX}\n| {'x' * LINE_MAX} |\n")
    assert _too_wide(tmp_path / "planted.md") == [2]
    documents = _documents()
    assert ROOT / "README.md" in documents and ROOT / "transport_c/PROTOCOL.md" in documents
    assert {str(path.relative_to(ROOT)): lines for path in documents if (lines := _too_wide(path))} == {}


def test_documents__point_at_files_that_are_there(tmp_path: Path) -> None:
    """A file that moves takes its links along, or a reader ends nowhere."""
    (tmp_path / "planted.md").write_text("[a](planted.md#part) [b](https://example.org/x) ![c\nd](gone.svg) [e](#f)\n")
    assert _dead_links(tmp_path / "planted.md") == ["gone.svg"]
    assert {str(path.relative_to(ROOT)): dead for path in _documents() if (dead := _dead_links(path))} == {}


def test_documents__name_files_that_are_there(tmp_path: Path) -> None:
    """The same of files that are only named: whoever moves one moves its name in the documents."""
    (tmp_path / "planted.md").write_text("`core/a.c`, `a.c`, `b.c`, `/etc/c.toml`, `core/*.h`, `x = a.c`\n")
    assert _dead_names(tmp_path / "planted.md", {"transport_c/core/a.c"}) == ["b.c"]
    there = {str(path.relative_to(ROOT)) for path in [*_sources(), *_documents(), *ROOT.glob("*"), *ROOT.glob("*/*.*")]}
    there |= {str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.py")}
    assert {str(path.relative_to(ROOT)): dead for path in _documents() if (dead := _dead_names(path, there))} == {}


def test_files__name_their_licence() -> None:
    """A file that is copied out of here still says under which terms."""
    missing = [str(path.relative_to(ROOT)) for path in _sources()
               if "SPDX-License-Identifier: Apache-2.0" not in path.read_text()[:200]]  # fmt: skip
    assert missing == []
