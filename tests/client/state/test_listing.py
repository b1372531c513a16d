# SPDX-License-Identifier: Apache-2.0
"""A state as bytes, parts and digests."""

import hashlib
import random
from typing import Any

import numpy as np
import pytest

from ultima import InvalidArgument
from ultima.state.listing import PART_BYTES, Arrays, Listing


def test_arrays__parts_are_the_bytes_in_the_order_of_names() -> None:
    """Of arrays of any size, empty ones and such that end within a part."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    sizes = [0, 1, PART_BYTES - 1, 3, 0, 2 * PART_BYTES + 5, 7]
    state: dict[str, Any] = {f"b{at}": draw.integers(0, 256, size, np.uint8) for at, size in enumerate(sizes)}
    state["a"] = {"x": draw.random((3, 4)), "scalar": np.array(2.5)}
    arrays = Arrays(state, writable=True)
    names = [row.name for row in arrays.rows]
    assert names == ["a/scalar", "a/x", *sorted(name for name in state if name != "a")]
    whole = b"".join(each.tobytes() for each in (state["a"]["scalar"], state["a"]["x"], *[state[n] for n in names[2:]]))
    listing = arrays.listing()
    parts = [arrays.part(number) for number in range(len(listing.sums))]
    assert b"".join(parts) == whole and listing.size == len(whole)
    assert all(len(part) == PART_BYTES for part in parts[:-1])
    assert listing.sums == tuple(hashlib.blake2b(part, digest_size=32).digest() for part in parts)
    assert Listing.read(listing.written()) == listing
    other = {name: np.zeros_like(value) for name, value in state.items() if name != "a"}
    other["a"] = {name: np.zeros_like(value) for name, value in state["a"].items()}
    Arrays(other, writable=True).fill(memoryview(whole))
    assert all(np.array_equal(other[name], state[name]) for name in state if name != "a")
    assert np.array_equal(other["a"]["x"], state["a"]["x"]) and other["a"]["scalar"] == 2.5


@pytest.mark.check
def test_arrays__torch_tensors_are_their_own_memory() -> None:
    torch = pytest.importorskip("torch")
    state = {"w": torch.zeros(3, dtype=torch.bfloat16, requires_grad=True), "n": torch.zeros((), dtype=torch.int64)}
    arrays = Arrays(state, writable=True)
    assert [str(row) for row in arrays.rows] == ["int64[]", "bfloat16[3]"]
    arrays.fill(memoryview(np.int64(9).tobytes() + b"\x80\x3f" * 3))
    assert state["n"].item() == 9 and state["w"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ([np.ones(3)], "state is 'list'"),
        ({"a": {"b": 3}}, r"state\['a/b'\] is 'int'"),
        ({"a": np.ones((4, 4))[:, 1]}, "C-contiguous"),
        ({"a": np.array([object()])}, r"state\['a'\]"),
    ],
)
def test_arrays__what_is_no_state_is_refused_by_name(state: Any, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        Arrays(state, writable=False)


def test_listing__the_first_array_that_differs_is_named() -> None:
    one = Arrays({"a": np.ones(3), "b": np.ones((2, 2))}, writable=False).outline()
    assert one.differs(one) is None
    other = Arrays({"a": np.ones(3), "b": np.ones((2, 3), np.float32)}, writable=False).outline()
    assert one.differs(other) == ("b", "float64[2, 2]", "float32[2, 3]")
    assert one.differs(Arrays({"b": np.ones((2, 2))}, writable=False).outline()) == ("a", "float64[3]", "absent")


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"[]",
        b"{}",
        b'{"rows": 3, "size": 1, "sums": []}',
        b'{"rows": [], "size": 1, "sums": []}',
        b'{"rows": [], "size": -1, "sums": []}',
        b'{"rows": [], "size": 1, "sums": ["00"]}',
        b'{"rows": [["a"]], "size": 0, "sums": []}',
        b"[" * 100_000,
    ],
)
def test_listing__what_another_host_sends_may_be_anything(written: bytes) -> None:
    with pytest.raises(ValueError):
        Listing.read(written)
