# SPDX-License-Identifier: Apache-2.0
"""Slots of quantised allreduces: the page, what was written from it, and the product's kernels say the same."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.dissector import quant

KINDS = (Path(__file__).resolve().parents[2] / "transport_c/KINDS.md").read_text()
SECTION = KINDS.split("## Quantised allreduce", 1)[1].split("\n## ", 1)[0]
SIX = np.array([1, -0.5, 0.3, 0, np.nan, 2.5], np.float32)


def test_slot__the_vectors_of_the_page() -> None:
    told = re.search(r"whose key is ([0-9a-f]{16})", SECTION)
    assert told is not None
    assert quant.key(7, 0, 1, 2, 3) == int(told[1], 16)
    rows = re.findall(r"^\| (int\d+) \| ([0-9a-f ]+) \| ([0-9a-f ]+) \|$", SECTION, re.MULTILINE)
    assert [row[0] for row in rows] == ["int16", "int8", "int4"]
    for form, nearest, at_random in rows:
        assert quant.write(form, SIX).hex() == nearest.replace(" ", "")
        assert quant.write(form, SIX, int(told[1], 16)).hex() == at_random.replace(" ", "")
        back = quant.read(bytes.fromhex(nearest), 6)
        scale = np.float32(2.5) / quant.FORM[form][1]
        assert np.isnan(back[4]) and np.nanmax(np.abs(back - SIX)) <= 0.6 * scale


def test_slot__as_many_elements_as_the_page_says() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", SECTION, re.MULTILINE)
    assert len(rows) == 2
    for payload, *most in rows:
        assert [quant.elements(form, int(payload)) for form in quant.FORM] == [int(k) for k in most]


@pytest.mark.parametrize("slot", ["87", "c5", "95", "84f0", "8500"])
def test_slot__that_is_none(slot: str) -> None:
    with pytest.raises(ValueError, match=r"^[0-9a-f]{2,4}$"):
        quant.read(bytes.fromhex(slot).ljust(2, b"\0"), 6)
    good = quant.write("int8", SIX)
    assert quant.read(good + b"\0\0", 6) is not None
    with pytest.raises(ValueError):
        quant.read(good + b"\1", 6)
