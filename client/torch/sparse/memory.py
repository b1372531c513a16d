# SPDX-License-Identifier: Apache-2.0
"""What a state keeps of each parameter: what was not sent yet, by the parameter's name.

DDP cuts its buckets anew after the first backward pass, and another number of ranks or another limit cuts them
differently again. So nothing is kept by bucket, but by the names of parameters (`hooks/names.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ultima.base.errors import InvalidArgument
from ultima.sparse import Feedback, rounded
from ultima.sparse.select import count_of
from ultima.torch.hooks.names import ParameterNames
from ultima.torch.hooks.parts import Part
from ultima.torch.sparse.device import DeviceFeedback

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.uint32]

_STATE_VERSION = 1


@dataclass(slots=True)
class Chosen:
    """What is sent of a bucket: flat places in it, ascending, and their values; and from which memory each run is."""

    indices: Indices
    values: Floats
    expected: int
    """Entries that a rank gives about: the same number on all ranks."""
    _runs: list[tuple[Any, int, int]] = field(default_factory=list)
    """Memory, where its parameter begins in the bucket, and where its entries end."""

    def put_back(self, run: slice, values: Floats | None = None) -> None:
        """Returns entries to their memories, or |values| in their places, one for each of the run."""
        began = 0
        given = self.values[run] if values is None else values
        for memory, start, end in self._runs:
            low, high = max(began, run.start), min(end, run.stop)
            if low < high:
                where = self.indices[low:high] - np.uint32(start)
                what = given[low - run.start : high - run.start]
                fine = np.isfinite(what)  # what is not would stay for ever
                _return(memory, where[fine], what[fine])
            began = end


class Memories:
    """The memories of all parameters of one model on one rank. |rules|: a Feedback that says how they choose."""

    def __init__(self, rules: Feedback, dense_below: int, form: str) -> None:
        self._rules, self._dense_below, self._form = rules, dense_below, form
        self._names = ParameterNames()
        self._held: dict[str, Feedback | DeviceFeedback] = {}
        self._loaded: dict[str, dict[str, Any]] = {}
        self._steps: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}, "_loaded": self._states()}

    def name_parameters(self, model: torch.nn.Module) -> None:
        """Keeps what there is by the names that the parameters have in |model| from now on. Raises InvalidArgument when
        something was kept by number already."""
        self._names.take(model, bool(self._steps))

    def whole(self, part: Part) -> bool:
        """Whether a parameter is always sent whole: it has one dimension (a bias, a norm) or few elements."""
        return part.dims < 2 or part.size < self._dense_below

    def steps(self, parts: Sequence[Part]) -> int:
        """How often the least seen of these parameters was sent. Alike on all ranks."""
        return min((self._steps.get(self._names.of(part), 0) for part in parts), default=0)

    def choose(self, flat: torch.Tensor, parts: Sequence[Part]) -> Chosen:
        """Adds a bucket, flat float32 on any device, to the memories and takes out what is to be sent. The entries of a
        device are brought to the host in one copy."""
        places: list[Any] = []
        values: list[Any] = []
        runs, end, expected = [], 0, 0
        for part in parts:
            memory, gradient = self._memory(part, flat.device), flat[part.start : part.start + part.size]
            ratio = 1.0 if self.whole(part) else self._rules.ratio_at(memory.step)
            expected += count_of(ratio, part.size)
            if self.whole(part):
                where, what = _all_of(memory, gradient)
            elif isinstance(memory, Feedback):
                found = memory.select(gradient.numpy())
                where, what = found.indices, found.values
            else:
                where, what = memory.select(gradient)
            end += len(where)
            runs.append((memory, part.start, end))
            places.append(where + (np.uint32(part.start) if isinstance(where, np.ndarray) else part.start))
            values.append(what)
            self._stepped(part)
        chosen = Chosen(_joined(places, np.dtype(np.uint32)), _joined(values, np.dtype(np.float32)), expected, runs)
        self._round(chosen)
        return chosen

    def take_all(self, flat: torch.Tensor, parts: Sequence[Part]) -> None:
        """Adds what the memories hold to a bucket, in place, and empties them: for a step that goes dense."""
        for part in parts:
            # Nothing was ever kept where no memory is: the gradient is all there is to send.
            if self._rules.momentum or self._names.of(part) in self._held or self._names.of(part) in self._loaded:
                memory, gradient = self._memory(part, flat.device), flat[part.start : part.start + part.size]
                if isinstance(memory, Feedback):
                    memory.take_all(gradient.numpy(), gradient.numpy())
                else:
                    memory.take_all(gradient, gradient)
            self._stepped(part)

    def kept(self) -> dict[str, float]:
        """The sum of the magnitudes of what was not sent yet, by name."""
        told: dict[str, float] = {}
        for name, memory in self._held.items():
            residual: Any = memory.residual
            told[name] = float(abs(residual).sum())
        return told

    def state_dict(self) -> dict[str, Any]:
        """Names, numbers and tensors alone, so that `torch.load` takes it with weights_only."""
        memories = {
            name: {key: _as_tensor(value) for key, value in state.items()} for name, state in self._states().items()
        }
        return {"version": _STATE_VERSION, "named": self._names.given, "steps": dict(self._steps), "memories": memories}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave. Raises InvalidArgument naming the entry, and then changes nothing."""
        if state.get("version") != _STATE_VERSION:
            raise InvalidArgument("version", state.get("version"), str(_STATE_VERSION))
        if self._names.given and not state.get("named"):
            raise InvalidArgument("named", state.get("named"), "a state with names, as this one has")
        steps, memories = state.get("steps"), state.get("memories")
        if not isinstance(steps, dict) or not all(type(step) is int and step >= 0 for step in steps.values()):
            raise InvalidArgument("steps", steps, "a number of steps for each name")
        if not isinstance(memories, dict):
            raise InvalidArgument("memories", type(memories).__name__, "the state of a memory for each name")
        loaded = {name: {key: _as_array(value) for key, value in each.items()} for name, each in memories.items()}
        for each in loaded.values():
            Feedback(each["size"]).load_state_dict(each)
        for name, memory in self._held.items():
            if name in loaded and loaded[name]["size"] != memory.size:
                raise InvalidArgument(name, f"{loaded[name]['size']} elements", f"{memory.size}, as in the model")
        self._names.given = bool(state.get("named"))
        self._held, self._loaded, self._steps = {}, loaded, dict(steps)

    # How

    def _states(self) -> dict[str, dict[str, Any]]:
        return {**self._loaded, **{name: memory.state_dict() for name, memory in self._held.items()}}

    def _memory(self, part: Part, device: torch.device) -> Any:
        name = self._names.of(part)
        if name not in self._held:
            made = self._made(part.size, device)
            if name in self._loaded:
                if self._loaded[name]["size"] != part.size:
                    raise InvalidArgument(name, f"{self._loaded[name]['size']} elements", f"{part.size}, as loaded")
                made.load_state_dict(self._loaded.pop(name))
            self._held[name] = made
        return self._held[name]

    def _made(self, size: int, device: torch.device) -> Feedback | DeviceFeedback:
        if device.type != "cpu":
            return DeviceFeedback(size, device, self._rules)
        rules = self._rules
        return Feedback(
            size, rules.ratio, momentum=rules.momentum, choose=rules.choose, warmup_steps=rules.warmup_steps
        )

    def _stepped(self, part: Part) -> None:
        name = self._names.of(part)
        self._steps[name] = self._steps.get(name, 0) + 1

    def _round(self, chosen: Chosen) -> None:
        """Values as they will arrive; the difference stays here."""
        if self._form != "float32" and chosen.values.size:
            sent = rounded(chosen.values, self._form)
            with np.errstate(invalid="ignore"):
                rest = chosen.values - sent
            chosen.put_back(slice(0, rest.size), rest)
            chosen.values = sent


def _all_of(memory: Any, gradient: torch.Tensor) -> tuple[Any, Any]:
    if isinstance(memory, Feedback):
        return np.arange(memory.size, dtype=np.uint32), memory.take_all(gradient.numpy())
    taken = torch.empty_like(gradient)
    memory.take_all(gradient, taken)
    return torch.arange(memory.size, dtype=torch.int64, device=gradient.device), taken


def _joined(runs: list[Any], kind: Any) -> Any:
    if runs and isinstance(runs[0], torch.Tensor):
        return torch.cat(runs).cpu().numpy().astype(kind, copy=False)
    return np.concatenate(runs) if runs else np.empty(0, kind)


def _return(memory: Any, where: Indices, what: Floats) -> None:
    if isinstance(memory, Feedback):
        memory.put_back(where, what)
    elif where.size:
        device = memory.residual.device
        memory.put_back(torch.from_numpy(where.astype(np.int64)).to(device), torch.from_numpy(what).to(device))


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _as_array(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value
