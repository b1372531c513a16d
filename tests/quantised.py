# SPDX-License-Identifier: Apache-2.0
"""What a quantised allreduce makes of what hosts give, to the bit, by KINDS.md alone (tests/dissector/quant.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.dissector.quant import Floats, elements, key, read, write


def cut(wire: str, answer: str, payload: int) -> tuple[int, int]:
    """Elements of a full slot of contributions, and answers to it."""
    given, answered = elements(wire, payload), elements(answer, payload)
    parts = -(-given // answered)
    return given // parts * parts, parts


def reduced(
    given: Sequence[Floats],
    op: str,
    wire: str,
    answer: str | None = None,
    *,
    seq: int,
    payload: int = 1440,
    nearest: bool = False,
    ranks: int | None = None,
    left: Sequence[Floats | None] = (),
) -> Floats:
    """The result of all hosts, of which host h gives `given[h]`, the sum over its ranks, and all of them have `ranks`
    (by default one each). `left`: residuals of hosts, which become what rounding took. `seq`: number of the op on the
    wire."""
    hosts, count = len(given), len(given[0])
    answer = answer or wire
    each, parts = cut(wire, answer, payload)
    result = np.empty(count, np.float32)
    divisor = (ranks or hosts) if op == "avg" else 1
    for chunk in range(hosts):
        first, end = chunk * count // hosts, (chunk + 1) * count // hosts
        owner = (chunk - seq) % hosts
        for slot, at in enumerate(range(first, end, each)):
            to = min(at + each, end)
            total = np.zeros(to - at, np.float32)
            for host in range(hosts):
                of = None if nearest else key(seq, 0, host, chunk, slot)
                mine = left[host] if left else None
                y = given[host][at:to] + (mine[at:to] if mine is not None else np.float32(0))
                told = read(write(wire, y, of), to - at)
                if mine is not None:
                    mine[at:to] = np.where(np.isfinite(y), y - told, mine[at:to])
                total += told
            for part in range(parts):
                a, b = part * each // parts, min((part + 1) * each // parts, to - at)
                if a < b:
                    of = key(seq, 1, owner, chunk, slot * parts + part)
                    result[at + a : at + b] = read(write(answer, total[a:b], of, divisor), b - a)
    return result


def drawn(rank: int, count: int, seed: int = 0) -> Floats:
    """Gradients: neighbours of like magnitude, and some that are zero."""
    rng = np.random.default_rng([seed, rank])
    values = rng.standard_normal(count) * np.exp(rng.standard_normal(count // 200 + 1)).repeat(200)[:count]
    return np.where(rng.random(count) < 0.1, 0, values).astype(np.float32)
