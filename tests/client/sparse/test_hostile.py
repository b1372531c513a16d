# SPDX-License-Identifier: Apache-2.0
"""Containers from a stranger: random bytes, real ones with bytes changed, cut or grown, and announcements that lie.

Decoding ends with InvalidArgument or with a tensor that is sound; anything else (a crash, another exception, memory
beyond bounds, indices that do not ascend) fails. The checksum is made right again, for a stranger can compute it.
"""

import tracemalloc
import zlib
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

from tests.client.sparse.supports import random_sparse, resealed
from tests.seeds import seeds
from ultima import InvalidArgument
from ultima.sparse import INDEX_CODECS, VALUE_CODECS, decode, encode, parse
from ultima.sparse.container import OVERHEAD, Container

SIZE = 400
PAIRS = [(index, value) for index in INDEX_CODECS for value in VALUE_CODECS]


def mutant(rng: np.random.Generator, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(out) - 4))
        match int(rng.integers(5)):
            case 0:
                out[at] ^= 1 << int(rng.integers(8))
            case 1:
                out[at] = int(rng.choice([0, 1, 127, 128, 255]))
            case 2:
                out[at : at + 4] = int(rng.choice([0, 1, SIZE, 2**31, 2**32 - 1])).to_bytes(4, "little")
            case 3:
                out[OVERHEAD - 4 : -4] = rng.bytes(len(out) - OVERHEAD)
            case _:
                out[3] = int(rng.integers(10))
    return resealed(bytes(out))


def ends_well(data: bytes) -> bool:
    """Whether it was accepted; then the tensor is sound."""
    try:
        found = decode(data, SIZE)
    except InvalidArgument as error:
        assert error.field == "container" and len(error.allowed) > 5
        return False
    assert found.indices.size == found.values.size <= SIZE
    assert np.all(np.diff(found.indices.astype(np.int64)) > 0)
    assert found.indices.size == 0 or found.indices[-1] < SIZE
    return True


def _attack(seed: int, rounds: int) -> None:
    rng, accepted = np.random.default_rng(seed), Counter[bool]()
    for _ in range(rounds):
        given = random_sparse(rng, SIZE, float(rng.choice([0.0, 0.02, 0.3, 1.0])))
        for index, value in PAIRS:
            real = encode(given.indices, given.values, SIZE, index=index, value=value, seed=int(rng.integers(99)))
            assert ends_well(real)
            accepted[ends_well(mutant(rng, real))] += 1
            assert not ends_well(real[: int(rng.integers(len(real)))]), "cut"
            assert not ends_well(rng.bytes(int(rng.integers(200))))
            kinds = rng.bytes(int(rng.integers(1, 64)))
            head = bytearray(real[: OVERHEAD - 4])
            head[24:36] = b"".join(int(part).to_bytes(4, "little") for part in (len(kinds), 0, 0))
            head[22:24] = b"\0\0"
            accepted[ends_well(resealed(bytes(head) + kinds + b"1234"))] += 1
    assert accepted[True] > rounds, "or no mutant got past the door"


@pytest.mark.parametrize("seed", seeds(2))
def test_decode__mutants(seed: int) -> None:
    _attack(seed, 4)


@pytest.mark.check
@pytest.mark.parametrize("seed", seeds(2))
def test_decode__many_mutants(seed: int) -> None:
    _attack(seed, 120)


def test_decode__says_how_long_a_reorder_map_may_be() -> None:
    mutant = (
        b"DR\x01\x03\x03\x01\x90\x01\x00\x00\x03\x00\x00\x00\x03\x00\x00\x00:\x00\x00\x00\n\x00\x04\x00\x00\x00\x0c\x00\x00\x00"
        b"\x01\x00\x00\x00\x05\x01\x01\x00\x00\x00\x02\x00\x00\x00\xfe\x01:P\xb1)n:\xd5P\x9c\xb9\xd1G\x7f\xb9\t\x80\xac\x08\xd3"
    )
    with pytest.raises(InvalidArgument, match=r"a reorder map of 1 bytes'; allowed: 0 bytes"):
        decode(mutant, SIZE)


def test_parse__names_what_is_wrong() -> None:
    real = encode([1, 5], np.ones(2), 9, index="delta")
    rows = [
        (b"", "0 bytes"), (b"XX" + real[2:], "b'XX', version 1"), (real[:2] + b"\2" + real[3:], "version 2"),
        (real + b"1", "header announces"), (real[:-1] + bytes([real[-1] ^ 1]), "checksum"),
        (resealed(real[:3] + b"\x63" + real[4:]), "codecs 99 and 0"),
        (resealed(real[:5] + b"\x08" + real[6:]), "flags 8"),
        (resealed(real[:10] + b"\x0a" + real[11:]), "10 entries and 2 values of 9"),
        (resealed(real[:14] + b"\x01" + real[15:]), "2 entries and 1 values of 9"),
    ]  # fmt: skip
    for data, text in rows:
        with pytest.raises(InvalidArgument) as raised:
            parse(data)
        assert raised.value.field == "container" and text in str(raised.value)
    with pytest.raises(InvalidArgument, match=r"of a tensor of 9 elements.*allowed: 8 elements"):
        decode(real, 8)


def _box(index: str, value: str, size: int, entries: int, packed: bytes, packed_values: bytes,
         parameters: bytes = b"") -> bytes:  # fmt: skip
    return bytes(
        Container(index, value, 0, size, entries, entries, 0, parameters, np.frombuffer(packed, np.uint8),
                  np.frombuffer(packed_values, np.uint8), np.empty(0, np.uint8))
    )  # fmt: skip


def test_decode__memory_stays_within_what_the_size_allows() -> None:
    """A few bytes that announce a great deal: a run of all elements, a stream of zeros that swells a thousandfold."""
    squeezer = zlib.compressobj(9, wbits=-15)
    bomb = squeezer.compress(bytes(64 << 20)) + squeezer.flush()
    run = b"\1" + b"\xff\xff\xff\xff\x0f"
    size = 1 << 16
    rows = [
        _box("rle", "raw", 2**32 - 1, 2**32 - 1, run, b""),
        _box("rle", "deflate", size, size, b"\1\x80\x80\x04", bomb),
        _box("huffman", "raw", size, size, b"\0" * 9, b""),
        _box("bloom-p1", "raw", size, 1, b"\xff", bytes(4), b"\1\x08\0\0\0"),
    ]
    for data in rows:
        tracemalloc.start()
        try:
            with suppress(InvalidArgument):
                decode(data, size)
            assert tracemalloc.get_traced_memory()[1] < 40 * size + len(data) * 4
        finally:
            tracemalloc.stop()
