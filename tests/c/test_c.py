# SPDX-License-Identifier: Apache-2.0
"""The C unit tests, each a program of its own: as they are, and for `make check` under AddressSanitizer and
UndefinedBehaviorSanitizer, the driver's under ThreadSanitizer too.

transport_c/Makefile knows how to build them; here they become tests that are counted and named.
"""

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.making import BUILD, make

FOLDERS = [Path(__file__).parent, Path(__file__).parents[1] / "hostile"]
PROGRAMS = sorted(path.stem for folder in FOLDERS for path in folder.rglob("test_*.c"))
THREADED = ["test_driver", "test_driver_lanes", "test_driver_sealed", "test_driver_trouble"]
pytestmark = pytest.mark.timeout(600)


@cache
def made(targets: tuple[str, ...]) -> bool:
    """Whether all |targets| could be built; those that can be are, in any case."""
    try:
        make("--keep-going", *targets)
    except RuntimeError:
        return False
    return True


def build(program: str, where: str, request: pytest.FixtureRequest) -> Path:
    """A program under build/|where|, made together with those that this run will ask for in the same test."""
    function = request.node.originalname
    same = [item for item in request.session.items if getattr(item, "originalname", "") == function]
    programs = tuple(f"build/{where}{item.callspec.params['program']}" for item in same)  # type: ignore[attr-defined]
    if not made(programs):  # not all of them: which, their own tests say
        make(f"build/{where}{program}")
    return BUILD / f"{where}{program}"


def run(program: Path, **variables: str) -> None:
    ran = subprocess.run([program], capture_output=True, text=True, timeout=240, env=os.environ | variables)
    assert ran.returncode == 0, f"{ran.stdout[-4000:]}\n{ran.stderr[-8000:]}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_c(program: str, request: pytest.FixtureRequest) -> None:
    run(build(program, "unit/", request))


@pytest.mark.check
@pytest.mark.parametrize("program", PROGRAMS)
def test_c__under_sanitizers(program: str, request: pytest.FixtureRequest) -> None:
    run(build(program, "", request))


@pytest.mark.check
@pytest.mark.parametrize("program", THREADED)
def test_c__under_thread_sanitizer(program: str, request: pytest.FixtureRequest) -> None:
    """Trainers run beside the engine's thread."""
    run(build(program, "tsan-", request), TSAN_OPTIONS="halt_on_error=1")


def test_c__every_test_file_has_a_program() -> None:
    """A glob that finds nothing would pass all of nothing."""
    assert len(PROGRAMS) >= 40
    assert set(make("-n", "unit").split()) > {f"build/unit/{name}" for name in PROGRAMS}
