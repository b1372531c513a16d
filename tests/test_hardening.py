# SPDX-License-Identifier: Apache-2.0
"""The extension as it was built: what the compiler and the linker were asked for is there."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

import ultima._native

PT_LOAD, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
PF_X = 1
DT_STRTAB, DT_STRSZ, DT_BIND_NOW, DT_FLAGS, DT_FLAGS_1 = 5, 10, 24, 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW = 8, 1

pytestmark = pytest.mark.skipif(
    sys.byteorder != "little" or sys.maxsize < 2**32, reason="reads little-endian ELF64 only"
)


class Elf:
    """As much of an ELF64 file as the tests ask for."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        assert self._data[:6] == b"\x7fELF\x02\x01", path
        (at,) = struct.unpack_from("<Q", self._data, 32)
        size, count = struct.unpack_from("<HH", self._data, 54)
        # type, flags, offset, address, physical address, bytes in the file
        self.segments = [struct.unpack_from("<IIQQQQ", self._data, at + i * size) for i in range(count)]
        self.dynamic = self._read_dynamic()

    def flags_of(self, kind: int) -> list[int]:
        """Flags of the segments of a kind."""
        return [flags for of, flags, *_ in self.segments if of == kind]

    def names(self) -> set[str]:
        """Of all symbols that it brings or wants."""
        at = self._offset(self.dynamic[DT_STRTAB])
        return {name.decode() for name in self._data[at : at + self.dynamic[DT_STRSZ]].split(b"\0")}

    def _read_dynamic(self) -> dict[int, int]:
        ((offset, size),) = [(at, size) for kind, _, at, _, _, size in self.segments if kind == PT_DYNAMIC]
        return dict(struct.iter_unpack("<QQ", self._data[offset : offset + size]))

    def _offset(self, address: int) -> int:
        return next(
            offset + address - start
            for kind, _, offset, start, _, size in self.segments
            if kind == PT_LOAD and start <= address < start + size
        )


@pytest.fixture(scope="module")
def extension() -> Elf:
    return Elf(Path(ultima._native.__file__))


def test_link__resolves_all_at_once_and_then_writes_no_more(extension: Elf) -> None:
    """BIND_NOW and RELRO: after loading, no table of functions can be written to."""
    now = extension.dynamic.get(DT_FLAGS, 0) & DF_BIND_NOW or extension.dynamic.get(DT_FLAGS_1, 0) & DF_1_NOW
    assert now or DT_BIND_NOW in extension.dynamic
    assert len(extension.flags_of(PT_GNU_RELRO)) == 1


def test_link__stack_is_no_code(extension: Elf) -> None:
    (flags,) = extension.flags_of(PT_GNU_STACK)
    assert not flags & PF_X


def test_compile__guards_the_stack_and_checks_copies(extension: Elf) -> None:
    names = extension.names()
    assert "__stack_chk_fail" in names
    assert any(name.startswith("__") and name.endswith("_chk") for name in names), "no checked function of libc"
