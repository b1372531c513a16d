# SPDX-License-Identifier: Apache-2.0
"""`encode` and `decode`: a sparse tensor as a container, and back.

Codecs of values that sort them need the order back. Index codecs that keep any order (raw, huffman) simply list the
indices in the order of the values; with all others a *reorder map* travels: for each value its place among the
ascending indices, in as few bits as its largest number takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ultima.base.checks import check_whole_between
from ultima.base.errors import InvalidArgument
from ultima.sparse import bloom, fit, huffman, kernels, value_codecs
from ultima.sparse.container import (
    FROM_DENSE,
    INDEX_CODECS,
    REORDERED,
    SCALED,
    SIZE_MAX,
    VALUE_CODECS,
    Container,
    parse,
    refused,
)
from ultima.sparse.kernels import Bytes, Floats, Indices

SORTING = ("fit-poly", "fit-dexp")
ANY_ORDER = ("raw", "huffman")
_ASCENDING: dict[str, Callable[[Indices, int], Bytes]] = {
    "bitmap": kernels.bitmap_encode,
    "rle": kernels.runs_encode,
    "delta": lambda indices, size: kernels.gaps_encode(indices),
}
_EMPTY = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse tensor: `indices` ascending, uint32; `values` float32; `size` elements in all, the others zero."""

    indices: Indices
    values: Floats
    size: int

    def dense(self, out: Floats | None = None) -> Floats:
        """Added to `out`, or to zeros."""
        whole = np.zeros(self.size, np.float32) if out is None else out
        kernels.scatter_add(whole, self.indices, self.values)
        return whole


def encode(
    indices: Any,
    values: Any,
    size: int,
    *,
    index: str = "auto",
    value: str = "raw",
    dense: Any = None,
    scaled: bool = False,
    seed: int = 0,
    bloom_error: float | None = None,
    qsgd_bits: int = 8,
    qsgd_bucket: int = 512,
) -> bytes:
    """The container of a sparse tensor of `size` elements.

    indices: ascending integers below `size`, one-dimensional. values: one float32 for each.
    index: "raw", "bitmap", "rle", "huffman", "delta", "bloom-naive", "bloom-p0", "bloom-p1", "bloom-p2"; or "auto",
        the smallest of those that lose nothing.
    value: "raw", "deflate", "qsgd", "fit-poly", "fit-dexp" (which becomes fit-poly where the curve does not fit), or
        "auto", the smaller of raw and deflate.
    dense: the tensor that the entries were taken from. What a Bloom filter adds falsely then carries its values (the
        paper's option values_from_dense); zeros without it.
    scaled: recorded for the receiver: the values were multiplied by size / entries (see `random_entries`).
    seed: of what both ends draw alike (policies P1 and P2) and of QSGD's rounding. Take another one for each op.
    bloom_error: share of the other elements that a Bloom filter adds; by default a tenth of the density.
    qsgd_bits: of a value, its sign included. qsgd_bucket: values that share a norm.

    Raises InvalidArgument, naming what is wrong: indices that descend, repeat or leave the tensor, more of them than
    elements, another number of values, values that are not finite where a codec rounds, an unknown codec, a range.
    """
    given = checked(indices, values, size)
    whole = None if dense is None else _dense(dense, size)
    if index not in INDEX_CODECS and index != "auto":
        raise InvalidArgument("index", index, "auto, " + ", ".join(INDEX_CODECS))
    if value not in VALUE_CODECS and value != "auto":
        raise InvalidArgument("value", value, "auto, " + ", ".join(VALUE_CODECS))
    check_whole_between(seed, "seed", 0, 2**32 - 1)
    sorting = value in SORTING
    if index == "auto":
        index, packed = smallest(given.indices, size, any_order=sorting)
    elif index in bloom.POLICIES:
        packed = _EMPTY
    else:
        packed = _pack(index, given.indices, size)
    parameters, sent = b"", given
    if index in bloom.POLICIES:
        error = bloom.default_error(given.indices.size, size) if bloom_error is None else bloom_error
        bloom.check_error(error)
        parameters, packed = bloom.build(given.indices, error)
        sent = _of_members(index, parameters, packed, given, whole, seed)
    order = _EMPTY
    if sorting:
        by_value = np.argsort(-value_codecs.check_finite(sent.values, value), kind="stable").astype(np.uint32)
        if index in ANY_ORDER:
            packed = _pack(index, sent.indices[by_value], size)
        else:
            order = kernels.bits_pack(by_value, map_width(by_value.size))
        sent = Sparse(sent.indices, sent.values[by_value], size)
    value, more, packed_values = _pack_values(value, sent.values, qsgd_bits, qsgd_bucket, seed)
    from_dense = index in bloom.POLICIES and whole is not None
    flags = REORDERED * sorting | FROM_DENSE * from_dense | SCALED * bool(scaled)
    return bytes(
        Container(
            index, value, flags, size, given.indices.size, sent.values.size, seed, parameters + more, packed,
            packed_values, order,
        )
    )  # fmt: skip


def decode(data: bytes | bytearray | memoryview | Bytes, size: int) -> Sparse:
    """The sparse tensor in a container of a tensor of `size` elements. What Bloom filters added falsely is among its
    entries.

    Raises InvalidArgument naming "container" for all that `encode` would not write. Takes memory for some numbers per
    element of `size` and byte of `data`, whatever a hostile container announces: about 4 (k + 4) bytes per element and
    12 per bit of a Bloom filter with k (at most 24) hashes and policy P2, and less for all others.
    """
    box = parse(data, check_size(size))
    if box.reordered != (box.value in SORTING):
        raise refused(
            f"{box.value} with flags {box.flags}", "a new order for codecs that sort values, and for them only"
        )
    if box.from_dense and box.index not in bloom.POLICIES:
        raise refused(f"{box.index} with flags {box.flags}", "values from the dense tensor in Bloom filters only")
    at = bloom.PARAMETERS.size if box.index in bloom.POLICIES else 0
    indices = _unpack(box, box.parameters[:at])
    if indices.size != box.values:
        raise refused(f"{box.values} values for {indices.size} indices", "a value for each index")
    found = _unpack_values(box, box.parameters[at:])
    width = map_width(box.values) if box.reordered and box.index not in ANY_ORDER else 0
    if box.order.size != (box.values * width + 7) // 8:
        raise refused(f"a reorder map of {box.order.size} bytes", f"{(box.values * width + 7) // 8} bytes")
    if width:
        found = _in_place(found, kernels.bits_unpack(box.order, box.values, width))
    elif box.reordered and box.values:
        by_index = np.argsort(indices, kind="stable")
        indices, found = indices[by_index], found[by_index]
    bad = kernels.first_bad(indices, box.size)
    if bad < indices.size:
        raise refused(f"index {indices[bad]} at place {bad}", f"indices that ascend, below {box.size}")
    return Sparse(indices, found, box.size)


def check_size(size: object) -> int:
    """Raises InvalidArgument for what no tensor has as its number of elements."""
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= SIZE_MAX:
        raise InvalidArgument("size", size, f"a number of elements, 0 to {SIZE_MAX}")
    return size


def checked(indices: Any, values: Any, size: int) -> Sparse:
    """Both as the codecs take them. Raises InvalidArgument naming "size", "indices" or "values"."""
    check_size(size)
    where, what = np.asarray(indices), np.asarray(values)
    if where.ndim != 1 or (where.dtype.kind not in "ui" and where.size):
        raise InvalidArgument("indices", f"{where.ndim} dimensions of {where.dtype}", "one dimension of integers")
    if what.ndim != 1 or (what.dtype.kind != "f" and what.size) or what.size != where.size:
        raise InvalidArgument(
            "values", f"shape {what.shape} of {what.dtype}", f"{where.size} floats, one for each index"
        )
    if where.size > size:
        raise InvalidArgument("indices", f"{where.size} of them", f"no more than the {size} elements")
    if where.dtype != np.uint32 and where.size and not (where.min() >= 0 and where.max() < 2**32):
        raise InvalidArgument("indices", f"{where.min()} to {where.max()}", f"0 to {size - 1}")
    narrow = np.ascontiguousarray(where, np.uint32)
    bad = kernels.first_bad(narrow, size)
    if bad < narrow.size:
        before = f" after {narrow[bad - 1]}" if bad else ""
        raise InvalidArgument("indices", f"{narrow[bad]} at place {bad}{before}", f"ascending, each once, below {size}")
    return Sparse(narrow, np.ascontiguousarray(what, np.float32), size)


def map_width(count: int) -> int:
    """Bits of an entry of the reorder map of `count` values: ceil(log2 count)."""
    return max(count - 1, 0).bit_length()


def smallest(indices: Indices, size: int, any_order: bool = False) -> tuple[str, Bytes]:
    """The index codec that loses nothing and takes the fewest bytes, and those bytes; the first of equals in the order
    raw, bitmap, rle, huffman, delta. With `any_order` values are reordered, and where the codec needs a map its bytes
    count."""
    extra = (indices.size * map_width(indices.size) + 7) // 8 if any_order else 0
    tried = [(name, _pack(name, indices, size)) for name in ("raw", *_ASCENDING, "huffman")]
    return min(tried, key=lambda each: (each[1].size + extra * (each[0] not in ANY_ORDER), INDEX_CODECS[each[0]]))


def _dense(dense: Any, size: int) -> Floats:
    whole = np.asarray(dense)
    if whole.size != size or whole.dtype.kind != "f":
        raise InvalidArgument("dense", f"{whole.size} elements of {whole.dtype}", f"{size} floats")
    return np.ascontiguousarray(whole.reshape(-1), np.float32)


def _pack(index: str, indices: Indices, size: int) -> Bytes:
    if index == "raw":
        return np.ascontiguousarray(indices, "<u4").view(np.uint8)
    if index == "huffman":
        return huffman.encode(indices, size)
    return _ASCENDING[index](indices, size)


def _unpack(box: Container, parameters: bytes) -> Indices:
    """The indices; of raw and huffman as they stand, and not checked."""
    data, count, found = np.ascontiguousarray(box.packed_indices), box.entries, None
    if box.index in bloom.POLICIES:
        return bloom.members(box.index, parameters, data, box.size, count, box.seed)
    if box.index == "raw":
        found = data.copy().view("<u4").astype(np.uint32, copy=False) if data.size == 4 * count else None
    elif box.index == "bitmap":
        found = kernels.bitmap_decode(data, count, box.size) if data.size == (box.size + 7) // 8 else None
    elif box.index == "huffman":
        found = huffman.decode(data, count, box.size) if data.size >= count / 2 else None  # a bit a byte at least
    else:
        unpack = kernels.gaps_decode if box.index == "delta" else kernels.runs_decode
        found = unpack(data, count, box.size)
    if found is None:
        raise refused(f"{data.size} bytes that are no {box.index}", f"{count} indices below {box.size}")
    return found


def _of_members(
    policy: str, parameters: bytes, packed: Bytes, given: Sparse, dense: Floats | None, seed: int
) -> Sparse:
    """The members that carry values, with theirs. Naive sends the entries' own, which is its fault."""
    found = bloom.members(policy, parameters, packed, given.size, given.indices.size, seed)
    if policy == "bloom-naive":
        return Sparse(found, given.values, given.size)
    if dense is not None:
        return Sparse(found, dense[found], given.size)
    entry = np.zeros(given.size, np.bool_)
    entry[given.indices] = True
    values = np.zeros(found.size, np.float32)
    held = entry[found]
    # A filter misses no entry, but policies P1 and P2 leave some out.
    values[held] = given.values if policy == "bloom-p0" else given.values[np.isin(given.indices, found[held])]
    return Sparse(found, values, given.size)


def _pack_values(value: str, sent: Floats, bits: int, bucket: int, seed: int) -> tuple[str, bytes, Bytes]:
    """The codec that was used, its parameters, and the bytes."""
    if value in ("raw", "auto"):
        raw = value_codecs.raw_encode(sent)
        squeezed = value_codecs.deflate_encode(sent) if value == "auto" else raw
        return ("deflate", b"", squeezed) if squeezed.size < raw.size else ("raw", b"", raw)
    if value == "deflate":
        return value, b"", value_codecs.deflate_encode(sent)
    if value == "qsgd":
        value_codecs.check_qsgd(bits, bucket)
        return value, *value_codecs.qsgd_encode(sent, bits, bucket, seed)
    curve = fit.dexp_encode(sent) if value == "fit-dexp" else None
    return (value, *curve) if curve else ("fit-poly", *fit.poly_encode(sent))


def _unpack_values(box: Container, parameters: bytes) -> Floats:
    data, count = np.ascontiguousarray(box.packed_values), box.values
    if box.value in ("raw", "deflate") and parameters:
        raise refused(f"{len(parameters)} bytes of parameters", f"none of {box.value}")
    match box.value:
        case "raw":
            return value_codecs.raw_decode(data, count)
        case "deflate":
            return value_codecs.deflate_decode(data, count)
        case "qsgd":
            return value_codecs.qsgd_decode(parameters, data, count)
        case "fit-poly":
            return fit.poly_decode(parameters, data, count)
        case _:
            return fit.dexp_decode(parameters, data, count)


def _in_place(by_value: Floats, order: Indices) -> Floats:
    """Each value where its index is. Raises InvalidArgument if `order` is no permutation."""
    if by_value.size and int(order.max()) >= by_value.size:
        raise refused(f"place {int(order.max())} in the reorder map", f"places below {by_value.size}")
    seen = np.zeros(by_value.size, np.bool_)
    seen[order] = True
    if not seen.all():
        raise refused("a reorder map that names a place twice", "each place once")
    out = np.empty_like(by_value)
    out[order] = by_value
    return out
