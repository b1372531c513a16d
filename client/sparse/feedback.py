# SPDX-License-Identifier: Apache-2.0
"""`Feedback`: which entries of a gradient are sent now, and the memory of those that are not.

What is not sent is added to the next gradient (error feedback), so that nothing is lost for good, only late. With
momentum correction (Deep Gradient Compression, Lin et al. 2018) the velocity is what is added up, as a momentum
optimizer would do on each rank before the average; use it with plain SGD after the average.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ultima.base.checks import check_number, check_whole_between
from ultima.base.errors import InvalidArgument
from ultima.base.reference import bfloat16_bits, bfloat16_values
from ultima.sparse import kernels
from ultima.sparse.codec import Sparse, check_size, checked
from ultima.sparse.kernels import Floats
from ultima.sparse.sample import RUN, Sample, limit_of, sample_of
from ultima.sparse.select import check_ratio, count_of, gradient_of

VALUES = ("float32", "float16", "bfloat16")
CHOICES = ("exact", "sampled")
WARM_RATIO = 0.25
"""Share of the entries that is sent in the first step of a warm-up."""

_FLOAT16_MAX = np.float32(65504)
_STATE_VERSION = 1


class Feedback:
    """The memory of one gradient tensor of `size` float32 elements on one rank. Not safe for several threads.

    ratio: share of the elements that is sent in a step.
    momentum: 0 for none; else the velocity's factor, below 1.
    values: in which precision values are sent: "float32", "float16", "bfloat16". What rounding takes away is kept.
    choose: "exact" sends the ratio * size largest magnitudes (of equal ones those with lower indices);
        "sampled" looks at some elements and goes over the gradient once, with the threshold that they suggest, and
        sends about as many: a sixteenth more or less, and twice as many at most. Where few elements are sent it is
        exact.
    warmup_steps: the first steps send more: from a quarter of the elements the share falls by the same factor each
        step until it is `ratio`.

    Raises InvalidArgument.
    """

    def __init__(
        self,
        size: int,
        ratio: float = 0.01,
        *,
        momentum: float = 0.0,
        values: str = "float32",
        choose: str = "exact",
        warmup_steps: int = 0,
    ) -> None:
        self._size = check_size(size)
        self._ratio = check_ratio(ratio)
        check_number(momentum, "momentum", 0, 1 - 2**-24)
        if values not in VALUES:
            raise InvalidArgument("values", values, ", ".join(VALUES))
        if choose not in CHOICES:
            raise InvalidArgument("choose", choose, ", ".join(CHOICES))
        check_whole_between(warmup_steps, "warmup_steps", 0, 2**31)
        self._values, self._choose, self._warmup, self._momentum = values, choose, warmup_steps, float(momentum)
        self._kept = np.zeros(size, np.float32)
        self._velocity = np.zeros(size, np.float32) if momentum else None
        self._step = 0

    @property
    def size(self) -> int:
        """Elements of the gradient."""
        return self._size

    @property
    def step(self) -> int:
        """Calls of `select` so far."""
        return self._step

    @property
    def ratio(self) -> float:
        """Share of the elements that is sent in a step, once the warm-up is over."""
        return self._ratio

    @property
    def warmup_steps(self) -> int:
        """Steps that send more than `ratio`."""
        return self._warmup

    @property
    def momentum(self) -> float:
        """The velocity's factor; 0 for none."""
        return self._momentum

    @property
    def choose(self) -> str:
        """How entries are chosen: "exact" or "sampled"."""
        return self._choose

    @property
    def residual(self) -> Floats:
        """What was not sent yet: a view of the memory, which is not to be written to."""
        view = self._kept.view()
        view.flags.writeable = False
        return view

    def ratio_at(self, step: int) -> float:
        """Share of the elements that step `step` (from 0) sends."""
        if step >= self._warmup or self._ratio >= WARM_RATIO:
            return self._ratio
        return float(WARM_RATIO * (self._ratio / WARM_RATIO) ** (step / self._warmup))

    def select(self, gradient: Any) -> Sparse:
        """Adds `gradient` (float32, `size` elements of any shape; an array or a CPU tensor) to the memory and takes out
        what is to be sent.

        NaN and Inf are sent at once: they show in the model, where they can be acted upon, and do not stay here.
        Raises InvalidArgument for another size or type.
        """
        given = gradient_of(gradient)
        if given.size != self._size:
            raise InvalidArgument("gradient", f"{given.size} elements", f"{self._size}, as told at the start")
        count = count_of(self.ratio_at(self._step), self._size)
        look = sample_of(self._size, count, self._step) if self._choose == "sampled" else None
        self._step += 1
        if self._ratio == 1:
            indices, values = np.arange(self._size, dtype=np.uint32), self._all(given)
        elif look is None:
            indices, values = self._exactly(given, count)
        else:
            above = limit_of(kernels.kth_largest(self._sample(given, look), look.rank)[0])
            room = min(self._size, 2 * count)
            indices, values = kernels.keep(
                self._kept, given, above, 0, room, velocity=self._velocity, momentum=self._momentum
            )
        return Sparse(indices, self._rounded(indices, values), self._size)

    def take_all(self, gradient: Any, out: Floats | None = None) -> Floats:
        """Adds `gradient` to the memory and takes out all of it, for a step that sends everything; in `out` (float32,
        `size` elements; it may be the gradient's own memory) or a new array. It counts for no warm-up.

        A velocity goes on: nothing of it was delayed, so this is what a momentum optimizer does. It begins anew only
        where an entry was sent late. The same holds for `select` of a memory whose ratio is 1. Raises InvalidArgument
        as `select`.
        """
        given = gradient_of(gradient)
        if given.size != self._size:
            raise InvalidArgument("gradient", f"{given.size} elements", f"{self._size}, as told at the start")
        return self._all(given, out)

    def put_back(self, indices: Any, values: Any) -> None:
        """Returns entries to the memory that were selected and not delivered.

        indices, values: as for `encode`. Raises InvalidArgument.
        """
        back = checked(indices, values, self._size)
        kernels.scatter_add(self._kept, back.indices, back.values)

    def settle(self, sent: Sparse, arrived: Sparse) -> None:
        """Keeps what a codec lost: the difference of what was selected, `sent`, and what receivers decode, `arrived`.
        Raises InvalidArgument if either is of another size."""
        for tensor, name in ((sent, "sent"), (arrived, "arrived")):
            if tensor.size != self._size:
                raise InvalidArgument(name, f"a tensor of {tensor.size} elements", f"{self._size} elements")
        kernels.scatter_add(self._kept, sent.indices, sent.values)
        kernels.scatter_add(self._kept, arrived.indices, -arrived.values)

    def reset(self) -> None:
        """Forgets all, the step included."""
        self._kept[:] = 0
        if self._velocity is not None:
            self._velocity[:] = 0
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, as plain numbers and copies of arrays, for a checkpoint of this rank."""
        return {
            "version": _STATE_VERSION,
            "size": self._size,
            "step": self._step,
            "residual": self._kept.copy(),
            "velocity": None if self._velocity is None else self._velocity.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave, of a Feedback of the same size; ratio, values and the choice may differ.
        A velocity is dropped by a memory without momentum, and begins at 0 in one whose state had none.

        Raises InvalidArgument naming the entry, and then changes nothing.
        """
        if state.get("version") != _STATE_VERSION:
            raise InvalidArgument("version", state.get("version"), str(_STATE_VERSION))
        if state.get("size") != self._size:
            raise InvalidArgument("size", state.get("size"), f"{self._size} elements")
        step = state.get("step")
        if not isinstance(step, int) or step < 0:
            raise InvalidArgument("step", step, "a number of steps, 0 or more")
        arrays: dict[str, Floats] = {}
        for name in ("residual", "velocity"):
            array = np.asarray(state.get(name) if state.get(name) is not None else np.zeros(self._size, np.float32))
            if array.shape != (self._size,) or array.dtype != np.float32:
                raise InvalidArgument(name, f"{array.dtype} of shape {array.shape}", f"{self._size} float32 elements")
            arrays[name] = array
        self._step = step
        self._kept[:] = arrays["residual"]
        if self._velocity is not None:
            self._velocity[:] = arrays["velocity"]

    # How

    def _add(self, given: Floats) -> None:
        if self._velocity is None:
            np.add(self._kept, given, out=self._kept)
        else:
            kernels.keep(
                self._kept, given, kernels.NOTHING_ABOVE, 0, 0, velocity=self._velocity, momentum=self._momentum
            )

    def _all(self, given: Floats, out: Floats | None = None) -> Floats:
        self._add(given)
        taken = np.empty(self._size, np.float32) if out is None else out
        taken[:] = self._kept
        self._kept[:] = 0
        return taken

    def _exactly(self, given: Floats, count: int) -> tuple[kernels.Indices, Floats]:
        self._add(given)
        if count == 0:
            return np.empty(0, np.uint32), np.empty(0, np.float32)
        above, ties = kernels.kth_largest(self._kept, count)
        indices, values = kernels.keep(self._kept, None, above, ties, count)
        if self._velocity is not None:
            self._velocity[indices] = 0
        return indices, values

    def _sample(self, given: Floats, look: Sample) -> Floats:
        """What the memory will hold at the places of `look`, once `given` is added."""
        fresh, kept = _at(given, look), _at(self._kept, look)
        if self._velocity is not None:
            factor = float(np.float32(self._momentum))
            fresh = (factor * _at(self._velocity, look).astype(np.float64) + fresh).astype(np.float32)
        with np.errstate(invalid="ignore"):
            return (kept + fresh).reshape(-1)

    def _rounded(self, indices: kernels.Indices, values: Floats) -> Floats:
        """As they are sent; the difference goes back into the memory."""
        if self._values == "float32":
            return values
        if self._values == "float16":
            near = np.clip(values, -_FLOAT16_MAX, _FLOAT16_MAX)  # NaN stays NaN
            sent = np.where(np.isinf(values), values, near.astype(np.float16).astype(np.float32))
        else:
            sent = bfloat16_values(bfloat16_bits(values))
        with np.errstate(invalid="ignore"):
            rest = values - sent
        self._kept[indices] = np.where(np.isfinite(rest), rest, np.float32(0))
        return sent.astype(np.float32, copy=False)


def _at(tensor: Floats, look: Sample) -> Floats:
    """A view: a run in each row."""
    rows = tensor[: look.runs * look.stride].reshape(look.runs, look.stride)
    return rows[:, look.start : look.start + RUN]
