# SPDX-License-Identifier: Apache-2.0
"""From what a caller of allreduce says to an op, or a refusal that names the argument."""

from __future__ import annotations

from typing import Any

from ultima.api.connection import Connection
from ultima.base.buffers import AnyArray, address_of, dtype_named, elements
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument
from ultima.base.words import ADAPTIVE, AGREE, INTEGERS, MODES, OPS, RELIABLE_ONLY, DType
from ultima.session.op import Op

_OPS_ALLOWED = "one of " + ", ".join(OPS)
_MODES_ALLOWED = "one of " + ", ".join(MODES)


def allreduce_op(
    connection: Connection,
    now: int,
    array: Any,
    op: str,
    *,
    deadline: Duration | None,
    out: Any = None,
    mode: str | None = None,
    dtype: Any = None,
    agree: bool = False,
    reads_only: bool = False,
) -> Op:
    """An all-reduce that is ready to be started, after all checks that need no daemon. Raises InvalidArgument."""
    redop = OPS.get(op)
    if redop is None:
        raise InvalidArgument("op", op, _OPS_ALLOWED)
    if mode is not None and mode not in MODES:
        raise InvalidArgument("mode", mode, _MODES_ALLOWED)
    if agree and mode == "best_effort":
        raise InvalidArgument("agree", agree, "False in mode 'best_effort', where nothing is sent again")
    if op in RELIABLE_ONLY and mode not in (None, "reliable"):
        raise InvalidArgument("mode", mode, f"'reliable' for op {op!r}: it is wrong without every rank")
    asked = None if dtype is None else dtype_named(dtype)
    source, kind = elements(array, asked, "array", writable=out is None and not reads_only)
    if mode is None:
        mode = _mode_unsaid(op, kind, agree, connection.settings.mode)
    if mode == "best_effort" and kind in INTEGERS:
        raise InvalidArgument("mode", mode, f"'bounded' or 'reliable' for {kind.name}: counts must not lose a part")
    target = source if out is None or out is array else _target(source, kind, out, asked)
    adaptive = deadline is None and connection.settings.adaptive
    return Op(
        source,
        target,
        array if out is None else out,
        kind,
        redop,
        MODES[mode],
        times=connection.times(now, deadline),
        flags=(AGREE if agree else 0) | (ADAPTIVE if adaptive else 0),
    )


def _mode_unsaid(op: str, kind: DType, agree: bool, lossy: str) -> str:
    """The mode of a call that names none; |lossy| is ULTIMA_MODE, which is about what may lose a part."""
    if op in RELIABLE_ONLY:
        return "reliable"
    return "bounded" if lossy == "best_effort" and (agree or kind in INTEGERS) else lossy


def _target(source: AnyArray, kind: DType, out: Any, asked: DType | None) -> AnyArray:
    target, out_kind = elements(out, asked, "out", writable=True)
    if out_kind is not kind:
        raise InvalidArgument("out", f"an array of {out_kind.name}", f"{kind.name}, as array")
    if target.nbytes != source.nbytes:
        held = target.nbytes // kind.itemsize
        raise InvalidArgument("out", f"{held} elements", f"{source.nbytes // kind.itemsize}, as array")
    mine, its = address_of(source), address_of(target)
    if mine == its:
        return source if source.flags.writeable else target
    if mine < its + target.nbytes and its < mine + source.nbytes:
        raise InvalidArgument("out", "memory that overlaps array", "array itself, or memory apart from it")
    return target
