# SPDX-License-Identifier: Apache-2.0
"""The sparse allreduce of a Job: ranks give indices and values, and all get the dense sum or average."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ultima.api.handle import Handle
from ultima.base.buffers import AnyArray, as_bytes, elements
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument, Unsupported
from ultima.base.receipt import Receipt
from ultima.base.sparse_form import Floats, Indices, SparseCall
from ultima.base.words import ADAPTIVE, AGREE, COLLECTIVES, DOWNS, FLOAT32, FORMS, GROUP_MAX, MODES, OPS, RETURN
from ultima.session.op import Layout, Op

if TYPE_CHECKING:
    from ultima.api.connection import Connection

_OPS = ("avg", "sum")
_HINT_MAX = 2**32 - 1


class SparseReduce:
    """The part of a Job that is told here; `job.Job` is the whole."""

    _connection: Connection

    def allreduce_sparse(
        self,
        indices: Any,
        values: Any,
        out: Any,
        *,
        op: str = "avg",
        group: int = 1,
        hint: int | None = None,
        form: str = "float32",
        down: str | None = None,
        deadline: Duration | None = None,
        mode: str | None = None,
        agree: bool = False,
        returns: Callable[[Indices, Floats], None] | None = None,
    ) -> Receipt:
        """Reduces sparse contributions over all ranks into `out`, which becomes dense and the same on all ranks.

        indices: which elements this rank gives, in ascending order and each once; a one-dimensional array of uint32,
            int32 or int64, perhaps empty. Ranks may give different ones, and differently many.
        values: float32, one for each index, or `group` for each; of any shape with that many elements.
        out: the tensor: float32, C-contiguous, a multiple of `group` elements, as many on all ranks. What stood in it
            does not matter. An array from `empty` is not copied.
        op: "avg" (element by element over the ranks that arrived: who has no entry there counts with 0) or "sum".
        group: elements that share an index, 1 to 256: index i names the elements from i * group on. Embedding rows.
        hint: how many entries a rank gives about, the same number on all ranks: ops with like hints take like times, by
            which the engine bounds them.
        form: how values travel: "float32", "float16", "bfloat16" or "float8" (e4m3, with one scale for all values of a
            rank). `ultima.sparse.rounded` says what arrives of a value.
        down: how sums come back: None for the same form (of float8 it is float16), or "int8": in blocks of 64 values
            that share a scale, rounded at random as `allreduce(wire="int8")` rounds its results. NaN and infinity come
            back as NaN, and blocks below 2^-100 as 0. All ranks have the same bits. A job of one host does not round.
        deadline, mode, agree: as for allreduce.
        returns: is called with the entries that the result does not hold, if there are some, before this returns: with
            indices, and flat values. `Feedback.put_back` takes them, so that they are sent again later. See
            `Handle.returned`.

        Each entry is in the result that its rank gets, or is returned: where it came too late for the owner of its
        range, it is returned, and where no answer came of that range, it stands in `out`. After an exception of the op
        all entries are returned, though other ranks may have some in their results.

        The receipt counts the bytes of the dense tensor: a range of which a packet said that nothing but zeros is in
        it has come. Elements that never came hold the own entries of this host's ranks (summed or averaged), or 0.
        Raises InvalidArgument, Unsupported or ResourceExhausted (before anything is sent), Desync (also for another
        `group`, `form`, `down` or `hint`), and as allreduce. After an exception an array outside the arena is
        untouched.
        """
        handle = self.allreduce_sparse_async(
            indices, values, out, op=op, group=group, hint=hint, form=form, down=down, deadline=deadline, mode=mode,
            agree=agree,
        )  # fmt: skip
        try:
            return handle.wait()
        finally:
            if returns is not None:
                back = handle.returned
                if back[0].size:
                    returns(*back)

    def allreduce_sparse_async(
        self,
        indices: Any,
        values: Any,
        out: Any,
        *,
        op: str = "avg",
        group: int = 1,
        hint: int | None = None,
        form: str = "float32",
        down: str | None = None,
        deadline: Duration | None = None,
        mode: str | None = None,
        agree: bool = False,
    ) -> Handle:
        """Starts what `allreduce_sparse` does; see `Job.allreduce_async`. `indices` and `values` are copied, so they
        are free when this returns. `Handle.returned` says which entries the result does not hold."""
        now = time.monotonic_ns()
        if op not in _OPS:
            raise InvalidArgument("op", op, "one of " + ", ".join(_OPS))
        if mode is not None and mode not in MODES:
            raise InvalidArgument("mode", mode, "one of " + ", ".join(MODES))
        if agree and mode == "best_effort":
            raise InvalidArgument("agree", agree, "False in mode 'best_effort', where nothing is sent again")
        if form not in FORMS:
            raise InvalidArgument("form", form, "one of " + ", ".join(FORMS))
        if down is not None and down not in DOWNS:
            raise InvalidArgument("down", down, "None or one of " + ", ".join(DOWNS))
        _check_whole("group", group, 1, GROUP_MAX)
        _check_whole("hint", 0 if hint is None else hint, 0, _HINT_MAX)
        target, kind = elements(out, None, "out", writable=True)
        if kind is not FLOAT32:
            raise InvalidArgument("out", f"an array of {kind.name}", "float32")
        if target.size % group:
            raise InvalidArgument("out", f"{target.size} elements", f"a multiple of group, {group}")
        given, entries = _contribution(indices, values, group, target.size // group)
        lossy = self._connection.settings.mode
        if mode is None:
            mode = "bounded" if lossy == "best_effort" and agree else lossy
        if not self._connection.session.sparse:
            text = "sparse contributions are summed only by algorithm 'tar', without a policy, in jobs that are not "
            text += "deterministic; ranks of other jobs can send containers (ultima.sparse.exchange)"
            raise Unsupported("allreduce_sparse", text)
        if down is not None:
            _check_known(self._connection, down)
        call = SparseCall(entries, group, FORMS[form], hint or 0, 0 if down is None else DOWNS[down])
        layout = Layout(COLLECTIVES["allreduce_sparse"], target.nbytes, apart=True, sparse=call)
        adaptive = deadline is None and self._connection.settings.adaptive
        times = self._connection.times(now, deadline)
        flags = RETURN | (AGREE if agree else 0) | (ADAPTIVE if adaptive else 0)
        return self._launch(Op(given, target, out, kind, OPS[op], MODES[mode], times=times, flags=flags, layout=layout))

    def _launch(self, request: Op) -> Handle:
        raise NotImplementedError


def _check_whole(field: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgument(field, value, f"a whole number, {least} to {most}")


def _check_known(connection: Connection, down: str) -> None:
    """Raises Unsupported, alike on all ranks, if the daemon of a host does not know this form of answers."""
    lacking = next((host for host in connection.session.hosts if host.ranks and f"down_{down}" not in host.wires), None)
    if lacking is not None:
        text = f"down = {down!r}: allowed: None; host {lacking.index} ({lacking.address}) knows "
        raise Unsupported("allreduce_sparse", text + (", ".join(lacking.wires) or "none"))


def _contribution(indices: Any, values: Any, group: int, size: int) -> tuple[AnyArray, int]:
    """The bytes that the engine reads: indices, then values, in whole words of 8 bytes; and how many entries. Raises
    InvalidArgument. `size`: how many indices there are.
    """
    names = _indices(indices)
    if names.size > size:
        raise InvalidArgument("indices", f"{names.size} entries", f"as many as out has indices at most, {size}")
    given, kind = elements(values, None, "values", writable=False)
    if kind is not FLOAT32:
        raise InvalidArgument("values", f"an array of {kind.name}", "float32")
    if given.size != names.size * group:
        raise InvalidArgument("values", f"{given.size} elements", f"{names.size * group}: {group} for each index")
    if names.size:
        falls = np.flatnonzero(names[1:] <= names[:-1])
        if falls.size:
            at = int(falls[0])
            shown = f"{names[at + 1]} after {names[at]} at place {at + 1}"
            raise InvalidArgument("indices", shown, "ascending, each once")
        if int(names[0]) < 0 or int(names[-1]) >= size:
            wrong = names[0] if int(names[0]) < 0 else names[-1]
            raise InvalidArgument("indices", int(wrong), f"0 to {size - 1}")
    split = 4 * names.size
    packed = np.zeros(max(8, -(-(split + given.nbytes) // 8) * 8), np.uint8)
    packed[:split].view(np.uint32)[:] = names
    packed[split : split + given.nbytes] = as_bytes(given)
    return packed, names.size


def _indices(indices: Any) -> AnyArray:
    """A one-dimensional array of whole numbers of 32 or 64 bits."""
    array = indices.numpy() if hasattr(indices, "detach") else np.asarray(indices)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.uint32)
    if array.ndim != 1 or array.dtype not in (np.uint32, np.int32, np.int64):
        shown = f"{array.ndim} dimensions of {array.dtype}"
        raise InvalidArgument("indices", shown, "one dimension of uint32, int32 or int64")
    return array
