# SPDX-License-Identifier: Apache-2.0
"""From whatever the caller brings to a contiguous numpy array over the same memory, or a clear refusal. Never copies.

Taken are numpy arrays, anything with a buffer (array.array, memoryview, bytearray with a dtype), anything with
`__array_interface__` or `__dlpack__`, and torch's CPU tensors, whose bfloat16 numpy cannot name.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ultima.base.errors import InvalidArgument
from ultima.base.words import BFLOAT16, BYTES, DTYPE_BY_NUMPY_NUM, DTYPES, DType

AnyArray = npt.NDArray[Any]

_DTYPE_ALLOWED = "one of " + ", ".join(DTYPES)
_MEMORY_ALLOWED = "host memory: a numpy array, a buffer, __array_interface__, __dlpack__ or a CPU tensor"
_BYTE_KINDS = frozenset({"uint8", "int8"})
_byte_at, _address = ctypes.c_char.from_buffer, ctypes.addressof


def dtype_named(dtype: object) -> DType:
    """The element type that a name ("bfloat16") or a dtype of numpy or torch means. Raises InvalidArgument."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    name = str(dtype).removeprefix("torch.")
    if name in DTYPES:
        return DTYPES[name]
    try:
        kind = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        raise InvalidArgument("dtype", dtype, _DTYPE_ALLOWED) from None
    if kind.isnative and kind.num in DTYPE_BY_NUMPY_NUM:
        return DTYPE_BY_NUMPY_NUM[kind.num]
    raise InvalidArgument("dtype", dtype, _DTYPE_ALLOWED)


def elements(obj: object, dtype: DType | None, field: str, *, writable: bool) -> tuple[AnyArray, DType]:
    """A C-contiguous array over the memory of `obj`, and the type of its elements (`dtype` if given).

    Raises InvalidArgument naming `field` when `obj` has no such memory, is not contiguous, is read-only though
    `writable` is asked, or holds other elements than `dtype`.
    """
    array = obj if type(obj) is np.ndarray else _as_array(obj, field)
    held = array.dtype
    kind = DTYPE_BY_NUMPY_NUM.get(held.num) if held.isnative else None
    if kind is None or dtype is not None:
        kind = _kind(obj, array, dtype, field)
    _check_memory(obj, array, field, writable)
    return array, kind


def movable(obj: object, field: str, *, writable: bool) -> tuple[AnyArray, DType]:
    """As `elements`, for what is moved and not reduced: elements of any other type of fixed size count as
    BYTES."""
    array = obj if type(obj) is np.ndarray else _as_array(obj, field, any_type=True)
    held = array.dtype
    bfloat16 = held.name == BFLOAT16.name or str(getattr(obj, "dtype", "")) == "torch.bfloat16"
    if bfloat16 or (held.isnative and held.num in DTYPE_BY_NUMPY_NUM):
        return elements(obj, None, field, writable=writable)
    if held.hasobject or not held.itemsize:
        raise InvalidArgument(field, f"an array of {held}", "elements of a fixed size that hold no references")
    _check_memory(obj, array, field, writable)
    return array, BYTES


def address_of(array: AnyArray) -> int:
    """Where a C-contiguous array begins. Not by `array.ctypes` as a rule, which makes several objects of Python's."""
    try:
        return _address(_byte_at(array))  # type: ignore[arg-type]  # its stubs do not call it a buffer
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a type that buffers have no word for
        return array.ctypes.data


def as_bytes(array: AnyArray) -> npt.NDArray[np.uint8]:
    """The same memory as flat bytes."""
    return array.reshape(-1).view(np.uint8)


def _check_memory(obj: object, array: AnyArray, field: str, writable: bool) -> None:
    flags = array.flags
    if not flags.c_contiguous:
        raise InvalidArgument(
            field, f"an array of shape {array.shape} with strides {array.strides}", "C-contiguous memory"
        )
    if writable and not flags.writeable:
        raise InvalidArgument(field, f"a read-only {type(obj).__name__}", "writable memory, or a writable out=")


def _kind(obj: object, array: AnyArray, dtype: DType | None, field: str) -> DType:
    held = array.dtype
    if dtype is None:
        # An extension type for numpy, or a torch tensor that was viewed as integers on its way here.
        if held.name == BFLOAT16.name or str(getattr(obj, "dtype", "")) == "torch.bfloat16":
            return BFLOAT16
        hint = "; bytes need a dtype=" if held.name in _BYTE_KINDS else ""
        hint = "; uint16 holding bfloat16 needs dtype='bfloat16'" if held.name == "uint16" else hint
        raise InvalidArgument(
            field, f"an array of {held}", f"elements of {', '.join(DTYPES)} in native byte order{hint}"
        )
    if held.name in _BYTE_KINDS:
        if array.nbytes % dtype.itemsize:
            raise InvalidArgument(
                field, f"{array.nbytes} bytes", f"whole elements of {dtype.itemsize} bytes ({dtype.name})"
            )
        return dtype
    same = held.isnative and DTYPE_BY_NUMPY_NUM.get(held.num) is dtype
    if same or held.name == dtype.name or (dtype is BFLOAT16 and held.name in ("uint16", "int16")):
        return dtype
    raise InvalidArgument("dtype", dtype.name, f"the {held} that {field} holds")


def _as_array(obj: object, field: str, *, any_type: bool = False) -> AnyArray:
    if isinstance(obj, np.ndarray):
        return np.asarray(obj)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return _of_tensor(obj, torch, field, any_type)
    try:
        return np.asarray(memoryview(obj))  # type: ignore[arg-type]
    except (TypeError, ValueError, NotImplementedError):
        pass
    try:
        if hasattr(obj, "__array_interface__"):
            return np.asarray(obj)
        if hasattr(obj, "__dlpack__"):
            return np.from_dlpack(obj)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise InvalidArgument(field, f"a {type(obj).__name__} ({error})", _MEMORY_ALLOWED) from error
    raise InvalidArgument(field, f"a {type(obj).__name__}", _MEMORY_ALLOWED)


def _of_tensor(tensor: Any, torch: Any, field: str, any_type: bool) -> AnyArray:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise InvalidArgument(field, f"a {tensor.layout} tensor on {tensor.device}", "a dense tensor on the CPU")
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        raise InvalidArgument(field, "a lazily conjugated or negated tensor", "a tensor with its own memory")
    try:
        array: AnyArray = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    except (TypeError, RuntimeError) as error:
        if any_type and plain.is_contiguous():  # a type that numpy does not know
            return plain.reshape(-1).view(torch.uint8).numpy()  # type: ignore[no-any-return]
        raise InvalidArgument(
            field, f"a tensor of {plain.dtype} ({error})", f"elements of {', '.join(DTYPES)}"
        ) from error
    return array
