# SPDX-License-Identifier: Apache-2.0
"""How a job behaves: its options as a value, what is allowed, and which are in force in an op.

The options are part of what the daemons of a job agree on (daemon/jobs/epoch.py): a change holds on all hosts from the
first op of the epoch that brings it, and a host that was away is told with the epoch.

A job is *partial* when it has a policy, and *coded* with that one. Whether it is, cannot be changed while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from ultima.daemon.base.errors import InvalidArgument
from ultima.v1 import types_pb2
from ultima.v1.job_options import BY_FIELD, DETERMINISTIC_YES, OPTIONS, POLICIES, POLICY_CODED, POLICY_NONE, Row
from ultima.v1.limits import HOSTS_MAX


@dataclass(frozen=True, slots=True)
class Options:
    """JobOptions of types.proto with every field set. The table of ultima.v1.job_options says what each may be."""

    # generated: Options (schema/)
    algorithm: int = 1
    congestion: int = 1
    hadamard: int = 1
    incast: int = 0
    early_percent: int = 10
    t_b_ns: int = 0
    t_c_ns: int = 0
    delay_target_ns: int = 0
    policy: int = 1
    quorum: int = 0
    probes: int = 0
    tau: int = 0
    eta: int = 0
    policy_seed: int = 0
    timer_start: int = 1
    stragglers: int = 0
    children: int = 0
    code: int = 1
    exact: int = 1
    split: int = 1
    deterministic: int = 1
    # generated: end

    @property
    def partial(self) -> bool:
        """Ops start by a policy, with the ranks' gifts."""
        return self.policy != POLICY_NONE

    @property
    def coded(self) -> bool:
        """The ranks compute parts of the data more than once, and ops end when the sum over all data can be had."""
        return self.policy == POLICY_CODED

    def with_changes(self, message: types_pb2.JobOptions) -> Options:
        """These with what is set in `message`. Raises InvalidArgument."""
        changes = named(message)
        for name, value in changes.items():
            check(name, value)
        return replace(self, **changes)

    def seeded(self, generation: int) -> Options:
        """These as the engine needs them: all hosts of a partial job draw alike, and each life of it anew."""
        return replace(self, policy_seed=self.policy_seed or generation) if self.partial else self

    def to_proto(self) -> types_pb2.JobOptions:
        """As a message with every field set."""
        message = types_pb2.JobOptions()
        for name in NAMES:
            setattr(message, name, getattr(self, name))
        return message

    def words(self) -> dict[str, str]:
        """For people, by name."""
        return {name: word(name, getattr(self, name)) for name in NAMES}

    def changes(self, former: Options) -> str:
        """What is other than in `former`, in a sentence's end: "incast is 2 (was dynamic), t_b is 300 ms (was off)"."""
        changed = [name for name in NAMES if getattr(self, name) != getattr(former, name)]
        told = [(name, *(_shown(name, getattr(each, name)) for each in (self, former))) for name in changed]
        return ", ".join(f"{name.removesuffix('_ns')} is {now} (was {then})" for name, now, then in told) or "as before"


DEFAULTS = Options()
NAMES = tuple(field.name for field in fields(Options))
FIXED = tuple(row.field for row in OPTIONS if row.fixed)
"""Cannot be changed while the job runs."""
PARTIAL = ("policy", *(row.field for row in OPTIONS if row.partial_only))
"""May be changed in a job that began with a policy."""


def _shown(name: str, value: int) -> str:
    """A value for people; a span with its unit."""
    row = BY_FIELD[name]
    if value == 0 and row.zero:
        return row.zero
    return f"{value / 1e6:g} ms" if row.span and value > 0 else word(name, value)


def named(message: types_pb2.JobOptions) -> dict[str, int]:
    """The options that are set in a message, by name."""
    return {field.name: int(value) for field, value in message.ListFields() if field.name in NAMES}


def from_proto(message: types_pb2.JobOptions) -> Options:
    """The options of a message, defaults where nothing is set. Raises InvalidArgument."""
    return DEFAULTS.with_changes(message)


def check(name: str, value: int) -> None:
    """Raises InvalidArgument, with what is allowed, for a value that no job can have."""
    row = BY_FIELD[name]
    if not (row.least <= value <= row.most or (value == 0 and row.zero)):
        raise InvalidArgument(f"{name} = {value}: allowed: {_allowed(row)}")


def _allowed(row: Row) -> str:
    if row.words:
        return ", ".join(row.words)
    if row.span:
        return (
            f"up to an hour, 0 for {row.zero}, or -1 for off"
            if row.least < 0
            else f"up to an hour, or 0 for {row.zero}"
        )
    most = "the ranks of the job" if row.of_ranks else str(row.most)
    return f"{row.least} to {most}" + (f", or 0 for {row.zero}" if row.zero else "")


def check_job(options: Options, world_size: int) -> None:
    """Raises InvalidArgument for what no job of so many ranks can have."""
    if options.coded:
        _check_code(options, world_size)
    for row in OPTIONS:
        name, value = row.field, getattr(options, row.field)
        if row.of_ranks and value > world_size:
            raise InvalidArgument(f"{name} = {value}: allowed: 1 to {world_size}, the ranks of the job")
        if row.coded_only and not options.coded and value != row.default:
            raise InvalidArgument(
                f"{name} = {word(name, value)}: allowed: {word(name, row.default)}: "
                f"the job is not coded, policy = {word('policy', options.policy)}"
            )
        if row.whole_only and options.partial and value != row.default:
            raise InvalidArgument(
                f"{name} = {word(name, value)}: allowed: {word(name, row.default)}: "
                f"the job is partial, policy = {word('policy', options.policy)}"
            )
        if row.by_arrival and options.deterministic == DETERMINISTIC_YES and word(name, value) == row.by_arrival:
            allowed = ", ".join(one for one in row.words if one != row.by_arrival)
            raise InvalidArgument(f"{name} = {word(name, value)}: allowed: {allowed}: the job is deterministic")


def _check_code(options: Options, world_size: int) -> None:
    """What the engine can run of coded jobs."""
    if world_size > HOSTS_MAX:
        raise InvalidArgument(
            f"world_size = {world_size}: allowed: 1 to {HOSTS_MAX} in a coded job, a rank on each host"
        )
    if options.children and world_size not in (sizes := _tree_sizes(options.children)):
        fit = "2 or more ranks" if options.children == 1 else f"{', '.join(map(str, sizes))} ranks"
        raise InvalidArgument(
            f"world_size = {world_size}: allowed: {fit}, which fill a tree of {options.children} children each under "
            "its master"
        )
    linear = word("code", options.code) == "linear"
    if (linear or options.children) and word("exact", options.exact) == "no":
        raise InvalidArgument(f"exact = no: allowed: yes {'with a linear code' if linear else 'in a tree'} in this "
                              "release")  # fmt: skip
    sharers = options.children or world_size
    whose = f"{sharers} children of a parent" if options.children else f"{sharers} ranks"
    if linear and options.stragglers >= sharers:
        raise InvalidArgument(f"stragglers = {options.stragglers}: allowed: 0 to {sharers - 1} of {whose}")
    if not linear and sharers % (options.stragglers + 1):
        raise InvalidArgument(f"stragglers = {options.stragglers}: allowed: one less than a divisor of the {whose}")


def _tree_sizes(children: int) -> list[int]:
    """Of which numbers of ranks a tree can be, the master included."""
    sizes, layer, filled = [], children, 1
    while (filled := filled + layer) <= HOSTS_MAX:
        sizes.append(filled)
        layer *= children
    return sizes


def check_change(before: Options, after: Options) -> None:
    """Raises InvalidArgument for a change that a running job cannot make."""
    for name in FIXED:
        old, new = getattr(before, name), getattr(after, name)
        if new != old:
            raise InvalidArgument(
                f"{name} = {word(name, new)}: allowed: {word(name, old)}: it cannot be changed while the job runs"
            )
    if (after.partial, after.coded) != (before.partial, before.coded):
        allowed = POLICIES[-1:] if before.coded else POLICIES[1:-1] if before.partial else POLICIES[:1]
        began = (
            "coded stays so" if before.coded else "partial stays so" if before.partial else "without a policy gets none"
        )
        raise InvalidArgument(
            f"policy = {word('policy', after.policy)}: allowed: {', '.join(allowed)}: "
            f"a job that began {began} while it runs"
        )


def word(name: str, value: int) -> str:
    """A value for people."""
    words = BY_FIELD[name].words if name in BY_FIELD else ()
    return words[value - 1] if 0 < value <= len(words) else str(value)


def differing(here: Options, there: Options) -> tuple[str, str, str] | None:
    """The first option in which two sets differ, and the value of each, for people; None if there is none."""
    for name in NAMES:
        ours, theirs = getattr(here, name), getattr(there, name)
        if ours != theirs:
            return name, word(name, ours), word(name, theirs)
    return None


EPOCHS_KEPT = 16  # as many as the engine


class InForce:
    """The options of one job on this host: those of the newest epochs, as the engine keeps them (core/epoch)."""

    def __init__(self, options: Options, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when there are others."""
        self._kept = [(0, options)]
        """From which op on each is in force; the newest last."""
        self._changed = changed

    @property
    def options(self) -> Options:
        """The newest."""
        return self._kept[-1][1]

    @property
    def start(self) -> int:
        """The op from which they are in force."""
        return self._kept[-1][0]

    def take(self, options: Options, start: int, next_op: int) -> None:
        """An epoch brings them, from op `start` on; the one that opens next here is `next_op`."""
        start, newest = max(start, next_op), self.options
        kept = [each for each in self._kept if each[0] < start]
        if not kept or kept[-1][1] != options:
            kept.append((start, options))
        self._kept = kept[-EPOCHS_KEPT:]
        if options != newest:
            self._changed()

    def at(self, op_seq: int) -> Options:
        """Those by which that op starts."""
        found = (options for start, options in reversed(self._kept) if op_seq >= start)
        return next(found, self._kept[0][1])
