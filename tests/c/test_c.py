# SPDX-License-Identifier: Apache-2.0
"""The C unit tests, each a program of its own under AddressSanitizer and UndefinedBehaviorSanitizer.

transport_c/Makefile knows how to build them; here they become tests that `make test` counts and names.
"""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(path.stem for folder in ("c", "hostile") for path in (ROOT / "tests" / folder).rglob("test_*.c"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS)
def test_c(program: str) -> None:
    command = ["make", "--no-print-directory", "--silent", "-j2", "-C", str(ROOT / "transport_c"), f"build/{program}"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([ROOT / "transport_c/build" / program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, f"{ran.stdout[-4000:]}\n{ran.stderr[-8000:]}"


def test_c__every_test_file_has_a_program() -> None:
    """A glob that finds nothing would pass all of nothing."""
    assert len(PROGRAMS) >= 8
