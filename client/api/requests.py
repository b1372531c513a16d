# SPDX-License-Identifier: Apache-2.0
"""From what a caller of allreduce says to an op, or a refusal that names the argument."""

from __future__ import annotations

import operator
from typing import Any

from ultima.api.connection import Connection
from ultima.base.buffers import AnyArray, address_of, dtype_named, elements
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument, Unsupported
from ultima.base.quant_form import QuantCall, forms_of
from ultima.base.words import (
    ADAPTIVE,
    AGREE,
    COLLECTIVES,
    FLOAT32,
    GIFT_RESIDUAL,
    INTEGERS,
    MODES,
    OPS,
    RELIABLE_ONLY,
    WEIGHT_MAX,
    WEIGHTED,
    WIRES,
    DType,
)
from ultima.session.op import Layout, Op

_OPS_ALLOWED = "one of " + ", ".join(OPS)
_MODES_ALLOWED = "one of " + ", ".join(MODES)
_ROUNDINGS = ("random", "nearest")
_WIRE_OPS = ("avg", "sum")
_WEIGHING = ("tar", "ps")
_DENSE, _QUANTISED = COLLECTIVES["allreduce"], COLLECTIVES["allreduce_quant"]


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
    wire: str | None = None,
    answer: str | None = None,
    rounding: str | None = None,
    feedback: Any = None,
    weight: int | None = None,
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
    flags = (AGREE if agree else 0) | (ADAPTIVE if adaptive else 0)
    if weight is not None:
        weight = _weight(connection, kind, op, weight)
        flags |= WEIGHTED
    quant = None
    if wire is not None or answer is not None or rounding is not None or feedback is not None:
        quant = _quantised(connection, source, target, kind, op, wire, answer, rounding, feedback)
    return Op(
        source,
        target,
        array if out is None else out,
        kind,
        redop,
        MODES[mode],
        times=connection.times(now, deadline),
        flags=flags,
        layout=Layout(_DENSE if quant is None else _QUANTISED, source.nbytes, quant=quant, weight=weight),
    )


def _weight(connection: Connection, kind: DType, op: str, weight: int) -> int:
    """The weight of what an allreduce gives, after all checks. Raises InvalidArgument and Unsupported."""
    allowed = f"a whole number from 0 to {WEIGHT_MAX}"
    try:
        number = operator.index(weight)
    except TypeError:
        raise InvalidArgument("weight", weight, allowed) from None
    if not 0 <= number <= WEIGHT_MAX or isinstance(weight, bool):
        raise InvalidArgument("weight", weight, allowed)
    if op != "avg":
        raise InvalidArgument("op", op, "'avg' with a weight")
    if kind in INTEGERS:
        raise InvalidArgument("dtype", kind.name, "one of floats with a weight")
    algorithm = connection.session.options.get("algorithm", "tar")
    if algorithm not in _WEIGHING:
        text = f"only the algorithms {' and '.join(_WEIGHING)} know what is in each sum; this job has {algorithm!r}"
        raise Unsupported("allreduce with weight", text)
    return number


def _quantised(
    connection: Connection,
    source: AnyArray,
    target: AnyArray,
    kind: DType,
    op: str,
    wire: str | None,
    answer: str | None,
    rounding: str | None,
    feedback: Any,
) -> QuantCall:
    """How an allreduce travels that names a `wire`, or what goes with one. Raises InvalidArgument and Unsupported."""
    if wire is None:
        beside = {"answer": answer, "rounding": rounding, "feedback": None if feedback is None else "given"}
        field, said = next((field, value) for field, value in beside.items() if value is not None)
        raise InvalidArgument(field, said, "none without wire")
    if wire not in WIRES:
        more = "; bfloat16 arrays travel as they are, and int16 takes the same bytes"
        raise InvalidArgument("wire", wire, "one of " + ", ".join(WIRES) + more)
    finer = [form for form, code in WIRES.items() if code <= WIRES[wire]]
    if answer is not None and answer not in finer:
        raise InvalidArgument("answer", answer, f"as fine as wire, or finer: one of {', '.join(finer)}")
    if rounding not in (None, *_ROUNDINGS):
        raise InvalidArgument("rounding", rounding, "one of " + ", ".join(_ROUNDINGS))
    if kind is not FLOAT32:
        raise InvalidArgument("dtype", kind.name, "float32 with a wire form")
    if op not in _WIRE_OPS:
        raise InvalidArgument("op", op, f"one of {', '.join(_WIRE_OPS)} with a wire form")
    _check_known(connection, {"wire": wire, "answer": answer or wire})
    gifts = connection.policy not in ("none", "coded")
    if not (connection.session.sparse or gifts):
        text = "forms of few bits are summed only by algorithm 'tar', in jobs that are neither coded nor "
        raise Unsupported("allreduce with wire", text + "deterministic: elsewhere sums would be rounded at every hop")
    residual = None if feedback is None else _residual(connection, source, target, feedback)
    if residual is not None and gifts:
        _check_gift_residual(connection, residual)
    nearest = rounding == "nearest" or (rounding is None and residual is not None)
    return QuantCall(forms_of(wire, answer or wire), nearest, residual)


def _check_known(connection: Connection, asked: dict[str, str]) -> None:
    """Raises Unsupported, alike on all ranks, if the daemon of a host does not know a form."""
    hosts = [host for host in connection.session.hosts if host.ranks]
    for field, form in asked.items():
        lacking = next((host for host in hosts if form not in host.wires), None)
        if lacking is not None:
            known = [each for each in WIRES if all(each in host.wires for host in hosts)]
            raise Unsupported(
                "allreduce with wire",
                f"{field} = {form!r}: allowed: {', '.join(known) or 'none'}, which all daemons of this job know; "
                f"host {lacking.index} ({lacking.address}) knows {', '.join(lacking.wires) or 'none'}",
            )


def _residual(connection: Connection, source: AnyArray, target: AnyArray, feedback: Any) -> AnyArray:
    left, kind = elements(feedback, None, "feedback", writable=True)
    if kind is not FLOAT32 or left.nbytes != source.nbytes:
        shown = f"{left.nbytes // kind.itemsize} elements of {kind.name}"
        raise InvalidArgument("feedback", shown, f"{source.nbytes // 4} of float32, as array")
    if left.nbytes and connection.session.arena.offset_of(address_of(left), left.nbytes) is None:
        raise InvalidArgument("feedback", "memory of the program", "an array from Job.empty")
    mine = address_of(left)
    for array in (source, target):
        if mine < address_of(array) + array.nbytes and address_of(array) < mine + left.nbytes:
            raise InvalidArgument("feedback", "memory that overlaps array or out", "memory apart from both")
    return left


def _check_gift_residual(connection: Connection, residual: AnyArray) -> None:
    """In a job with a policy: the submission has fewer bits for where it lies (`core/base/submission.h`)."""
    at = connection.session.arena.offset_of(address_of(residual), residual.nbytes)
    if at is None or residual.nbytes == 0:
        return
    if at % GIFT_RESIDUAL:
        raise InvalidArgument("feedback", "a part of an array", "a whole array from Job.empty in a job with a policy")
    if at // GIFT_RESIDUAL >= 2**32 - 1:
        most = (2**32 - 1) * GIFT_RESIDUAL
        raise InvalidArgument("feedback", f"memory at byte {at} of the arena", f"below {most} in a job with a policy")


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
