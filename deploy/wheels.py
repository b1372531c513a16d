# SPDX-License-Identifier: Apache-2.0
"""The wheels that users install without a compiler: one for x86-64 and one for aarch64, for every CPython from 3.11 on.

    make wheels                            both, into build/wheels
    make wheels ARGS="--only x86_64"       one of them

Each is built against the C library of an older Debian (`.ci/unpack` brings it) with this machine's compiler, or for the
other architecture with Debian's cross compiler (`.ci/arm64`). So it asks for no newer glibc than its tag says. The tag
is what auditwheel finds the file fit for, and must be MANYLINUX or an older one. Debug symbols stay out.

What is checked before a wheel counts as made: auditwheel (no library but glibc's is asked for, none is bundled),
abi3audit (nothing outside Python's stable ABI), twine (the index would take the metadata, and the long description
renders), and the size. libcrypto is found at run time: see transport_c/cipher/libcrypto.h.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MANYLINUX = (2, 28)  # Red Hat 8, Debian 10, Ubuntu 18.10 and what came after them
OLD_DEBIAN = "bullseye"  # glibc 2.31; the symbols that we use are older
MOST_BYTES = 3_000_000
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}


class Refused(Exception):
    """A wheel cannot be made, or is not what it has to be; the message is for people."""


def run(*command: str | Path, **environment: str) -> str:
    """What the command prints. Raises Refused with what it said if it failed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment)
    if done.returncode:
        raise Refused(f"{' '.join(words[:4])}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def tool(name: str) -> Path:
    """A program of those that .ci/wheel-tools installs."""
    run(".ci/wheel-tools")
    return ROOT / "build/wheel-tools/bin" / name


def compiler(machine: str) -> dict[str, str]:
    """Environment variables with which setuptools builds for `machine`."""
    libc = ROOT / "build/libc" / machine
    try:
        run(".ci/unpack", DEBIAN[machine], libc, "libc6-dev", SUITE=OLD_DEBIAN)
    except Refused as error:
        raise Refused(f"glibc's headers of Debian {OLD_DEBIAN} for {machine} are not to be had: {error}") from None
    triplet = f"{machine}-linux-gnu"
    headers, command, include = Path("/"), "gcc", ""
    if machine != platform.machine():
        run(".ci/arm64")
        headers, command = ROOT / "build/arm64", f"{triplet}-gcc"
        if shutil.which(command) is None or not (headers / "usr/include/openssl/evp.h").exists():
            raise Refused(f"{command} or the packages of its architecture are missing: see .ci/arm64")
        # Before the building Python's own headers, which setuptools names.
        (python,) = (headers / "usr/include").glob("python3.*")
        include = f" -I{python}"
        # This compiler's search begins with headers of its own glibc, so all are named anew.
        inside = run(command, "-print-file-name=include").strip()
        include += f" -nostdinc -isystem {inside} -isystem {libc}/usr/include/{triplet} -isystem {libc}/usr/include"
    # OpenSSL's headers and what else the old Debian has not: behind glibc's.
    include += f" -idirafter {headers}/usr/include/{triplet} -idirafter {headers}/usr/include"
    cc = f"{command} --sysroot={libc} -L{libc}/usr/lib/{triplet}{include}"
    return {"CC": cc, "LDSHARED": f"{cc} -shared", "LDFLAGS": "-Wl,--strip-debug"}


def build(machine: str, folder: Path) -> Path:
    """The bare wheel of `machine`, in `folder`, from a copy of the tree: nothing of another build gets in."""
    tree = folder / "tree"
    names = ["client", "daemon", "proto", "transport_c", "setup.py", "pyproject.toml", "README.md", "LICENSE"]
    left_out = shutil.ignore_patterns("build", "*.so", "*.o", "__pycache__", "*.egg-info")
    tree.mkdir()
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=left_out)
        else:
            shutil.copy2(ROOT / name, tree / name)
    make = f"import os; os.chdir({str(tree)!r}); from setuptools import build_meta as b; "
    make += f"b.build_wheel({str(folder)!r}, {{'--build-option': ['--plat-name=linux_{machine}']}})"
    run(sys.executable, "-c", make, PYTHONWARNINGS="ignore", **compiler(machine))
    (wheel,) = folder.glob("*.whl")
    return wheel


def check(wheel: Path, machine: str, out: Path) -> Path:
    """The wheel under its tag, in `out`. Raises Refused where a check fails."""
    shown = json.loads(run(tool("auditwheel"), "show", "--json", wheel))
    tag = str(shown["overall_tag"])
    found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{machine}", tag)
    if found is None or tuple(map(int, found.groups())) > MANYLINUX:
        raise Refused(f"{wheel.name}: auditwheel finds it fit for {tag}, not manylinux_%d_%d" % MANYLINUX)
    # Nothing has to be repaired, so the new tag is all, and `auditwheel repair` would take no foreign architecture.
    made = out / run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel).strip()
    shutil.move(wheel.with_name(made.name), made)
    run(tool("abi3audit"), "--strict", made)
    run(tool("twine"), "check", "--strict", made)
    if made.stat().st_size > MOST_BYTES:
        raise Refused(f"{made.name}: {made.stat().st_size} bytes, of {MOST_BYTES} that it may have")
    return made


def make(machines: list[str], out: Path) -> list[Path]:
    """A checked wheel for each of `machines`, in the folder `out`; older wheels there go."""
    out.mkdir(parents=True, exist_ok=True)
    for machine in machines:
        for old in out.glob(f"*_{machine}.whl"):
            old.unlink()
    made = []
    for machine in machines:
        with tempfile.TemporaryDirectory() as folder:
            made.append(check(build(machine, Path(folder)), machine, out))
    return made


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Builds and checks the wheels.")
    parser.add_argument("--only", choices=sorted(DEBIAN), help="one architecture")
    parser.add_argument("--out", type=Path, default=ROOT / "build/wheels")
    flags = parser.parse_args()
    try:
        for wheel in make([flags.only] if flags.only else sorted(DEBIAN, reverse=True), flags.out.resolve()):
            print(f"{os.path.relpath(wheel)}: {wheel.stat().st_size / 1e6:.1f} MB")
    except Refused as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
