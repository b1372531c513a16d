# SPDX-License-Identifier: Apache-2.0
"""The randomized Hadamard transform of a bucket in torch, on whatever device the bucket is.

The daemon can do it (`ultima.Options(hadamard="on")`), for a whole job and on the CPU. Here it is for single buckets,
and for those on an accelerator, whose memory is several times as fast. The arithmetic is that of
transport_c/kernels/hadamard.h to the bit: signs from a key and an element's place, butterflies with the widest step
first, a power of two as scale. The rows are not exactly the daemon's packets, which the trainer does not know: a lost
packet is the end of one row and the start of the next, and still costs each column about one row.

A bucket of n elements is cut into rows of ROW_ELEMENTS. As in `core/codec/`, 64 rows form a group, dealt such that
neighbours are in different groups; what is left goes into smaller groups; less than a row stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

GROUP_ROWS = 64
ROW_ELEMENTS = 352
"""1408 bytes: near what a packet carries at an MTU of 1500, and whole 64-byte lines."""

_WEYL = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 64


def encode(bucket: torch.Tensor, number: int) -> None:
    """Transforms a contiguous float32 tensor in place. |number|: of the op, the same on all ranks; it is in the key, so
    that no element is unlucky twice.
    """
    for part, rows in enumerate(_parts(bucket)):
        rows.copy_(transform(signed(rows, _keys(number, part, rows.shape[1])), _half_scale(rows.shape[0], 0)))


def decode(bucket: torch.Tensor, number: int) -> None:
    """The inverse of `encode`, in place: exact wherever the sums are."""
    for part, rows in enumerate(_parts(bucket)):
        rows.copy_(signed(transform(rows, _half_scale(rows.shape[0], 1)), _keys(number, part, rows.shape[1])))


def transform(block: torch.Tensor, scale: float) -> torch.Tensor:
    """scale * H x along the first dimension, which is a power of two; float32, of any further shape."""
    rows = block.shape[0]
    values = block
    step = rows // 2
    while step:
        pairs = values.reshape(rows // (2 * step), 2, step, *block.shape[1:])
        values = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), dim=1)
        step //= 2
    return values.reshape(block.shape) * scale


def signed(block: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """|block|, (rows, groups, columns), with the signs that |keys|, int64 of (groups,), give its elements."""
    rows, _, columns = block.shape
    words = (columns + _WORD - 1) // _WORD
    row = torch.arange(rows, dtype=torch.int64, device=block.device).view(-1, 1, 1)
    word = torch.arange(words, dtype=torch.int64, device=block.device)
    bits = _mix(keys.to(block.device).view(1, -1, 1) + ((row << 32 | word) + 1) * _signed64(_WEYL))
    place = torch.arange(_WORD, dtype=torch.int64, device=block.device)
    minus = (bits.unsqueeze(-1) >> place & 1).reshape(rows, -1, words * _WORD)[:, :, :columns].bool()
    return torch.where(minus, -block, block)


def _parts(bucket: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views (rows, groups, columns) of a tensor: all groups of 64 rows at once, then the smaller ones."""
    flat = bucket.view(-1)
    full = flat.numel() // ROW_ELEMENTS
    big = full // GROUP_ROWS
    at = big * GROUP_ROWS * ROW_ELEMENTS
    if big:
        yield flat[:at].view(GROUP_ROWS, big, ROW_ELEMENTS)
    rows = GROUP_ROWS // 2
    while rows > 1:
        if full % GROUP_ROWS & rows:
            end = at + rows * ROW_ELEMENTS
            yield flat[at:end].view(rows, 1, ROW_ELEMENTS)
            at = end
        rows //= 2


def _keys(number: int, part: int, groups: int) -> torch.Tensor:
    places = torch.arange(groups, dtype=torch.int64, device="cpu")
    return _mix((places + (part << 32)) ^ int(_mix(torch.tensor(number, dtype=torch.int64, device="cpu"))))


def _half_scale(rows: int, more: int) -> float:
    """Powers of two whose product, for |more| 0 and 1, is 1 / rows."""
    return 1.0 / (1 << (rows.bit_length() - 1 + more) // 2)


def _mix(z: torch.Tensor) -> torch.Tensor:
    """splitmix64's, on 64 bits that torch takes for signed ones."""
    z = (z ^ _shifted(z, 30)) * _signed64(_MIX_1)
    z = (z ^ _shifted(z, 27)) * _signed64(_MIX_2)
    return z ^ _shifted(z, 31)


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, with zeros coming in."""
    return z >> by & ((1 << (64 - by)) - 1)


def _signed64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
