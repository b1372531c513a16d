# SPDX-License-Identifier: Apache-2.0
"""Bloom filters and their policies, and the static Huffman code: the examples of docs/papers.md, section 5.9, and what
each policy promises.
"""

import numpy as np
import pytest

from ultima.sparse import Sparse, bloom, decode, encode, huffman, kernels, parse, top_entries

SHAPES = [
    (5, 0.1, 4, 24), (8, 0.01, 7, 77), (100, 0.01, 7, 959), (368, 0.001, 10, 5291), (369, 0.001, 10, 5306),
    (369, 0.01, 7, 3537), (1000, 0.001, 10, 14378), (1000, 0.6, 1, 1064), (405343, 0.01, 7, 3885237),
    (1, 0.01, 7, 10), (0, 0.01, 0, 0),
]  # fmt: skip
S = np.array([0, 5, 8, 9, 14], np.uint32)


@pytest.mark.parametrize(("entries", "error", "hashes", "bits"), SHAPES)
def test_bloom__hashes_and_bits(entries: int, error: float, hashes: int, bits: int) -> None:
    assert bloom.shape(entries, error) == (hashes, bits)


@pytest.mark.parametrize(("error", "packed", "members"), [
    (0.1, "c95e62", [0, 5, 8, 9, 14]),
    (0.3, "7a0e", [0, 3, 4, 5, 7, 8, 9, 11, 14]),
])  # fmt: skip
def test_bloom__spec_vectors(error: float, packed: str, members: list[int]) -> None:
    parameters, data = bloom.build(S, error)
    assert data.tobytes().hex() == packed
    assert bloom.members("bloom-p0", parameters, data, 16, 5, 0).tolist() == members


def test_bloom__naive_shifts_after_a_false_member() -> None:
    values = np.array([0.015, 0.03, 0.12, 0.058, 0.29], np.float32)
    found = decode(encode(S, values, 16, index="bloom-naive", bloom_error=0.3), 16)
    assert found.indices.tolist() == [0, 3, 4, 5, 7] and found.values.tolist() == values.tolist()


def test_bloom__p2_takes_who_stands_alone() -> None:
    """8 and 0 set a bit alone; 9 and 14 follow whatever is drawn, and never 7 or 11."""
    for seed in range(100):
        found = set(
            decode(encode(S, np.ones(5), 16, index="bloom-p2", bloom_error=0.3, seed=seed), 16).indices.tolist()
        )
        assert {0, 8, 9, 14} < found and len(found - {3, 4, 5}) == 4


def test_bloom__policies_keep_what_they_promise() -> None:
    """Claim D6 at one error rate: P1 finds entries by chance, P2 far more, P0 all."""
    rng = np.random.default_rng(2)
    given = top_entries(rng.laplace(size=36864).astype(np.float32), 0.01)
    true = {}
    for policy in ("bloom-p0", "bloom-p1", "bloom-p2"):
        packed = encode(given.indices, given.values, given.size, index=policy, bloom_error=0.004, seed=3)
        found = decode(packed, given.size)
        assert found.indices.size == parse(packed).values >= 368
        true[policy] = np.isin(found.indices, given.indices).sum() / 368
        assert decode(packed, given.size).indices.tolist() == found.indices.tolist(), "both ends draw alike"
    assert true["bloom-p0"] == 1 and abs(true["bloom-p1"] - 0.71) < 0.06 and true["bloom-p2"] > 0.9
    others = encode(given.indices, given.values, given.size, index="bloom-p1", bloom_error=0.004, seed=4)
    assert parse(others).seed == 4 and decode(others, given.size).indices.tolist() != found.indices.tolist()


def test_bloom__false_members_carry_the_dense_values() -> None:
    dense = np.linspace(-1, 1, 16).astype(np.float32)
    for policy in ("bloom-p0", "bloom-p1", "bloom-p2"):
        packed = encode(S, dense[S], 16, index=policy, bloom_error=0.3, dense=dense)
        found = decode(packed, 16)
        assert parse(packed).from_dense and found.values.tolist() == dense[found.indices].tolist()
    zeros = decode(encode(S, dense[S], 16, index="bloom-p0", bloom_error=0.3), 16)
    assert zeros.dense().tolist() == Sparse(S, dense[S], 16).dense().tolist()


def test_murmur3__known_answers() -> None:
    assert [kernels.murmur3(0, seed) for seed in range(2)] == [0x2362F9DE, 0x78ED212D]


def test_huffman__average_length_is_the_specs() -> None:
    for size, average in ((36864, 19.732), (262144, 23.039), (4053428, 26.555)):
        counts = huffman.byte_counts(size)
        lengths = huffman.code_lengths(counts)
        assert sum(a * b for a, b in zip(counts, lengths, strict=True)) / size == pytest.approx(average, abs=5e-4)


def test_huffman__counts_are_those_of_the_indices() -> None:
    for size in (0, 1, 2, 255, 256, 257, 65_536, 70_001):
        real = np.bincount(np.arange(size, dtype="<u4").view(np.uint8), minlength=256)
        assert huffman.byte_counts(size) == real.tolist(), size


def test_huffman__spec_vector_and_lengths() -> None:
    counts = [0] * 256
    counts[ord("a")], counts[ord("b")], counts[ord("c")] = 10, 2, 1
    codes = huffman.canonical(huffman.code_lengths(counts))
    assert codes == {ord("a"): (1, 0b0), ord("b"): (2, 0b10), ord("c"): (2, 0b11)}
    sizes = (1, 2, 3, 100, 255, 256, 257, 511, 1000, 65_535, 65_537, 10**6, 2**24, 2**24 + 1, 2**32 - 1)
    longest = max(max(huffman.code_lengths(huffman.byte_counts(size))) for size in sizes)
    assert longest <= huffman.BITS_MAX


def test_huffman__keeps_any_order() -> None:
    rng = np.random.default_rng(8)
    for size in (1, 2, 300, 70_000, 2**32 - 1):
        indices = rng.integers(0, size, 500, dtype=np.uint64).astype(np.uint32)
        back = huffman.decode(huffman.encode(indices, size), 500, size)
        assert back is not None and back.tolist() == indices.tolist()
