# SPDX-License-Identifier: Apache-2.0
"""How a job behaves: its options as a value, what is allowed, and how a change reaches every host.

A change is a whole new set with a `revision` one higher. Each host keeps the highest it has heard of, and every message
in which two hosts could find out that they differ carries the set; so a host that was away when the operator spoke
takes over what holds when it connects again. Two changes at once end with the same one of them on all hosts.

A job is *partial* when it has a policy; whether it is, cannot be changed while it runs. A change of the policy or of
its numbers comes with an op, not at an instant: `policy_from` says which (tuning.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from ultima.daemon.base.config import WORLD_SIZE_MAX
from ultima.daemon.base.errors import InvalidArgument
from ultima.daemon.base.ranges import OP_SEQ_MAX, REVISION_MAX, WINDOW, whole
from ultima.v1 import types_pb2

OFF = -1
"""Of t_b_ns and t_c_ns: no such bound."""
INCAST_MAX = 15
PERCENT_MAX = 100
SPAN_NS_MAX = 3600 * 10**9
BYTE_MAX = 255
SEED_MAX = 2**64 - 1

_ENUMS = {
    "algorithm": types_pb2.Algorithm,
    "congestion": types_pb2.Congestion,
    "hadamard": types_pb2.Hadamard,
    "policy": types_pb2.Policy,
    "timer_start": types_pb2.TimerStart,
}


@dataclass(frozen=True, slots=True)
class Options:
    """JobOptions of types.proto with every field set; words are the numbers of the C core."""

    algorithm: int = types_pb2.ALGORITHM_TAR
    congestion: int = types_pb2.CONGESTION_SWIFT
    hadamard: int = types_pb2.HADAMARD_OFF
    incast: int = 0
    early_percent: int = 10
    t_b_ns: int = 0
    t_c_ns: int = 0
    delay_target_ns: int = 0
    policy: int = types_pb2.POLICY_NONE
    quorum: int = 0
    probes: int = 0
    tau: int = 0
    eta: int = 0
    policy_seed: int = 0
    timer_start: int = types_pb2.TIMER_START_RENDEZVOUS
    policy_from: int = 0
    revision: int = 0

    @property
    def partial(self) -> bool:
        """Ops start by a policy, with what lies in the ranks' slots."""
        return self.policy != types_pb2.POLICY_NONE

    def with_changes(self, message: types_pb2.JobOptions) -> Options:
        """These with what is set in `message`, its revision too unless that is 0. Raises InvalidArgument."""
        changes = named(message)
        for name, value in changes.items():
            check(name, value)
        policy_from = message.policy_from if message.HasField("policy_from") else self.policy_from
        whole("policy_from", policy_from, 0, OP_SEQ_MAX)
        whole("revision", message.revision, 0, REVISION_MAX)
        return replace(self, **changes, policy_from=policy_from, revision=message.revision or self.revision)

    def seeded(self, generation: int) -> Options:
        """These as the engine needs them: all hosts of a partial job draw alike, and each life of it anew."""
        return replace(self, policy_seed=self.policy_seed or generation) if self.partial else self

    def to_proto(self) -> types_pb2.JobOptions:
        """As a message with every field set."""
        message = types_pb2.JobOptions()
        for name in (*NAMES, *CARRIED):
            setattr(message, name, getattr(self, name))
        return message

    def words(self) -> dict[str, str]:
        """For people, by name; the revision too."""
        return {name: word(name, getattr(self, name)) for name in (*NAMES, *CARRIED)}

    def newer_than(self, other: Options) -> bool:
        """Whether a host that has `other` is to take these."""
        return self._order() > other._order()

    def _order(self) -> tuple[int, ...]:
        return (self.revision, *(getattr(self, name) for name in NAMES), self.policy_from)


DEFAULTS = Options()
CARRIED = ("policy_from", "revision")
"""Told with the options by the daemons; nobody asks for them."""
NAMES = tuple(field.name for field in fields(Options) if field.name not in CARRIED)
FIXED = ("algorithm", "policy_seed")
"""Cannot be changed while the job runs."""
WHOLE_ONLY = {"algorithm": types_pb2.ALGORITHM_TAR, "hadamard": types_pb2.HADAMARD_OFF}
"""What has just one value in a partial job."""
TIMED = ("policy", "quorum", "probes", "tau", "eta")
"""Hold from the op `policy_from` on."""


def named(message: types_pb2.JobOptions) -> dict[str, int]:
    """The options that are set in a message, by name."""
    return {field.name: int(value) for field, value in message.ListFields() if field.name in NAMES}


def from_proto(message: types_pb2.JobOptions) -> Options:
    """The options of a message, defaults where nothing is set. Raises InvalidArgument."""
    return DEFAULTS.with_changes(message)


def check(name: str, value: int) -> None:
    """Raises InvalidArgument, with what is allowed, for a value that no job can have."""
    if name in _ENUMS:
        numbers = set(_ENUMS[name].values()) - {0}
        if value not in numbers:
            raise InvalidArgument(f"{name} = {value}: allowed: {', '.join(word(name, n) for n in sorted(numbers))}")
        return
    low, high, meaning = {
        "incast": (0, INCAST_MAX, "1 to 15, or 0 for dynamic"),
        "early_percent": (1, PERCENT_MAX, "1 to 100"),
        "delay_target_ns": (0, SPAN_NS_MAX, "up to an hour, or 0 for automatic"),
        "t_b_ns": (OFF, SPAN_NS_MAX, "up to an hour, 0 for measured, or -1 for off"),
        "t_c_ns": (OFF, SPAN_NS_MAX, "up to an hour, 0 for measured, or -1 for off"),
        "quorum": (0, WORLD_SIZE_MAX, "1 to the ranks of the job, or 0 for half of them, rounded up"),
        "probes": (0, WORLD_SIZE_MAX, "1 to the ranks of the job, or 0 for 2"),
        "tau": (0, BYTE_MAX, "1 to 255, or 0 for 8"),
        "eta": (0, BYTE_MAX, "1 to 255, or 0 for 4"),
        "policy_seed": (0, SEED_MAX, "any number of 64 bits, or 0 for one that is made from the job's generation"),
    }[name]
    if not low <= value <= high:
        raise InvalidArgument(f"{name} = {value}: allowed: {meaning}")


def check_job(options: Options, world_size: int) -> None:
    """Raises InvalidArgument for what no job of so many ranks can have."""
    for name in ("quorum", "probes"):
        if (value := getattr(options, name)) > world_size:
            raise InvalidArgument(f"{name} = {value}: allowed: 1 to {world_size}, the ranks of the job")
    for name, only in WHOLE_ONLY.items():
        if options.partial and (value := getattr(options, name)) != only:
            raise InvalidArgument(
                f"{name} = {word(name, value)}: allowed: {word(name, only)}: "
                f"the job is partial, policy = {word('policy', options.policy)}"
            )


def check_change(before: Options, after: Options) -> None:
    """Raises InvalidArgument for a change that a running job cannot make."""
    for name in FIXED:
        old, new = getattr(before, name), getattr(after, name)
        if new != old:
            raise InvalidArgument(
                f"{name} = {word(name, new)}: allowed: {word(name, old)}: it cannot be changed while the job runs"
            )
    if after.partial != before.partial:
        partial = [word("policy", n) for n in types_pb2.Policy.values() if n > types_pb2.POLICY_NONE]
        allowed = ", ".join(partial) if before.partial else "none"
        raise InvalidArgument(
            f"policy = {word('policy', after.policy)}: allowed: {allowed}: "
            f"a job that began {'partial stays so' if before.partial else 'without a policy gets none'} while it runs"
        )


def word(name: str, value: int) -> str:
    """A value for people."""
    if name in _ENUMS:
        known = _ENUMS[name].DESCRIPTOR.values_by_number.get(value)
        return known.name.removeprefix(f"{name.upper()}_").lower() if known is not None else str(value)
    return str(value)


def differing(here: Options, there: Options) -> tuple[str, str, str] | None:
    """The first option in which two sets differ, and the value of each, for people; None if there is none."""
    for name in NAMES:
        ours, theirs = getattr(here, name), getattr(there, name)
        if ours != theirs:
            return name, word(name, ours), word(name, theirs)
    return None


class InForce:
    """The options of one job on this host."""

    def __init__(
        self,
        options: Options,
        apply: Callable[[Options], None],
        changed: Callable[[], None] = lambda: None,
        next_op_seq: Callable[[], int] = lambda: 0,
    ) -> None:
        """`apply` hands them to the engine, and raises Refused, having changed nothing, if it does not take them;
        `changed` is called when it has. `next_op_seq` says where the job stands."""
        self.options = options
        self._apply, self._changed, self._next_op_seq = apply, changed, next_op_seq
        self._earlier: list[Options] = []

    def hear(self, other: Options) -> Options:
        """Takes over what another host has in force if it is newer; returns what is in force then. Raises Refused."""
        if other.newer_than(self.options):
            reach = max(self.options.policy_from, self._next_op_seq()) + WINDOW
            whole("policy_from", other.policy_from, 0, reach)
            whole("revision", other.revision, 0, self.options.revision + WINDOW)
            check_change(self.options, other)
            self._apply(other)
            self._earlier = [old for old in (*self._earlier, self.options) if old.policy_from < other.policy_from]
            self.options = other
            self._changed()
        return self.options

    def at(self, op_seq: int) -> Options:
        """Those by which that op starts: of the policy and its numbers, what was told before may still hold."""
        every = (*self._earlier, self.options)
        return next((options for options in reversed(every) if options.policy_from <= op_seq), every[0])
