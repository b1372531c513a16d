# SPDX-License-Identifier: Apache-2.0
"""How far a quantised average is from the exact one, for 2 to 64 hosts: what `docs/quantised.md` promises.

The hosts are in this process: each codes its contribution, the owner adds up and codes its answer, by the daemon's
kernels and with the draws of a real op. NMSE is the squared error of the average over the squared size of the exact
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ultima.quant import Draws, Feedback, decode, encode, rounded, slot_elements

SIZE = 2704 * 24
# Of Gaussian gradients: to nearest and at random, as computed from the definition with other tools.
GAUSS = {"int16": (1.12e-9, 2.25e-9), "int8": (7.5e-5, 1.5e-4), "int4": (2.03e-2, 4.06e-2)}
PROMISED = {"int16": (3e-9, 6e-9), "int8": (8e-5, 1.6e-4), "int4": (2.1e-2, 4.2e-2)}


def average(
    given: Sequence[Any],
    wire: str,
    answer: str,
    nearest: bool,
    op: int,
    residuals: Sequence[Feedback] = (),
    order: int = 1,
) -> Any:
    """Of one chunk. |order| is an odd step through the hosts: in which order their contributions are added."""
    hosts, total = len(given), np.zeros(given[0].size, np.float32)
    told = [
        rounded(
            values, wire, None if nearest else Draws(op, host), residual=residuals[host].array if residuals else None
        )
        for host, values in enumerate(given)
    ]
    for at in range(hosts):
        total += told[at * order % hosts]
    each, draws, ret = slot_elements(answer), Draws(op, 0, answer=True), np.empty_like(total)
    for slot, at in enumerate(range(0, total.size, each)):
        part = total[at : at + each]
        data = encode(part, answer, None if nearest and not residuals else draws.key(slot), divisor=hosts)
        ret[at : at + each] = decode(data, part.size, answer)
    return ret


def nmse(found: Any, exact: Any) -> float:
    return float(np.sum((found - exact) ** 2) / np.sum(exact**2))


def gradients(hosts: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=SIZE).astype(np.float32) for _ in range(hosts)]


@pytest.mark.parametrize(
    "hosts", [2, pytest.param(8, marks=pytest.mark.check), pytest.param(64, marks=pytest.mark.check)]
)
@pytest.mark.parametrize("wire", GAUSS)
def test_average__the_error_does_not_grow_with_the_hosts(wire: str, hosts: int) -> None:
    given = gradients(hosts, hosts)
    exact = np.mean(given, axis=0, dtype=np.float64)
    for nearest, want, promised in zip((True, False), GAUSS[wire], PROMISED[wire], strict=True):
        found = nmse(average(given, wire, wire, nearest, op=3), exact)
        assert found <= promised, (nearest, found)
        assert found == pytest.approx(want, rel=0.03), (nearest, found)


@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_average__the_order_of_arrival_changes_no_bit(wire: str) -> None:
    """Float32 sums of float32 gradients depend on it in about half of the elements."""
    given = gradients(16, 5)
    first = average(given, wire, wire, False, op=9)
    for order in (3, 5, 7):
        assert (average(given, wire, wire, False, op=9, order=order) == first).all(), order
    sums = [np.add.reduce([given[at * order % 16] for at in range(16)]) for order in (1, 3)]
    assert (sums[0] != sums[1]).mean() > 0.2


def test_average__int16_depends_on_the_order_by_a_step_at_most() -> None:
    given = gradients(16, 6)
    found = [average(given, "int16", "int16", False, op=9, order=order) for order in (1, 3)]
    step = np.abs(np.mean(given, axis=0)).max() / 32767 * 1.07
    assert (found[0] != found[1]).mean() < 0.2 and np.abs(found[0] - found[1]).max() <= step


@pytest.mark.check
def test_average__feedback_with_a_finer_answer_loses_a_hundredth() -> None:
    """Of the sum of 32 averages of the same gradients: what optimizers see in the end."""
    given = gradients(4, 7)
    exact = np.mean(given, axis=0, dtype=np.float64)

    def after(wire: str, answer: str, feedback: bool) -> float:
        residuals = [Feedback(SIZE) for _ in given] if feedback else []
        total = np.zeros(SIZE)
        for op in range(32):
            total += average(given, wire, answer, feedback, op, residuals)
        return nmse(total / 32, exact)

    plain, kept, finer = after("int4", "int4", False), after("int4", "int4", True), after("int4", "int8", True)
    assert kept < 0.7 * plain and finer < 0.02 * plain, (plain, kept, finer)
