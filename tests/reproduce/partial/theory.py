# SPDX-License-Identifier: Apache-2.0
"""What eager-SGD and RNA say in closed form (docs/papers.md, sections 2 and 3)."""

from __future__ import annotations

import math

WORD = 1 << 64


def splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def picks(seed: int, op: int, ranks: int, count: int = 1) -> list[int]:
    """The ranks that a shared seed picks for an op: draws in order, those already drawn skipped (docs/papers.md,
    section 2.3).
    """
    found: list[int] = []
    draw = 0
    while len(found) < count:
        mixed = splitmix64(seed ^ (op * 0xD1342543DE82EF95 % WORD) ^ (draw << 56))
        rank = ((mixed >> 32) * ranks) >> 32
        if rank not in found:
            found.append(rank)
        draw += 1
    return found


def active_mean(policy: str, ranks: int, probes: int = 2) -> float:
    """Expected ranks that have arrived when an op starts, the initiator included."""
    return {
        "full": float(ranks),
        "solo": 1.0,
        "majority": (ranks + 1) / 2,
        "probe": (ranks + 1) / (probes + 1),
    }[policy]


def active_tolerance(ranks: int, iterations: int) -> float:
    """Three standard deviations of the mean of |iterations| uniform picks."""
    return 3 * math.sqrt((ranks**2 - 1) / 12 / iterations)


def skew_latency(policy: str, ranks: int, step: float) -> float:
    """Mean latency over the ranks when rank p arrives p steps late and an op takes no time; in the unit of |step|."""
    return {"full": (ranks - 1) / 2, "majority": (ranks**2 - 1) / (6 * ranks), "solo": 0.0}[policy] * step


def queue_wait(rho: float, probes: int) -> float:
    """RNA's bound of the expected wait with the power of |probes| choices, without its O(1)."""
    if probes == 1:
        return 1 / (1 - rho)
    total, power = 0.0, probes
    while True:
        term = rho ** ((power - probes) / (probes - 1))
        total += term
        if term < 1e-15:
            return total
        power *= probes


def probe_median(low: float, high: float, probes: int) -> float:
    """Median of the least of |probes| independent uniform times."""
    return low + (high - low) * (1 - 0.5 ** (1 / probes))


def learning_rate_terms(
    eps: float, ranks: int, quorum: int, lipschitz: float, moment: float, tau: int
) -> tuple[float, ...]:
    """The terms whose least bounds the learning rate of eager-SGD (its Theorem 6.3); a full quorum has but the last."""
    last = eps / (12 * moment**2 * lipschitz)
    missed = ranks - quorum
    if not missed:
        return (last,)
    spread = tau * moment**2 * missed
    first = math.sqrt(eps) * ranks / math.sqrt(12 * lipschitz**2 * spread)
    return first, math.sqrt(eps) * ranks / math.sqrt(4 * lipschitz * spread), last


def steps_needed(gap: float, rate: float, eps: float) -> float:
    """Least steps of the same theorem for a loss |gap| above the minimum."""
    return 24 * gap / (rate * eps)
