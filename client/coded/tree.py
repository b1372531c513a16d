# SPDX-License-Identifier: Apache-2.0
"""The paper's (n, L)-regular tree: a master without data, and L layers of workers in which every parent has n children.

Nodes are numbered breadth first. The master is node 0, and the children of node v are n v + 1 to n v + n. All shares
are exact fractions.
"""

from __future__ import annotations

from fractions import Fraction


def workers_of(children: int, depth: int) -> int:
    """n + n^2 + ... + n^L."""
    return sum(children**layer for layer in range(1, depth + 1))


def depth_of(workers: int, children: int) -> int | None:
    """The number of layers L with which a tree has |workers|; None if no tree of so many children has."""
    depth = 1
    while workers_of(children, depth) < workers:
        depth += 1
    return depth if workers_of(children, depth) == workers else None


def load(children: int, stragglers: int, depth: int) -> Fraction:
    """r_CR: the share of all data that each worker computes, 1 / (x + x^2 + ... + x^L) with x = n / (s + 1) (Theorem
    1)."""
    x = Fraction(children, stragglers + 1)
    return 1 / sum((x**layer for layer in range(1, depth + 1)), Fraction(0))


def keeps(children: int, stragglers: int, depth: int) -> tuple[Fraction, ...]:
    """rho: which share of the data that reaches a worker it computes itself, by layer from the master down. The rest is
    for its children, so the last layer keeps all.
    """
    x = Fraction(children, stragglers + 1)
    return tuple(1 / sum((x**more for more in range(depth - layer + 1)), Fraction(0)) for layer in range(1, depth + 1))


def path_to(node: int, children: int) -> list[int]:
    """The nodes from the child of the master down to |node|, both included; empty for the master."""
    path = []
    while node > 0:
        path.append(node)
        node = (node - 1) // children
    return path[::-1]
