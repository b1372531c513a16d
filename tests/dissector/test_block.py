# SPDX-License-Identifier: Apache-2.0
"""The golden blocks of tests/c/kernels/test_block.c and test_block_int8.c, read by the page that describes them."""

import numpy as np
import pytest

from tests.dissector import block, quant

ELIAS_FANO = "025103000000000007000000030d250000803f000000c00000003f"
BITMAP = "210105000000000001000000e801803f40404040404040 40"
WHO = "025301000000000003000000 0200 02000500000000000080 01000600000000000000 00020000803f"
DENSE = "3001000000000000010000000000803f7e81"
INT8 = "523103000000000002000000 c30125 0570f0 7fc000"


def test_block__golden_bytes() -> None:
    read = block.read(bytes.fromhex(ELIAS_FANO), 100)
    assert (read.index, read.form, read.last, read.first, read.granules) == ("elias-fano", "float32", True, 0, 7)
    assert read.units == {3: [1.0], 40: [-2.0], 99: [0.5]}
    read = block.read(bytes.fromhex(BITMAP), 16)
    assert (read.index, read.form, read.units) == (
        "bitmap",
        "bfloat16",
        {3: [1.0], 5: [3.0], 6: [3.0], 7: [3.0], 8: [3.0]},
    )
    read = block.read(bytes.fromhex(DENSE), 2)
    assert (read.index, read.form, read.units) == ("dense", "float8", {0: [448.0], 1: [-(2.0**-9)]})
    assert block.read(bytes.fromhex(DENSE) + b"\xa5" * 40, 2) == read, "padding is not looked at"
    read = block.read(bytes.fromhex(WHO), 33)
    assert (read.index, read.granules, read.who, read.units) == (
        "elias-fano",
        3,
        [(2, 1 << 63 | 5), (1, 6)],
        {32: [1.0]},
    )


def test_block__of_int8_is_a_slot_of_its_values() -> None:
    read = block.read(bytes.fromhex(INT8), 32)
    assert (read.index, read.form, read.granules) == ("elias-fano", "int8", 2)
    assert read.units == {3: [127.0], 8: [-64.0], 31: [0.0]}
    seven = quant.key(7, 1, 2, 0, 0)  # host 2 answers op 7
    assert quant.write("int8", np.array([127, -64, 0.25], np.float32), seven) == bytes.fromhex(INT8)[-6:]
    assert block.read(bytes.fromhex("520100000000000001000000"), 16).units == {}, "without entries there is no slot"


def test_block__of_rows() -> None:
    row = bytes.fromhex("010101000000000001000000" + "02" + "0000803f" * 8)
    assert block.read(row, 2, group=8).units == {1: [1.0] * 8}


def test_block__that_is_cut_short() -> None:
    for golden, units in ((ELIAS_FANO, 100), (BITMAP, 16), (DENSE, 2), (WHO, 33), (INT8, 32)):
        whole = bytes.fromhex(golden)
        for length in range(len(whole)):
            with pytest.raises((ValueError, IndexError, block.struct.error)):
                block.read(whole[:length], units)
