# SPDX-License-Identifier: Apache-2.0
"""Quantised slots from Python: the daemon's kernels against the definition in numpy, and what a plan of bytes says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultima import InvalidArgument
from ultima.quant import FORMS, Draws, Feedback, decode, encode, encoded_bytes, rounded, slot_elements, wire_bytes

LEVELS = {"int16": 32767, "int8": 127, "int4": 7}
BLOCK = {"int16": 64, "int8": 64, "int4": 32}


def gauss(size: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def scales_of(values: Any, wire: str) -> Any:
    """The least scale of each element's block that may be: its largest magnitude over the levels."""
    block = BLOCK[wire]
    padded = np.zeros(-(-values.size // block) * block, np.float64)
    padded[: values.size] = np.abs(values)
    return np.repeat(padded.reshape(-1, block).max(axis=1) / LEVELS[wire], block)[: values.size]


@given(
    st.sampled_from(FORMS),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=150),
    st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
@settings(max_examples=60, deadline=None)
def test_encode__errs_by_a_step_at_most_and_says_what_it_took(wire: str, given: list[float], key: int | None) -> None:
    values = np.array(given, np.float32)
    residual = np.zeros_like(values)
    data = encode(values, wire, key, residual=residual)
    assert data == encode(values, wire, key)
    found = decode(data, values.size, wire)
    # Blocks more than 2^15 below the slot's largest share its least scale; what is below 2^-100 is nothing.
    least = max(scales_of(values, wire).max(), 2.0**-116) * 2.0**-15
    steps = np.maximum(scales_of(values, wire) * (1 + 1 / 16), least)
    error = np.abs(found.astype(np.float64) - values)
    # Where the step beyond a value would be infinite, the one before it is taken.
    last = np.abs(found) + steps > np.finfo(np.float32).max
    assert (error <= steps * np.where(last | (key is not None), 1.0, 0.5) * 1.0001 + 2.0**-100).all()
    if key is None:
        small = scales_of(values, wire) * LEVELS[wire] < 2.0**-100
        exact = values.astype(np.float64) - found
        assert (np.where(small, 0, exact) == residual).all()


def test_encode__a_slot_by_hand() -> None:
    data = encode(np.array([1, -0.5, 0.25, 0], np.float32), "int8")
    assert data.hex() == "0569f178c41e00"
    assert decode(data + bytes(9), 4, "int8").tolist() == [120 * 17 / 2048, -60 * 17 / 2048, 30 * 17 / 2048, 0]


@pytest.mark.parametrize("wire", FORMS)
def test_encode__what_is_not_finite_arrives_as_nan_alone(wire: str) -> None:
    values, residual = gauss(200), np.full(200, 0.25, np.float32)
    want = rounded(values, wire, residual=residual.copy())
    values[[3, 77, 199]] = np.nan, np.inf, -np.inf
    found = rounded(values, wire, residual=residual)
    assert np.flatnonzero(np.isnan(found)).tolist() == [3, 77, 199] and (residual[[3, 77, 199]] == 0.25).all()
    far = np.ones(200, bool)
    far[[3, 77, 199]] = False
    assert np.abs(found - want)[far].max() <= 2 * (scales_of(gauss(200) + 0.25, wire) * 1.07).max()


def test_rounded__is_slot_by_slot_with_the_draws_of_its_chunk() -> None:
    values, draws = gauss(6000).reshape(60, 100), Draws(7, host=2, chunk=5)
    each = slot_elements("int4")
    assert (each, slot_elements("int4", 1424)) == (2704, 2672)
    flat = values.reshape(-1)
    want = [
        decode(encode(flat[at : at + each], "int4", draws.key(slot)), min(each, 6000 - at), "int4")
        for slot, at in enumerate(range(0, 6000, each))
    ]
    found = rounded(values, "int4", draws)
    assert found.shape == values.shape and (found.reshape(-1) == np.concatenate(want)).all()
    for other in (Draws(8, 2, 5), Draws(7, 3, 5), Draws(7, 2, 6), Draws(7, 2, 5, answer=True)):
        assert (rounded(values, "int4", other) != found).mean() > 0.1
    assert len({draws.key(slot) for slot in range(1000)}) == 1000


def test_draws__every_element_has_its_own() -> None:
    """Half way between two codes, elements that share a draw would all go the same way."""
    values = np.full(2048, 100.5, np.float32)
    values[::64] = 127
    up = rounded(values, "int8", Draws(1), payload=9216) > 100.5
    up = np.delete(up, np.arange(0, 2048, 64))
    for lag in (1, 16, 32, 63, 64):
        assert 0.4 < (up[lag:] == up[:-lag]).mean() < 0.6, lag
    assert 0.45 < up.mean() < 0.55


def test_wire_bytes__shares_of_a_dense_op() -> None:
    """Headers included, of a bucket so large that the last slots of chunks do not count."""
    size, dense = 6_553_600, wire_bytes(6_553_600, hosts=4)
    shares = {wire: wire_bytes(size, wire, hosts=4) / dense for wire in FORMS}
    assert shares == pytest.approx({"int16": 0.5056, "int8": 0.2557, "int4": 0.1331}, rel=2e-3)
    assert wire_bytes(size, "int4", "int8", hosts=4) / dense == pytest.approx(0.1944, rel=2e-3)


def test_wire_bytes__to_the_byte() -> None:
    assert wire_bytes(3, "int8", hosts=2, headers=0) == (2 + 1 + 2) + (2 + 1 + 1)
    assert wire_bytes(1, "int8", hosts=2) == 2 + 1 + 1 + 74
    assert wire_bytes(1408 * 2 + 10, "int8", hosts=1) == 0
    two = wire_bytes(2 * 1418, "int8", hosts=2, headers=0)
    assert two == 2 * (1440 + 2 + 1 + 10)
    assert wire_bytes(0, "int8") == 0
    assert encoded_bytes(2 * 1418, "int8") == two and encoded_bytes(10) == 40


def test_wire_bytes__are_those_of_the_document() -> None:
    """docs/quantised.md: 6,553,600 elements, four hosts."""
    told = (Path(__file__).parents[3] / "docs/quantised.md").read_text()
    for name, answer in (("float32", None), *((form, None) for form in FORMS), ("int4", "int8")):
        row = f"| {name if answer is None else f'{name}, answer {answer}'} | "
        assert f"{row}{wire_bytes(6_553_600, name, answer, hosts=4):,} | " in told, row


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: encode(np.zeros(3), "int8"), "values"),
        (lambda: encode(np.zeros(20000, np.float32), "int8"), "values"),
        (lambda: encode(np.zeros(3, np.float32), "int7"), "wire"),
        (lambda: encode(np.zeros(3, np.float32), "int8", -1), "key"),
        (lambda: encode(np.zeros(3, np.float32), "int8", residual=np.zeros(2, np.float32)), "residual"),
        (lambda: encode(np.zeros(3, np.float32), "int8", residual=np.zeros(6, np.float32)[::2]), "residual"),
        (lambda: encode(np.zeros(3, np.float32), "int8", divisor=0), "divisor"),
        (lambda: decode(b"\x05\x00\x01", 3, "int8"), "data"),
        (lambda: decode(b"\x04\x00\x01abc", 3, "int8"), "data"),
        (lambda: decode(b"\x05\x00\x01abc", -1, "int8"), "size"),
        (lambda: rounded(np.zeros(3, np.float32), "int8", residual=np.zeros((3, 1), np.float32)), "residual"),
        (lambda: slot_elements("int8", 63), "payload"),
        (lambda: wire_bytes(3, "int3"), "wire"),
        (lambda: wire_bytes(3, "int8", hosts=65), "hosts"),
        (lambda: Draws(-1), "op_seq"),
        (lambda: Draws(1, host=64), "host"),
        (lambda: Feedback(-1), "size"),
        (lambda: Feedback(np.zeros(3)), "size"),
    ],
)
def test_quant__bad_input_is_named(call: Any, field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field}"):
        call()
