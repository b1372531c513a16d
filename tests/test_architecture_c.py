# SPDX-License-Identifier: Apache-2.0
"""The rooms of the C core (`transport_c/core/`): which may use which, how far the files of one may lean on each other,
and what its extensions (`transport_c/ext/`) and it know of each other. An arrow is an include, or a name that one file
uses and another defines: a prototype copied into the wrong room would hide from whoever looks at includes alone."""

import os
import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.making import BUILD, objects

# The first to ask builds the simulator.
pytestmark = pytest.mark.timeout(600)
CORE = Path(__file__).resolve().parents[1] / "transport_c/core"
SIM = CORE.parent / "sim"
EXT = CORE.parent / "ext"
# What the extensions define for the core, and the headers of the core that they include: by the fewer of them, the less
# of the core moves them.
EXT_TABLES = {"ut_extensions_linked"}
EXT_MAY_USE = {
    "core/base/bits.h", "core/base/digest.h", "core/base/mix.h", "core/base/ut.h", "core/fold/fold.h", "core/op/ext.h",
    "core/op/op.h", "core/partial/intake.h", "core/plan/plan.h", "core/plan/schedule.h", "core/plan/transfer.h",
}  # fmt: skip
# Top to bottom. Arrows point down; rooms of one floor do not know each other.
FLOORS = (
    ("face",), ("partial",), ("op",), ("account",), ("codec", "fold"), ("plan", "epoch"), ("path",), ("link", "ledger"),
    ("wire",), ("base",),
)  # fmt: skip
HEADER_LINES_MAX = 250
CIRCLE_MAX = 3
ASSERTS_MIN = 12  # in a thousand lines
FUNCTION_LINES_MAX, PARAMETERS_MAX, WAYS_MAX = 55, 7, 20
# More ways through one function than that, each by how much: nothing is added, and what is less is written here.
WAYS = {"ut_op_record": 23, "ut_op_check": 22, "end_stage1": 21}

Arrows = set[tuple[str, str]]


def _include_arrows(core: Path) -> Arrows:
    """(file, file) for each include of one file in the folder |core| by another, as `room/name`."""
    found = set()
    for path in [*core.rglob("*.h"), *core.rglob("*.c")]:
        names = re.findall(rf'^\s*#\s*include\s+"{core.name}/([^"]+)"', path.read_text(), re.MULTILINE)
        found |= {(str(path.relative_to(core)), name) for name in names}
    return found


def _compile(core: Path, into: Path) -> dict[str, Path]:
    """Objects of the C files of a planted |core|."""
    into.mkdir()

    def one(source: Path) -> tuple[str, Path]:
        name = str(source.relative_to(core))
        target = into / (name.replace("/", "-") + ".o")
        command = [os.environ.get("CC", "gcc"), "-std=c11", "-O2", "-w", "-c", f"-I{core.parent}", "-o", str(target)]
        subprocess.run([*command, str(source)], check=True, capture_output=True, timeout=60)
        return name, target

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(one, sorted(core.rglob("*.c"))))


def _symbols(compiled: dict[str, Path]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The file that defines each name, and the names that each file uses without defining them."""
    defined: dict[str, str] = {}
    used: dict[str, set[str]] = {}
    for name, path in compiled.items():
        listing = subprocess.run(["nm", "-P", "-g", str(path)], check=True, capture_output=True, text=True).stdout
        for symbol, kind in (line.split()[:2] for line in listing.splitlines()):
            if kind == "U":
                used.setdefault(name, set()).add(symbol)
            else:
                defined[symbol] = name
    return defined, used


def _symbol_arrows(compiled: dict[str, Path]) -> Arrows:
    """(user, definer) for each name that crosses from one C file to another."""
    defined, used = _symbols(compiled)
    return {(name, defined[symbol]) for name, symbols in used.items() for symbol in symbols if symbol in defined}


def _all_arrows(core: Path, scratch: Path) -> Arrows:
    return _include_arrows(core) | _symbol_arrows(_compile(core, scratch / "objects"))


def _room(file: str) -> str:
    return file.split("/")[0]


def _upward(arrows: Arrows) -> Arrows:
    """Arrows between rooms that do not point down."""
    floor = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
    return {(a, b) for a, b in arrows if _room(a) != _room(b) and floor[_room(a)] >= floor[_room(b)]}


def _circles(arrows: Arrows) -> set[tuple[str, ...]]:
    """The sets of files that all reach each other, two files or more."""
    after: dict[str, set[str]] = {}
    for a, b in arrows:
        after.setdefault(a, set()).add(b)

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            more = after.get(todo.pop(), set()) - seen
            seen |= more
            todo += more
        return seen

    reached = {file: reach(file) for file in after}
    groups = {tuple(sorted(b for b in reached[a] if a in reached.get(b, set()))) for a in reached}
    return {group for group in groups if len(group) > 1}


def _between_rooms(groups: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
    return {group for group in groups if len({_room(file) for file in group}) > 1}


@pytest.fixture(scope="module")
def arrows() -> Arrows:
    found = _include_arrows(CORE) | _symbol_arrows(objects("core"))
    assert len(found) > 200, "the listing is of something else"
    return found


def test_rooms__are_those_of_the_floors() -> None:
    """A new room says where it stands before anybody moves in."""
    assert {path.name for path in CORE.iterdir() if path.is_dir()} == {room for rooms in FLOORS for room in rooms}


def test_rooms__arrows_point_down(arrows: Arrows) -> None:
    """Whoever reads a room from below has to know nothing above it, and a test needs nothing above it."""
    assert _upward(arrows) == set()


def test_rooms__no_circle_of_files_crosses_rooms(arrows: Arrows) -> None:
    """Such rooms would be one, whatever their names."""
    assert _between_rooms(_circles(arrows)) == set()


def test_rooms__circles_inside_one_are_small(arrows: Arrows) -> None:
    """More than three files that all need each other are one file that was cut by its length."""
    assert {group for group in _circles(arrows) if len(group) > CIRCLE_MAX} == set()


def _quoted(folder: Path) -> set[str]:
    """All files that C files and headers below a folder include, but those of the system."""
    texts = [path.read_text() for path in folder.rglob("*.[ch]")]
    return {name for text in texts for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)}


def _names_of_extensions(core: dict[str, Path], extensions: dict[str, Path]) -> set[str]:
    """What the core uses and extensions define."""
    return set().union(*_symbols(core)[1].values()) & _symbols(extensions)[0].keys()


def test_extensions__the_core_knows_their_tables_alone() -> None:
    """Whoever changes the core has no extension to read, and a program may leave each of them out."""
    assert {name for name in _quoted(CORE) if name.startswith("ext/")} == set()
    assert _names_of_extensions(objects("core"), objects("ext")) == EXT_TABLES


def test_extensions__what_they_use_of_the_core_is_listed() -> None:
    assert {name for name in _quoted(EXT) if name.startswith("core/")} == EXT_MAY_USE


def test_extensions__the_core_links_without_them(tmp_path: Path) -> None:
    """A program that has none refuses what needs one."""
    text = """#include <string.h>
#include "core/face/engine_impl.h"
#include "core/op/ext.h"
#include "udp/describe.h"
const ut_extensions ut_extensions_linked = {0};
int main(void)
{
    ut_engine_config config = {.packet_bytes = 1472, .segments_max = 1, .receive_buffer = UT_RECEIVE_BUFFER_MIN};
    ut_job_config job = {.hosts = 2, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 4096};
    ut_job_config coded = job;
    char why[160] = "";
    coded.options.policy = UT_POLICY_CODED;
    if (!ut_describe_bad_options(&coded.options, 2, 2, why, sizeof why) || ut_job_bytes(&config, &coded) != 0)
        return 1;
    if (strcmp(why, "policy 8: must be below 8, for this program runs no coded jobs"))
        return 2;
    return !(ut_job_bytes(&config, &job) > 0 && !ut_variant_of(UT_ALLREDUCE_SPARSE));
}
"""
    (tmp_path / "alone.c").write_text(text)
    kernels = BUILD / "sim.o.d"
    linked = [*objects("core").values(), *kernels.glob("kernels/*.o"), *kernels.glob("cipher/*.o")]
    command = [os.environ.get("CC", "gcc"), f"-I{CORE.parent}", "-o", str(tmp_path / "alone")]
    command += [str(tmp_path / "alone.c"), str(CORE.parent / "udp/describe.c"), *map(str, linked)]
    command += ["-lm", "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=60)
    assert subprocess.run([tmp_path / "alone"], check=False, timeout=60).returncode == 0


def test_simulator__circles_are_small() -> None:
    """Its world asks a job's kind through a table (`sim_kind` in sim.h), so that the kinds can be read one by one."""
    arrows = _include_arrows(SIM) | _symbol_arrows(objects("sim"))
    assert len(arrows) > 200, "the listing is of something else"
    assert {group for group in _circles(arrows) if len(group) > CIRCLE_MAX} == set()


def test_headers__stay_small() -> None:
    """A header that everybody includes and nobody reads to the end is a contract with nobody."""
    long = {path.name: lines for path in CORE.rglob("*.h")
            if (lines := len(path.read_text().splitlines())) > HEADER_LINES_MAX}  # fmt: skip
    assert long == {}


def test_partial__three_files_outside_its_room_ask_whether_a_job_is_partial() -> None:
    """The rest goes through `core/op/gathering.h`. Those three are where shells and trainers say what kind a job is."""
    asks = re.compile(
        r"\bpartial\s*(?:\?|\)|&&|\|\||[!=]= *NULL)|!\w+->partial\b|policy\s*(?:[><!]=?|==)\s*UT_POLICY_NONE"
    )
    files = {str(path.relative_to(CORE)) for path in CORE.rglob("*.[ch]")
             if _room(str(path.relative_to(CORE))) != "partial" and asks.search(path.read_text())}  # fmt: skip
    assert files == {"face/engine.c", "face/submit.c", "face/valid.c"}


def test_partial__one_file_asks_whether_a_job_is_coded() -> None:
    """`core/partial/intake.h` finds the job's table, and all others ask that. Beside it the policy has a number, a rule
    by which an op starts, and the name of its extension."""
    asks = re.compile(r"\bUT_POLICY_CODED\b|->coded\b")
    files = {str(path.relative_to(CORE)) for path in CORE.rglob("*.[ch]") if asks.search(path.read_text())}
    assert files == {"base/ut.h", "op/ext.h", "partial/activate.c", "partial/intake.h"}


def _functions(text: str) -> Iterable[tuple[str, int, int, int]]:
    """Name, parameters, lines and ways of each function, in the layout that clang-format gives all of them. Ways: one,
    and one more for each condition (McCabe's number)."""
    for head in re.finditer(r"^\w[^\n;=]*?\b(\w+)\(([^;{}]*)\)\n\{\n", text, re.MULTILINE):
        whole = text[head.start() : text.index("\n}\n", head.end() - 2)]
        bare = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', "", whole, flags=re.DOTALL)
        ways = 1 + len(re.findall(r"\b(?:if|for|while|case)\b|&&|\|\||\?", bare))
        parameters = 0 if head[2] == "void" else len(re.sub(r"\([^()]*\)", "", head[2]).split(","))
        yield head[1], parameters, whole.count("\n") + 2, ways


def test_functions__fit_a_screen() -> None:
    """Longer ones do several things, and whoever calls one of many parameters counts commas."""
    text = "int f(int a, int (*b)(int, int))\n{\n    return a && a > 1 ? 2 : 3; /* if */\n}\n\nvoid g(void)\n{\n}\n"
    assert list(_functions(text)) == [("f", 2, 4, 3), ("g", 0, 3, 1)]
    files = [*CORE.rglob("*.c"), *EXT.rglob("*.c")]
    found = [each for path in files for each in _functions(path.read_text())]
    assert len(found) > 700
    assert [each for each in found if each[2] > FUNCTION_LINES_MAX or each[1] > PARAMETERS_MAX] == []
    assert {name: ways for name, _, _, ways in found if ways > WAYS_MAX} == WAYS


def test_asserts__say_what_each_part_takes_for_granted() -> None:
    """They are compiled into the extension and stop the daemon: for mistakes of our own, never for what a peer or a
    trainer sends. Hostile worlds and the fuzz targets run with them."""
    texts = [path.read_text() for path in [*CORE.rglob("*.c"), *CORE.rglob("*.h")]]
    asserts = sum(len(re.findall(r"^\s+assert\(", text, re.MULTILINE)) for text in texts)
    assert asserts >= ASSERTS_MIN * sum(text.count("\n") for text in texts) / 1000


def _plant(core: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (core / name).parent.mkdir(parents=True, exist_ok=True)
        (core / name).write_text(text)


def test_checker__finds_a_planted_include(tmp_path: Path) -> None:
    core = tmp_path / "core"
    _plant(core, {"base/a.h": "", "op/op.h": '#include "core/base/a.h"\n', "base/b.c": "int b;\n"})
    assert _upward(_all_arrows(core, tmp_path)) == set()
    _plant(core, {"base/b.c": '  #  include "core/op/op.h"\nint b;\n'})
    assert _upward(_include_arrows(core)) == {("base/b.c", "op/op.h")}
    _plant(core, {"codec/c.h": '#include "core/fold/f.h"\n', "fold/f.h": ""})
    assert ("codec/c.h", "fold/f.h") in _upward(_include_arrows(core)), "rooms of one floor do not know each other"


def test_checker__finds_a_name_that_was_declared_by_hand(tmp_path: Path) -> None:
    core = tmp_path / "core"
    _plant(
        core,
        {"face/door.c": "void ut_door(void) {}\n", "op/op.c": "void ut_door(void);\nvoid f(void) { ut_door(); }\n"},
    )
    assert _upward(_all_arrows(core, tmp_path)) == {("op/op.c", "face/door.c")}


def test_checker__finds_an_extension_that_the_core_knows(tmp_path: Path) -> None:
    core, ext = tmp_path / "core", tmp_path / "ext"
    _plant(core, {"op/op.c": "void ut_own(void);\nvoid f(void) { ut_own(); }\n"})
    _plant(ext, {"sparse/own.c": "void ut_own(void) {}\nvoid ut_other(void) {}\n"})
    compiled = _compile(core, tmp_path / "core-objects"), _compile(ext, tmp_path / "ext-objects")
    assert _names_of_extensions(*compiled) == {"ut_own"}
    _plant(core, {"op/op.h": '# include "ext/sparse/own.h"\n'})
    assert _quoted(core) == {"ext/sparse/own.h"}


def test_checker__finds_circles(tmp_path: Path) -> None:
    core = tmp_path / "core"
    ring = {f"op/r{i}.c": f"void f{(i + 1) % 4}(void);\nvoid f{i}(void) {{ f{(i + 1) % 4}(); }}\n" for i in range(4)}
    _plant(core, ring)
    assert _circles(_all_arrows(core, tmp_path)) == {tuple(sorted(ring))}
    assert _between_rooms(_circles({("op/a.c", "plan/b.c"), ("plan/b.c", "op/a.c"), ("op/c.c", "op/a.c")})) == {
        ("op/a.c", "plan/b.c")
    }
