# SPDX-License-Identifier: Apache-2.0
"""64-bit ARM, under qemu's emulation of its programs: the C tests of all that may differ from x86-64, the simulator's
worlds, the kernels' bits, and clusters of both kinds of hosts.

.ci/arm64 installs the cross compiler and the emulator, and unpacks the libraries. No real ARM machine is needed, and
nothing here says how fast one would be.
"""

import platform
import runpy
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.making import BUILD, TRANSPORT, make

ROOT = Path(__file__).resolve().parents[2]
FOREIGN_ROOT = ROOT / "build/arm64"
COMPILER = ("aarch64-linux-gnu-gcc", f"--sysroot={FOREIGN_ROOT}")
EMULATOR = ("qemu-aarch64-static", "-L", str(FOREIGN_ROOT))
FOREIGN = BUILD / "arm64"
HERE = Path(__file__).parent
FOLDERS = ("kernels", "wire", "cipher", "codec", "fold", "base")
# Two programs that are not in these folders fail by qemu 7.2's doing; a few lines without our code show the same. It
# keeps SIGBUS and SIGSEGV for itself, so test_driver does not find them blocked; it says yes to MADV_REMOVE and does
# nothing, so test_driver finds pages that should be gone; it refuses SO_RXQ_OVFL, so test_udp_trouble is told of no
# drops. test_keys is left out for its length: sealing itself is in test_seal and test_forged.
LEFT_OUT = {"test_driver", "test_udp_trouble", "test_keys"}
PROGRAMS = sorted({path.stem for folder in FOLDERS for path in (HERE / folder).glob("test_*.c")} - LEFT_OUT)
KINDS = (
    [],
    ["--partial"],
    ["--sparse"],
    ["--coded"],
    ["--linear"],
    ["--tree"],
    ["--hostile"],
    ["--sparse", "--hostile"],
)
WORLDS = 4
pytestmark = [pytest.mark.check, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def arm() -> None:
    if platform.machine() == "aarch64":
        pytest.skip("this machine is of ARM itself: test_c.py runs the C tests on it")
    missing = [name for name in (COMPILER[0], EMULATOR[0]) if shutil.which(name) is None]
    if not (FOREIGN_ROOT / ".unpacked").exists():
        missing.append("build/arm64")
    if missing:
        pytest.skip(f"without {' and '.join(missing)}, which .ci/arm64 provides")


@cache
def built_for_arm(*targets: str) -> None:
    """Targets of the Makefile below build/arm64, all in one run."""
    make("BUILD=build/arm64", f"CC={' '.join(COMPILER)}", f"EXTENSION={extension_flags(COMPILER)}", *targets)


def built_here(*targets: str) -> None:
    make(f"EXTENSION={extension_flags(('gcc',))}", *targets)


@cache
def extension_flags(compiler: tuple[str, ...]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", " ".join(compiler))
        flags: list[str] = runpy.run_path(str(TRANSPORT / "build_engine.py"))["COMPILE"]
    return " ".join(flags)


def said(*command: str | Path) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, f"{ran.stdout[-4000:]}\n{ran.stderr[-8000:]}"
    return ran.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_arm__c_tests_pass(program: str) -> None:
    built_for_arm(*(f"build/arm64/unit/{name}" for name in PROGRAMS))
    output = said(*EMULATOR, FOREIGN / "unit" / program)
    if program == "test_kernels":
        assert "best instruction set of this CPU: neon" in output


def test_arm__every_kernel_gives_the_same_bits() -> None:
    """On all instruction sets of both kinds of CPU, compiled as the extension is."""
    built_here("build/kernels_digest")
    built_for_arm("build/arm64/kernels_digest")
    digests: dict[str, set[str]] = {}
    sets = set()
    here = said(BUILD / "kernels_digest")
    for line in (here + said(*EMULATOR, FOREIGN / "kernels_digest")).splitlines():
        instructions, kernel, digest = line.split()
        digests.setdefault(kernel, set()).add(digest)
        sets.add(instructions)
    assert {"plain", "neon"} <= sets
    assert len(digests) == 13
    assert {kernel: found for kernel, found in digests.items() if len(found) > 1} == {}
    assert len(set.union(*digests.values())) == len(digests)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(kind) or "plain")
def test_arm__the_simulator_has_the_same_worlds(kind: list[str]) -> None:
    """The hash of a world is made of all that happened in it, results included."""
    built_here("build/sim")
    built_for_arm("build/arm64/sim")
    which = [*kind, "--from", "1001", "--count", str(WORLDS), "--hash"]
    here = [line for line in said(BUILD / "sim", *which).splitlines() if line.startswith("hash ")]
    there = [line for line in said(*EMULATOR, FOREIGN / "sim", *which).splitlines() if line.startswith("hash ")]
    assert len(set(here)) == WORLDS
    assert there == here


def test_arm__a_mixed_cluster_averages_the_same_bits() -> None:
    """Two hosts of this machine's kind and one of ARM, over UDP; then all three of one kind. A host owns a third of a
    result, so its part was averaged by its kernels. Each dtype once, by three: the
    sums are exact in any order, and few of the averages are."""
    built_here("build/mixed_host")
    built_for_arm("build/arm64/mixed_host")
    native: list[str | Path] = [BUILD / "mixed_host"]
    emulated: list[str | Path] = [*EMULATOR, FOREIGN / "mixed_host"]
    mixed = cluster([native, emulated, native])
    assert len(mixed) == 6
    assert len({line.split()[3] for line in mixed}) == 6
    assert all(line.split()[1:3] == ["1", "7"] for line in mixed), mixed  # complete, with all three hosts
    assert cluster([native, native, native]) == mixed
    assert cluster([emulated, emulated, emulated]) == mixed


def cluster(programs: list[list[str | Path]]) -> list[str]:
    """What all hosts say of the same ops: they must say the same."""
    hosts = [
        subprocess.Popen(
            [*program, str(self), str(len(programs))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for self, program in enumerate(programs)
    ]
    try:
        ports = "".join(host.stdout.readline() for host in hosts if host.stdout)
        for host in hosts:
            assert host.stdin
            host.stdin.write(ports)
            host.stdin.flush()
        told = [[host.stdout.readline().strip() for _ in range(6)] for host in hosts if host.stdout]
        for host in hosts:
            assert host.stdin
            host.stdin.close()
        assert [host.wait(timeout=60) for host in hosts] == [0] * len(hosts)
    finally:
        for host in hosts:
            host.kill()
            host.wait()
            for pipe in (host.stdin, host.stdout):
                if pipe:
                    pipe.close()
    assert told == [told[0]] * len(hosts)
    return told[0]
