# SPDX-License-Identifier: Apache-2.0
"""Which tensors Ultima takes, and how they become the flat memory that it works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ultima.base.errors import InvalidArgument
from ultima.torch.backend.accelerator import device_of

PIECE_BYTES_MAX = 64 << 20
"""Bytes of one op of a process group. A larger tensor goes in several ops, so that the arena need not hold it whole.
The same on every rank, or they would desync."""

FLOATS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
INTEGERS = frozenset({torch.int32, torch.int64})
COMPLEX = frozenset({torch.complex64, torch.complex128})
GLOO_ONLY = frozenset({torch.uint8, torch.int8, torch.bool})

_OPS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "avg"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.PRODUCT, "prod"),
)

# What must be copied when a collective has ended: (target, source).
Copies = list[tuple[torch.Tensor, torch.Tensor]]


def op_named(reduce_op: Any) -> str | None:
    """Ultima's word for an operation of torch's; None for those that it has none for. By comparison, for the hash of
    such an operation takes longer than all of them."""
    for op, name in _OPS:
        if reduce_op == op:
            return name
    return None


def reducible(tensor: torch.Tensor, op: str) -> bool:
    """Whether Ultima reduces such a tensor by such an operation. Complex numbers go as pairs of real ones."""
    kind = tensor.dtype
    return _is_dense(tensor) and (kind in FLOATS or kind in INTEGERS or (kind in COMPLEX and op in ("sum", "avg")))


def check_reducible(tensors: Iterable[torch.Tensor]) -> None:
    """Raises InvalidArgument, before anything is sent, for elements that neither Ultima nor Gloo reduces."""
    for tensor in tensors:
        if tensor.dtype not in FLOATS | INTEGERS | GLOO_ONLY:
            allowed = ", ".join(sorted(map(str, FLOATS | INTEGERS | GLOO_ONLY)))
            raise InvalidArgument("tensor.dtype", tensor.dtype, allowed)


def dense(*tensors: torch.Tensor) -> bool:
    """Whether these lie in this host's memory, every element in its place."""
    return all(map(_is_dense, tensors))


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in one run: the tensor's own memory where it is contiguous, else a copy."""
    return _run(tensor.detach().contiguous())


def packed(tensor: torch.Tensor, copies: Copies) -> torch.Tensor:
    """Where a result may be written that belongs into |tensor|: its own memory, or memory that |copies| names. Raises
    as `check_written`.
    """
    target = tensor.detach()
    if target.is_contiguous():
        return _run(target)
    check_written(target)
    run = target.new_empty(target.shape)
    copies.append((target, run))
    return _run(run)


def packed_in_place(tensor: torch.Tensor, copies: Copies) -> torch.Tensor:
    """As `packed`, filled with what |tensor| holds."""
    target = tensor.detach()
    if target.is_contiguous():
        return _run(target)
    check_written(target)
    run = target.contiguous()
    copies.append((target, run))
    return _run(run)


def plain(given: Any, copies: Copies | None, on_host: bool = False) -> Any:
    """|given|, a tensor or lists of them, for a library that takes memory as it lies: where elements do not lie in
    their order, or are kept as other numbers than they are, a copy; if |on_host|, also where they lie on a device, once
    its current stream has come so far. With |copies| the library writes, and they name what must go back. Raises as
    `check_written`.
    """
    if isinstance(given, (list, tuple)):
        return [plain(each, copies, on_host) for each in given]
    if not isinstance(given, torch.Tensor) or given.layout is not torch.strided:
        return given
    target = given.detach()
    run = target.resolve_conj().resolve_neg().contiguous()
    if on_host and not run.is_cpu:
        run = run.cpu()
    if run is target:
        return given
    if copies is not None:
        check_written(target)
        copies.append((target, run))
    return run


def check_written(*tensors: torch.Tensor) -> None:
    """Raises InvalidArgument, before anything is sent, for a tensor that a result cannot be written into: several of
    its elements are the same memory, as after `expand`.
    """
    for tensor in tensors:
        if not tensor.is_contiguous() and _overlaps(tensor):
            kind = f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}, some of whose elements"
            raise InvalidArgument("tensor", f"{kind} share memory", "memory for each element, as clone() gives it")


def _overlaps(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                break
            reach += stride * (size - 1)
    else:
        return False
    if not stride:
        return True
    places = torch.zeros(1, dtype=torch.int64, device="cpu")  # strange strides: they may meet
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        places = (places.view(-1, 1) + torch.arange(size, dtype=torch.int64, device="cpu") * stride).view(-1)
    return not bool(places.sort().values.diff().all())


def _run(tensor: torch.Tensor) -> torch.Tensor:
    """Not `view(-1)`: that keeps the stride of a single element, and then it cannot be seen as bytes."""
    return tensor if tensor.dim() == 1 and tensor.stride(0) == 1 else tensor.as_strided((tensor.numel(),), (1,))


def memory_of(run: torch.Tensor) -> Any:
    """What Ultima is to be given of memory of one dimension: numpy's view of it, where numpy has one."""
    return run if run.dtype is torch.bfloat16 or run.is_neg() else run.numpy()


def pieces(run: torch.Tensor, bucket_bytes_max: int) -> Sequence[torch.Tensor]:
    """A tensor of one dimension in runs that a bucket holds; at least one, if only of nothing."""
    most = min(bucket_bytes_max, PIECE_BYTES_MAX)
    return (run,) if run.nbytes <= most else torch.split(run, max(1, most // run.element_size()))


def copier(copies: Copies) -> Callable[[], None]:
    def copy() -> None:
        for target, source in copies:
            target.copy_(source)
            for tensor in (target, source):
                if (device := device_of(tensor)) is not None:
                    device.used_here(tensor)

    return copy
