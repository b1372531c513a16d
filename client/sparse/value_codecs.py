# SPDX-License-Identifier: Apache-2.0
"""Values as bytes, in the order of their indices: raw float32, Deflate (RFC 1951, by zlib), and QSGD (Alistarh et al.
2017), which rounds each value at random to one of a few levels of its bucket's norm, so that its mean is kept.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from ultima.base.checks import check_whole_between
from ultima.base.errors import InvalidArgument
from ultima.sparse import kernels
from ultima.sparse.container import refused
from ultima.sparse.kernels import Bytes, Floats

QSGD = struct.Struct("<BI")  # bits of a value, values of a bucket
_RAW = np.dtype("<f4")


def check_qsgd(bits: int, bucket: int) -> None:
    """Raises InvalidArgument."""
    check_whole_between(bits, "qsgd_bits", 2, 16)
    check_whole_between(bucket, "qsgd_bucket", 1, 2**32 - 1)


def raw_encode(values: Floats) -> Bytes:
    return np.ascontiguousarray(values, _RAW).view(np.uint8)


def raw_decode(packed: Bytes, count: int) -> Floats:
    if packed.size != 4 * count:
        raise refused(f"{packed.size} bytes of raw values", f"4 for each of {count} values")
    return packed.copy().view(_RAW).astype(np.float32, copy=False)


def deflate_encode(values: Floats) -> Bytes:
    squeezer = zlib.compressobj(wbits=-15)
    return np.frombuffer(squeezer.compress(raw_encode(values).tobytes()) + squeezer.flush(), np.uint8)


def deflate_decode(packed: Bytes, count: int) -> Floats:
    """Never unpacks more than `count` values, whatever a hostile stream would swell to."""
    reader = zlib.decompressobj(wbits=-15)
    try:
        out = reader.decompress(packed.tobytes(), 4 * count + 1)
    except zlib.error as error:
        raise refused(f"a Deflate stream with an error ({error})", "a stream of RFC 1951") from None
    if len(out) != 4 * count or not reader.eof or reader.unused_data:
        raise refused(f"a Deflate stream of another length than {count} values", f"{4 * count} bytes in one stream")
    return raw_decode(np.frombuffer(out, np.uint8), count)


def qsgd_encode(values: Floats, bits: int, bucket: int, seed: int) -> tuple[bytes, Bytes]:
    """Parameters, and norms before codes. Raises InvalidArgument for values that are not finite, or so large that a
    norm is not."""
    norms, codes = kernels.qsgd_encode(check_finite(values, "qsgd"), bucket, bits, seed)
    if not np.all(np.isfinite(norms)):
        raise InvalidArgument("values", "values whose norm is beyond float32", "smaller values, or value='raw'")
    return QSGD.pack(bits, bucket), np.concatenate([raw_encode(norms), kernels.bits_pack(codes, bits)])


def qsgd_decode(parameters: bytes, packed: Bytes, count: int) -> Floats:
    if len(parameters) != QSGD.size:
        raise refused(f"{len(parameters)} bytes of parameters", f"{QSGD.size} of QSGD")
    bits, bucket = QSGD.unpack(parameters)
    if not 2 <= bits <= 16 or bucket == 0:
        raise refused(f"QSGD of {bits} bits in buckets of {bucket}", "2 to 16 bits, buckets of 1 or more")
    at = 4 * -(-count // bucket)
    if packed.size != at + (count * bits + 7) // 8:
        raise refused(f"{packed.size} bytes of QSGD", f"{at + (count * bits + 7) // 8} for {count} values")
    norms = raw_decode(packed[:at], at // 4)
    if not np.all(np.isfinite(norms) & (norms >= 0)):
        raise refused("a norm that is negative or not finite", "finite norms")
    return kernels.qsgd_decode(norms, kernels.bits_unpack(packed[at:], count, bits), bucket, bits)


def check_finite(values: Floats, codec: str) -> Floats:
    """Raises InvalidArgument: a code that rounds has no number for NaN and Inf."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InvalidArgument("values", f"{values[bad[0]]} at place {bad[0]}", f"finite values for {codec}; "
                              "'raw' and 'deflate' take any")  # fmt: skip
    return values
