# SPDX-License-Identifier: Apache-2.0
"""Runs a command as deploy/systemd/ultimad.service would have it run, without systemd: what of the unit's sandbox the
kernel does for a process itself, read from the unit.

    python -m tests.daemon.process.sandbox UNIT WRITABLE COMMAND...

The test hosts have no systemd as their first process, nor may they boot one, so neither systemd-run nor systemd-nspawn
works there. Applied are: the read-only file system (all but WRITABLE, as ProtectSystem=strict), no capabilities, no new
privileges, the filter of system calls with its errno, address families, no namespaces, no memory that is both written
and run, the limits of files and locked memory, and the umask. Left out are what needs a manager or other users: cgroups
(MemoryMax, TasksMax, SocketBind), User=, and folders that are hidden (ProtectHome, PrivateTmp), where this interpreter
and these tests may lie.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAPBSET_DROP = 38, 22, 24
SECCOMP_MODE_FILTER, ALLOW, ERRNO, KILL = 2, 0x7FFF0000, 0x00050000, 0x80000000
AUDIT_ARCH_X86_64 = 0xC000003E
CLONE_NEWNS, CLONE_ANY_NS = 0x00020000, 0x7E020080
MS_REC_PRIVATE, MS_REMOUNT_RO, MS_BIND = 0x44000, 0x1021, 0x1000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, ARCH, ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments are 8 bytes each
PROT_WRITE, PROT_EXEC = 2, 4
SIZES = {"K": 10, "M": 20, "G": 30}

Instruction = tuple[int, int, int, int]


def settings(unit: Path) -> dict[str, list[str]]:
    """The unit's lines by name."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def system_calls(lines: Sequence[str]) -> set[int]:
    """Numbers of those that the lines of SystemCallFilter= allow, in their order; groups by what systemd says."""
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())}

    def members(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        command = ["systemd-analyze", "syscall-filter", name]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        inside = (line.strip() for line in said.splitlines()[1:])
        return {each for line in inside if line and not line.startswith("#") for each in members(line)}

    allowed: set[str] = members("@default")
    for line in lines:
        named = {each for word in line.removeprefix("~").split() for each in members(word)}
        allowed = allowed - named if line.startswith("~") else allowed | named
    return {numbers[name] for name in allowed if name in numbers}


def program(allowed: set[int], families: Sequence[str], wrong: int) -> bytes:
    """The filter as BPF."""
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())}
    refuse: Instruction = (RETURN, 0, 0, ERRNO | wrong)

    def when(name: str, inner: list[Instruction]) -> list[Instruction]:
        """What is asked of one call, which goes on with the next check where `inner` falls through."""
        return [(EQUAL, 0, len(inner), numbers[name]), *inner, (LOAD, 0, 0, NUMBER)]

    kinds = [int(getattr(socket, family)) for family in families]
    family: list[Instruction] = [(LOAD, 0, 0, ARGUMENT)]
    family += [(EQUAL, len(kinds) - at, 0, kind) for at, kind in enumerate(kinds)]
    family += [(RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT)]
    no_code: list[Instruction] = [(LOAD, 0, 0, ARGUMENT + 16), (ANY_BIT, 0, 1, PROT_EXEC), refuse]
    both: list[Instruction] = [(LOAD, 0, 0, ARGUMENT + 16), (ANY_BIT, 0, 2, PROT_EXEC), (ANY_BIT, 0, 1, PROT_WRITE)]
    no_spaces: list[Instruction] = [(LOAD, 0, 0, ARGUMENT), (ANY_BIT, 0, 1, CLONE_ANY_NS), refuse]
    code: list[Instruction] = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, AUDIT_ARCH_X86_64), (RETURN, 0, 0, KILL)]
    code += [(LOAD, 0, 0, NUMBER)]
    code += when("socket", family) + when("mprotect", no_code) + when("mmap", [*both, refuse])
    code += when("clone", no_spaces) + when("unshare", no_spaces)
    for number in sorted(allowed):
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    code += [refuse]
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def enter(unit: Path, writable: Path) -> None:
    """Confines this process. Raises OSError."""
    found = settings(unit)
    allowed = system_calls(found["SystemCallFilter"])
    code = program(
        allowed, found["RestrictAddressFamilies"][0].split(), getattr(errno, found["SystemCallErrorNumber"][0])
    )
    libc = ctypes.CDLL(None, use_errno=True)

    def done(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    place = os.fsencode(writable)
    done(libc.unshare(CLONE_NEWNS))
    done(libc.mount(None, b"/", None, MS_REC_PRIVATE, None))
    done(libc.mount(place, place, None, MS_BIND, None))
    done(libc.mount(b"/", b"/", None, MS_BIND | MS_REMOUNT_RO, None))
    files, locked = int(found["LimitNOFILE"][0]), found["LimitMEMLOCK"][0]
    _limit(resource.RLIMIT_NOFILE, files)
    _limit(resource.RLIMIT_MEMLOCK, int(locked[:-1]) << SIZES[locked[-1]])
    os.umask(int(found["UMask"][0], 8))
    assert found["CapabilityBoundingSet"] == [""] and found["NoNewPrivileges"] == ["yes"]
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        done(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
    done(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    filter_ = ctypes.create_string_buffer(code)
    length = len(code) // 8
    header = ctypes.create_string_buffer(struct.pack("@HP", length, ctypes.addressof(filter_)))
    done(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0))


def _limit(which: int, wanted: int) -> None:
    """Lowers a limit; one that is lower already stays, for not every container may raise it."""
    _, hard = resource.getrlimit(which)
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (value, value))


def main() -> None:
    """Becomes the command. Root that has no bounding set has no capabilities after it."""
    unit, writable, *command = sys.argv[1:]
    enter(Path(unit), Path(writable))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
