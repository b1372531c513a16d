# SPDX-License-Identifier: Apache-2.0
"""`Plan`: who computes which data in a coded job, and from which ranks the exact sum can be had."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from ultima.base.checks import check_whole
from ultima.base.errors import InvalidArgument
from ultima.base.reference import splitmix64
from ultima.coded import codes, shares, tree
from ultima.coded.codes import Code
from ultima.coded.shares import Row
from ultima.v1.limits import HOSTS_MAX

AMPLIFICATION_MAX = 1000.0
"""What is sent is rounded to float32. A code that enlarges this rounding more is refused."""
CODES = ("auto", *codes.KINDS)


@dataclass(frozen=True)
class Plan:
    """Who computes which data, so that the sum over all data is exact although ranks are late (docs/papers.md, section
    4).

    workers: ranks that compute.
    stragglers: how many children of any one parent may be late.
    children: None for the *star*, in which every host owns a shard of the gradient and is the parent of all workers for
        it; a number n for the paper's (n, L)-regular *tree*, whose master is rank 0 and has no data, and whose workers
        are the ranks from 1 on, breadth first.
    code: "groups", "linear" (codes.py has both), or "auto": groups where stragglers + 1 divides the number of children,
        else linear; the plan then holds what was chosen.
    virtual: for virtual time, where there may be more than 64 hosts.

    Plans that are made alike are equal. All of this is arithmetic, and the same on every rank. Raises InvalidArgument
    for a plan that cannot be, or whose sum would not be exact in float32; the message names the nearest one that would.
    """

    workers: int
    stragglers: int
    children: int | None = None
    code: str = "auto"
    virtual: bool = False

    def __post_init__(self) -> None:
        check_whole(self.workers, "workers", 1)
        check_whole(self.stragglers, "stragglers", 0)
        if self.children is not None:
            check_whole(self.children, "children", 1)
        if self.code not in CODES:
            raise InvalidArgument("code", self.code, ", ".join(CODES))
        most = HOSTS_MAX - self.first
        if not self.virtual and self.workers > most:
            raise InvalidArgument(
                "workers", self.workers, f"at most {most}, because a job has at most {HOSTS_MAX} hosts"
            )
        if self.children is not None and tree.depth_of(self.workers, self.children) is None:
            fit = _tree_sizes(self.children, HOSTS_MAX if not self.virtual else 2 * self.workers * self.children)
            raise InvalidArgument("workers", self.workers, f"{fit}, which fill a tree of {self.children} children each")
        if self.stragglers >= self.fan_out:
            whose = "workers" if self.children is None else "children of a parent"
            allowed = f"at most {self.fan_out - 1}, because one of the {self.fan_out} {whose} must be in time"
            raise InvalidArgument("stragglers", self.stragglers, allowed)
        if self.code == "groups" and self.fan_out % (self.stragglers + 1):
            reason = f"one less than a divisor of {self.fan_out} with groups"
            raise InvalidArgument("stragglers", self.stragglers, f"{reason}; {self._nearest()}")
        object.__setattr__(self, "code", self.parents.kind)
        if not self.amplification <= AMPLIFICATION_MAX:
            reason = f"what a linear code of {self.fan_out} children can bear in float32"
            raise InvalidArgument("stragglers", self.stragglers, f"{reason}; {self._nearest()}")

    def options(self, exact: bool = True) -> dict[str, str]:
        """What a job with this plan says of it when its ranks join: `ultima.Options(**plan.options())`.

        exact: a step whose sum cannot be had fails; else it ends with an estimate, and its receipt says so.
        """
        return {
            "policy": "coded",
            "stragglers": str(self.stragglers or "none"),
            "children": str(self.children or "star"),
            "code": self.code,
            "exact": "yes" if exact else "no",
        }

    @property
    def first(self) -> int:
        """The first rank that computes: 0 in a star, 1 in a tree."""
        return 0 if self.children is None else 1

    @property
    def hosts(self) -> int:
        """Ranks in all, the master of a tree included. A coded job has one rank a host."""
        return self.workers + self.first

    @property
    def fan_out(self) -> int:
        """Children of a parent."""
        return self.workers if self.children is None else self.children

    @property
    def depth(self) -> int:
        """Layers of workers: 1 in a star."""
        return 1 if self.children is None else tree.depth_of(self.workers, self.children) or 0

    @property
    def load(self) -> Fraction:
        """The share of all data that each worker computes."""
        return tree.load(self.fan_out, self.stragglers, self.depth)

    @property
    def amplification(self) -> float:
        """By how much the rounding of what is sent can be enlarged in the sum, at most; 1 with groups."""
        return self.parents.amplification**self.depth

    @cached_property
    def parents(self) -> Code:
        """The code that each parent shares its data by, and decodes with."""
        groups = self.code != "linear" and self.fan_out % (self.stragglers + 1) == 0
        return (codes.groups if groups else codes.linear)(self.fan_out, self.stragglers)

    def allocation(self, rank: int, size: int) -> list[Row]:
        """What |rank| computes of |size| data points: rows (start, stop, coefficient).

        The rank adds up coefficient * gradient over the points from start up to, not including, stop. Any |size| will
        do: where it cannot be divided, loads differ by a few points, and the sum is as exact. The master has none.
        """
        self._check_rank(rank)
        check_whole(size, "size", 1)
        return self._allocated(rank, size)

    def parts(self, size: int) -> list[tuple[int, int]]:
        """The ranges (start, stop) of |size| data points that no rank's allocation divides, in order.

        Whoever computes a part computes all of it. A gradient that depends on which points share a batch, or on random
        numbers, must be computed part by part, so that all replicas compute the same.
        """
        check_whole(size, "size", 1)
        ends = {0, size}
        for rank in range(self.first, self.hosts):
            for start, stop, _ in self._allocated(rank, size):
                ends |= {start, stop}
        edges = sorted(ends)
        return list(pairwise(edges))

    def seed(self, step: int, part: int) -> int:
        """Where the random numbers of part number |part| begin in |step| (dropout, say), from 0 to 2^64 - 1. All ranks
        that compute the part get the same.
        """
        check_whole(step, "step", 0)
        check_whole(part, "part", 0)
        return splitmix64(splitmix64(step % 2**64) ^ part)

    def decodable(self, ranks: Iterable[int]) -> bool:
        """Whether the exact sum can be had from |ranks|, those that came in time. The master of a tree need not be one
        of them: it has nothing to give.
        """
        return self.decoding(ranks) is not None

    def decoding(self, ranks: Iterable[int]) -> dict[int, float] | None:
        """Coefficients of |ranks| that make the exact sum of what each computed (`allocation`): rank -> coefficient,
        without those that are not needed. None if the sum cannot be had from these.

        In a tree a worker counts with all below it: it has come only if the sum of what its children were given can be
        had from them.
        """
        came = set(ranks)
        for rank in came:
            self._check_rank(rank)
        found: dict[int, float] = {}
        if self.children is None:
            return found if self._decode(range(self.workers), came, 1.0, found) else None
        for node in reversed(range(1, self.hosts)):  # children before their parents: who lacks some has not come
            if node in came and not self._whole(node, came):
                came.discard(node)
        return found if self._into(0, came, 1.0, found) else None

    def _below(self, node: int) -> range:
        """The children of a node of the tree; none of the last layer."""
        first = node * self.fan_out + 1
        return range(first, first + self.fan_out) if first < self.hosts else range(0)

    def _into(self, node: int, came: Collection[int], coefficient: float, found: dict[int, float]) -> bool:
        """Adds to |found| what all below |node| is multiplied by. False if what came from there does not suffice."""
        below, used = self._below(node), dict[int, float]()
        if below and not self._decode(below, came, coefficient, used):
            return False
        found |= used
        return all(self._into(child, came, each, found) for child, each in used.items())

    def _whole(self, node: int, came: Collection[int]) -> bool:
        below = self._below(node)
        return not below or self._decode(below, came, 1.0, {})

    def _decode(self, below: range, came: Collection[int], coefficient: float, found: dict[int, float]) -> bool:
        """Adds to |found| what those of |below| that are in |came| are multiplied by. False if they do not suffice."""
        a = self.parents.decoding([at for at, node in enumerate(below) if node in came])
        if a is None:
            return False
        found.update((below[at], coefficient * float(each)) for at, each in enumerate(a) if each != 0)
        return True

    def _allocated(self, rank: int, size: int) -> list[Row]:
        rest: list[Row] = [(0, size, 1.0)]
        if self.children is None:
            return shares.joined(shares.handed_down(rest, self.parents.encoding[rank]))
        own: list[Row] = []
        shares_kept = tree.keeps(self.children, self.stragglers, self.depth)
        for node, share in zip(tree.path_to(rank, self.children), shares_kept, strict=False):
            given = shares.handed_down(rest, self.parents.encoding[(node - 1) % self.children])
            own, rest = shares.kept(given, share)
        return shares.joined(own)

    def _check_rank(self, rank: object) -> None:
        whole = isinstance(rank, int) and not isinstance(rank, bool)
        if not whole or not 0 <= rank < self.hosts:  # type: ignore[operator]
            raise InvalidArgument("rank", rank, f"a rank of this plan, 0 to {self.hosts - 1}")

    def _nearest(self) -> str:
        """The nearest plan with groups that needs no more hosts and bears at least one straggler, in words."""
        apart, wanted = [], self.stragglers
        for fan_out in range(2, self.fan_out + 1):
            for late in range(1, fan_out):
                if fan_out % (late + 1) == 0:
                    apart.append((self.fan_out - fan_out + abs(late - wanted), self.fan_out - fan_out, -late, fan_out))
        if not apart:
            return "no plan with groups is near"
        _, _, late, fan_out = min(apart)
        if self.children is None:
            return f"the nearest plan with groups is Plan({fan_out}, stragglers={-late})"
        workers = tree.workers_of(fan_out, self.depth)
        return f"the nearest plan with groups is Plan({workers}, stragglers={-late}, children={fan_out})"


def _tree_sizes(children: int, below: int) -> str:
    sizes: list[str] = []
    depth = 1
    while (size := tree.workers_of(children, depth)) < below and len(sizes) < 8:
        sizes.append(str(size))
        depth += 1
    return ", ".join(sizes)
