# SPDX-License-Identifier: Apache-2.0
"""Containers: what goes in comes out with each pair of codecs, and what should not go in is named."""

from typing import Any

import numpy as np
import pytest

from tests.client.sparse.supports import DENSITIES, random_sparse
from tests.seeds import seeds
from ultima import InvalidArgument
from ultima.sparse import INDEX_CODECS, VALUE_CODECS, Sparse, decode, encode, parse
from ultima.sparse.codec import map_width, smallest
from ultima.sparse.container import OVERHEAD

LOSSLESS = ("raw", "bitmap", "rle", "huffman", "delta", "bloom-p0", "auto")
SORTED = ("fit-poly", "fit-dexp")


@pytest.mark.parametrize("seed", seeds(4))
def test_codec__every_support_comes_back(seed: int) -> None:
    """With codecs that lose nothing: indices and values to the bit, and zeros for what a Bloom filter adds."""
    rng = np.random.default_rng(seed)
    for density in DENSITIES:
        given = random_sparse(rng, int(rng.integers(0, 3000)), density)
        for index in LOSSLESS:
            for value in ("raw", "deflate", "auto"):
                found = decode(encode(given.indices, given.values, given.size, index=index, value=value), given.size)
                assert found.dense().tobytes() == given.dense().tobytes(), (index, value, given.size)
                if index != "bloom-p0":
                    assert found.indices.tolist() == given.indices.tolist()


@pytest.mark.parametrize("value", ["qsgd", *SORTED])
@pytest.mark.parametrize("index", [name for name in INDEX_CODECS if name != "bloom-naive"])
def test_codec__what_is_rounded_comes_back_near(index: str, value: str) -> None:
    """In its place: a reorder map that is off by one would put a large value where a small one belongs."""
    rng = np.random.default_rng(5)
    for count in (0, 1, 2, 5, 17, 400):
        given = random_sparse(rng, 40 * count, 0.03)
        packed = encode(given.indices, given.values, given.size, index=index, value=value, bloom_error=1e-5)
        found, box = decode(packed, given.size), parse(packed)
        assert box.value in (value, "fit-poly") and box.reordered == (value in SORTED)
        if index in ("bloom-p1", "bloom-p2"):
            both = np.isin(found.indices, given.indices)
            found = Sparse(found.indices[both], found.values[both], found.size)
        norm = float(np.linalg.norm(given.values))
        allowed = norm / 127 if value == "qsgd" else 0.2 * norm
        assert np.all(np.abs(found.dense() - given.dense())[found.indices] <= allowed + 1e-12), (index, value, count)


def test_codec__signs_survive_a_fit() -> None:
    values = np.array([3e-4, -2e-4, 1e-9, -1e-9, 5e-5] * 100, np.float32)
    for value in SORTED:
        found = decode(encode(np.arange(500), values, 500, index="delta", value=value), 500)
        assert np.all((found.values >= 0) == (values >= 0) | (found.values == 0)), value


def test_container__the_header_of_a_known_tensor() -> None:
    """Byte by byte: whoever moves a field breaks containers that were stored."""
    packed = encode([1, 3], np.array([1.0, -2.0], np.float32), 9, index="bitmap", seed=7, scaled=True)
    assert packed[:36].hex(" ", 1) == (
        "44 52 01 01 00 04 09 00 00 00 02 00 00 00 02 00 00 00 07 00 00 00 00 00 02 00 00 00 08 00 00 00 00 00 00 00"
    )
    assert packed[36:46].hex(" ", 1) == "0a 00 00 00 80 3f 00 00 00 c0"
    assert len(packed) == OVERHEAD + 10 and parse(packed).scaled


def test_container__the_papers_figure_1_takes_72_bits() -> None:
    """Claim D10: two coefficients and eight bits of map, with a line fitted to values that ascend (so sorted down)."""
    from ultima.sparse import fit
    from ultima.sparse.kernels import bitmap_encode

    values = np.array([5.8, 5.2, 4.6, 4.0], np.float32)
    parameters, line = fit.poly_encode(values, segments=1, degree=1)
    assert 8 * (line.size + bitmap_encode(np.array([1, 2, 4, 7], np.uint32), 8).size) == 72
    assert np.allclose(fit.poly_decode(parameters, line, 4), values, atol=1e-6)


def test_codec__auto_is_the_smallest() -> None:
    rng = np.random.default_rng(11)
    chosen = set()
    for density in (0.0, 0.0003, 0.01, 0.3, 0.6, 1.0):
        given = random_sparse(rng, 20_000, density)
        sizes = {name: len(encode(given.indices, given.values, given.size, index=name)) for name in LOSSLESS}
        assert sizes["auto"] == min(sizes.values())
        chosen.add(smallest(given.indices, given.size)[0])
    assert {"delta", "bitmap"} <= chosen
    assert smallest(np.arange(2000, dtype=np.uint32), 2000)[0] == "rle"


@pytest.mark.parametrize(("count", "width"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11)])
def test_reorder_map__takes_ceil_log2_bits(count: int, width: int) -> None:
    assert map_width(count) == width


NAN = float("nan")
BAD: list[tuple[str, Any, Any, int, dict[str, Any], str]] = [
    ("descending", [3, 2], [1.0, 1.0], 9, {}, "indices is '2 at place 1 after 3'; allowed: ascending"),
    ("repeated", [3, 3], [1.0, 1.0], 9, {}, "indices is '3 at place 1 after 3'"),
    ("outside", [3, 9], [1.0, 1.0], 9, {}, "indices is '9 at place 1 after 3'; allowed: ascending, each once, below 9"),
    ("negative", [-1, 2], [1.0, 1.0], 9, {}, "indices is '-1 to 2'"),
    ("beyond 32 bits", [1, 2**32], [1.0, 1.0], 9, {}, "indices is '1 to 4294967296'"),
    ("too many", [0, 1, 2], [1.0] * 3, 2, {}, "indices is '3 of them'; allowed: no more than the 2 elements"),
    ("floats", [0.0, 1.0], [1.0, 1.0], 9, {}, "indices is '1 dimensions of float64'"),
    ("no vector", [[0], [1]], [[1.0], [1.0]], 9, {}, "indices is '2 dimensions"),
    ("values missing", [0, 1], [1.0], 9, {}, "values is 'shape (1,) of float64'; allowed: 2 floats"),
    ("NaN", [0, 1], [1.0, NAN], 9, {"value": "qsgd"}, "values is 'nan at place 1'; allowed: finite values for qsgd"),
    ("Inf", [0, 1], [np.inf, 1], 9, {"value": "fit-poly"}, "values is 'inf at place 0'"),
    ("huge", [0, 1], [3e38, 3e38], 9, {"value": "qsgd"}, "values is 'values whose norm is beyond float32'"),
    ("size", [0], [1.0], -1, {}, "size is -1"),
    ("size 2^32", [0], [1.0], 2**32, {}, "size is 4294967296"),
    ("index", [0], [1.0], 9, {"index": "zip"}, "index is 'zip'; allowed: auto, raw, bitmap"),
    ("value", [0], [1.0], 9, {"value": "zip"}, "value is 'zip'; allowed: auto, raw, deflate"),
    ("seed", [0], [1.0], 9, {"seed": 2**32}, "seed is 4294967296"),
    ("error", [0], [1.0], 9, {"index": "bloom-p0", "bloom_error": 1.0}, "bloom_error is 1.0"),
    ("error NaN", [0], [1.0], 9, {"index": "bloom-p0", "bloom_error": NAN}, "bloom_error is nan"),
    (
        "bits",
        [0],
        [1.0],
        9,
        {"value": "qsgd", "qsgd_bits": 17},
        "qsgd_bits is 17; allowed: a whole number from 2 to 16",
    ),
    ("bucket", [0], [1.0], 9, {"value": "qsgd", "qsgd_bucket": 0}, "qsgd_bucket is 0"),
    ("dense", [0], [1.0], 9, {"dense": np.zeros(8, np.float32)}, "dense is '8 elements of float32'; allowed: 9"),
]


@pytest.mark.parametrize(("indices", "values", "size", "options", "text"), [row[1:] for row in BAD],
                         ids=[row[0] for row in BAD])  # fmt: skip
def test_encode__names_bad_input(indices: Any, values: Any, size: int, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        encode(indices, values, size, **options)
    assert text in str(raised.value).replace('"', "'")


def test_encode__raw_values_may_be_anything() -> None:
    values = np.array([np.nan, -np.inf, -0.0], np.float32)
    for value in ("raw", "deflate"):
        assert decode(encode([0, 1, 2], values, 3, value=value), 3).values.tobytes() == values.tobytes()


def test_codec__every_code_has_one_name() -> None:
    assert sorted(INDEX_CODECS.values()) == list(range(9)) and sorted(VALUE_CODECS.values()) == list(range(5))
