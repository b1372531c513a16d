# SPDX-License-Identifier: Apache-2.0
"""The options of a job: of each field of JobOptions its range, its default, and when it may change.

Clients read words and durations with this table, daemons check by it what trainers, operators and other daemons say.
"""

from __future__ import annotations

from typing import NamedTuple

from ultima.v1.limits import HOSTS_MAX, WORLD_SIZE_MAX

OFF = -1
"""Of a span: there is no such bound."""
SPAN_NS_MAX = 3600 * 10**9


class Row(NamedTuple):
    """One field of JobOptions. It is a word, a number, or a span of time in ns."""

    field: str
    words: tuple[str, ...] = ()
    """Of an enum: the word of 1, of 2 and so on."""
    least: int = 1
    most: int = 0
    """Of a number or a span, which may be 0 besides if `zero` says what that means."""
    default: int = 0
    zero: str = ""
    """For people: what 0 stands for; "" where it is not allowed."""
    automatic: int = 0
    """The number that 0 stands for, where there is one."""
    fixed: bool = False
    """Cannot be changed while the job runs."""
    whole_only: bool = False
    """Has just its default in a partial job."""
    partial_only: bool = False
    """Means nothing in a job that is not partial."""
    coded_only: bool = False
    """Means nothing, and has just its default, in a job that is not coded."""
    by_arrival: str = ""
    """Of an enum: the word under which the bits of a sum depend on what comes when; no deterministic job has it."""
    of_ranks: bool = False
    """Counts ranks of the job: it cannot be more than there are."""

    @property
    def name(self) -> str:
        """As people write it; the unit of a span goes with its value."""
        return self.field.removesuffix("_ns")

    @property
    def span(self) -> bool:
        """A time in ns."""
        return self.field.endswith("_ns")


# generated: options (schema/)
PROBES = 2
TAU = 8
ETA = 4
OPTIONS = (
    Row(
        "algorithm",
        words=("tar", "ring", "bcube", "ps"),
        most=4,
        default=1,
        fixed=True,
        whole_only=True,
        by_arrival="bcube",
    ),
    Row("congestion", words=("swift", "dctcp", "timely", "none"), most=4, default=1),
    Row("hadamard", words=("off", "on", "auto"), most=3, default=1, whole_only=True, by_arrival="auto"),
    Row("incast", most=15, zero="dynamic"),
    Row("early_percent", most=100, default=10),
    Row("t_b_ns", least=OFF, most=SPAN_NS_MAX, zero="measured"),
    Row("t_c_ns", least=OFF, most=SPAN_NS_MAX, zero="measured"),
    Row("timer_start", words=("rendezvous", "local"), most=2, default=1),
    Row("delay_target_ns", most=SPAN_NS_MAX, zero="automatic"),
    Row("policy", words=("none", "full", "solo", "majority", "quorum", "probe", "seeded", "coded"), most=8, default=1),
    Row("quorum", most=WORLD_SIZE_MAX, zero="half of them, rounded up", partial_only=True, of_ranks=True),
    Row("probes", most=WORLD_SIZE_MAX, zero="2", automatic=2, partial_only=True, of_ranks=True),
    Row("tau", most=255, zero="8", automatic=8, partial_only=True),
    Row("eta", most=255, zero="4", automatic=4, partial_only=True),
    Row(
        "policy_seed",
        most=18446744073709551615,
        zero="one made from the job's generation",
        fixed=True,
        partial_only=True,
    ),
    Row("stragglers", most=HOSTS_MAX - 1, zero="none", fixed=True, coded_only=True),
    Row("children", most=HOSTS_MAX - 1, zero="star", fixed=True, coded_only=True),
    Row("code", words=("groups", "linear"), most=2, default=1, fixed=True, coded_only=True),
    Row("exact", words=("yes", "no"), most=2, default=1, fixed=True, coded_only=True),
    Row("split", words=("auto", "never", "always"), most=3, default=1, fixed=True, whole_only=True),
    Row("deterministic", words=("no", "yes"), most=2, default=1, fixed=True, whole_only=True),
)
# generated: end
BY_FIELD = {row.field: row for row in OPTIONS}
POLICIES = BY_FIELD["policy"].words
DETERMINISTIC_YES = 2
POLICY_NONE = 1
"""Of `policy`: the job is not partial."""
POLICY_CODED = POLICIES.index("coded") + 1
"""Of `policy`: the job is partial and coded, which cannot be changed while it runs."""
