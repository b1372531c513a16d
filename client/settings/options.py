# SPDX-License-Identifier: Apache-2.0
"""How a job behaves: `Options` for `connect`, and the one table of their words, numbers and environment variables.

    option           environment               values (the first is the default)
    algorithm        ULTIMA_ALGORITHM          tar, ring, bcube, ps: schedule of the ops; fixed while the job runs
    congestion       ULTIMA_CONGESTION         swift, dctcp, timely, none: what decides how fast a host sends
    hadamard         ULTIMA_HADAMARD           off, on, auto: whether buckets travel under a randomized Hadamard
                                               transform
    incast           ULTIMA_INCAST             0 (dynamic), 1 to 15: hosts that one host hears at once, fewer than the
                                               job has
    early_percent    ULTIMA_EARLY_PERCENT      10, 1 to 100: percent of t_c that are waited after the last packets of
                                               all senders were seen
    t_b              ULTIMA_T_B                auto (measured), off, a duration: hard bound of a stage
    t_c              ULTIMA_T_C                auto (measured), off, a duration: expected time of a stage
    timer_start      ULTIMA_TIMER_START        rendezvous, local: when t_b begins to run, in best effort
    delay_target     ULTIMA_DELAY_TARGET       auto, a duration: queueing delay that the congestion control aims for
    policy           ULTIMA_POLICY             none, full, solo, majority, quorum, probe, seeded, coded: what starts an
                                               op
    quorum           ULTIMA_QUORUM             auto (half of them, rounded up), 1 to the ranks: ranks that must have
                                               given, with the policy quorum
    probes           ULTIMA_PROBES             auto (2), 1 to the ranks: ranks that are asked, or drawn, for each op,
                                               with the policies probe and seeded
    tau              ULTIMA_TAU                auto (8), 1 to 255: ops in a row that a rank may miss before one waits
                                               for it
    eta              ULTIMA_ETA                auto (4), 1 to 255: steps between the oldest and the newest contribution
                                               that a rank combines
    policy_seed      ULTIMA_POLICY_SEED        auto (one made from the job's generation), a whole number: seed of the
                                               draws of the policies majority, probe and seeded; fixed while the job
                                               runs
    stragglers       ULTIMA_STRAGGLERS         none, 1 to 63: coded jobs: children of each parent that may be late; in a
                                               star all ranks are the children; fixed while the job runs
    children         ULTIMA_CHILDREN           star, 1 to 63: coded jobs: children of each parent in the tree of the
                                               ranks; fixed while the job runs
    code             ULTIMA_CODE               groups, linear: coded jobs: how the children of a parent share its data;
                                               fixed while the job runs
    exact            ULTIMA_EXACT              yes, no: coded jobs: whether a step fails whose sum over all data cannot
                                               be had; fixed while the job runs
    split            ULTIMA_SPLIT              auto, never, always: whether large allreduces are split over the lanes of
                                               the job, and how many lanes it has; fixed while the job runs
    deterministic    ULTIMA_DETERMINISTIC      no, yes: whether the bits of a sum are the same whatever order
                                               contributions come in; fixed while the job runs

A yes may be True, 1 or on as well, a no False, 0 or off. All ranks of a job must say the same. docs/transport.md says
when to touch which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ultima.base.durations import duration_s
from ultima.base.errors import InvalidArgument
from ultima.v1.job_options import DETERMINISTIC_YES, ETA, OFF, OPTIONS, POLICY_CODED, POLICY_NONE, PROBES, TAU, Row
from ultima.v1.limits import WORLD_SIZE_MAX

if TYPE_CHECKING:
    from ultima.v1 import types_pb2

AUTO = "auto"
_YES_NO = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Options:
    """How a job behaves; see the module. What is None comes from the environment, and then from the defaults."""

    # generated: Options (schema/)
    algorithm: str | None = None
    """Schedule of the ops. It cannot be changed while the job runs. Values: tar, ring, bcube, ps."""
    congestion: str | None = None
    """What decides how fast a host sends. Values: swift, dctcp, timely, none."""
    hadamard: str | None = None
    """Whether buckets travel under a randomized Hadamard transform. Values: off, on, auto."""
    incast: int | str | None = None
    """Hosts that one host hears at once, fewer than the job has. Values: 0 (dynamic), 1 to 15."""
    early_percent: int | str | None = None
    """Percent of t_c that are waited after the last packets of all senders were seen. Values: 10, 1 to 100."""
    t_b: float | str | timedelta | None = None
    """Hard bound of a stage. Values: auto (measured), off, a duration."""
    t_c: float | str | timedelta | None = None
    """Expected time of a stage. Values: auto (measured), off, a duration."""
    timer_start: str | None = None
    """When t_b begins to run, in best effort. Values: rendezvous, local."""
    delay_target: float | str | timedelta | None = None
    """Queueing delay that the congestion control aims for. Values: auto, a duration."""
    policy: str | None = None
    """What starts an op. Any policy but none makes the job partial. While the job runs it cannot be changed from none
    to another policy or back. Values: none, full, solo, majority, quorum, probe, seeded, coded."""
    quorum: int | str | None = None
    """Ranks that must have given, with the policy quorum. Values: auto (half of them, rounded up), 1 to the ranks."""
    probes: int | str | None = None
    """Ranks that are asked, or drawn, for each op, with the policies probe and seeded. Values: auto (2), 1 to the
    ranks."""
    tau: int | str | None = None
    """Ops in a row that a rank may miss before one waits for it. Values: auto (8), 1 to 255."""
    eta: int | str | None = None
    """Steps between the oldest and the newest contribution that a rank combines. Older ones are dropped. Values: auto
    (4), 1 to 255."""
    policy_seed: int | str | None = None
    """Seed of the draws of the policies majority, probe and seeded. It cannot be changed while the job runs. Values:
    auto (one made from the job's generation), a whole number."""
    stragglers: int | str | None = None
    """Coded jobs: children of each parent that may be late; in a star all ranks are the children. It cannot be changed
    while the job runs. Values: none, 1 to 63."""
    children: int | str | None = None
    """Coded jobs: children of each parent in the tree of the ranks. It cannot be changed while the job runs. Values:
    star, 1 to 63."""
    code: str | None = None
    """Coded jobs: how the children of a parent share its data. It cannot be changed while the job runs. Values: groups,
    linear."""
    exact: str | bool | None = None
    """Coded jobs: whether a step fails whose sum over all data cannot be had. It cannot be changed while the job runs.
    Values: yes, no."""
    split: str | None = None
    """Whether large allreduces are split over the lanes of the job, and how many lanes it has. It cannot be changed
    while the job runs. Values: auto, never, always."""
    deterministic: str | bool | None = None
    """Whether the bits of a sum are the same whatever order contributions come in. Owners of shards keep what comes and
    fold it in the order of hosts; see docs/pytorch.md. It cannot be changed while the job runs. Values: no, yes."""
    # generated: end


def yes_no(value: object, field: str) -> bool:
    """Of a switch. Raises InvalidArgument."""
    answer = value if isinstance(value, bool) else _YES_NO.get(str(value).strip().lower())
    if answer is None:
        raise InvalidArgument(field, value, "1 or 0, true or false, yes or no, on or off")
    return answer


class Option(NamedTuple):
    """One option as people write it: how its values are read and written. `row` has the numbers."""

    row: Row
    read: Callable[[object, str], int]
    write: Callable[[int], str]

    @property
    def name(self) -> str:
        """Field of `Options`."""
        return self.row.name

    @property
    def field(self) -> str:
        """Field of the message."""
        return self.row.field

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"ULTIMA_{self.name.upper()}"


def _word(row: Row) -> Option:
    words = row.words

    def read(value: object, field: str) -> int:
        if not isinstance(value, str) or value not in words:
            raise InvalidArgument(field, value, "one of " + ", ".join(words))
        return words.index(value) + 1

    return Option(row, read, lambda number: words[number - 1] if 0 < number <= len(words) else str(number))


def _switch(row: Row) -> Option:
    """Yes and no, in either order."""

    def read(value: object, field: str) -> int:
        return row.words.index("yes" if yes_no(value, field) else "no") + 1

    return _word(row)._replace(read=read)


def _whole(row: Row) -> Option:
    """A whole number, and a word for the 0 that leaves the choice to the engine; of 'auto' a 0 itself is a mistake."""
    zero = AUTO if row.partial_only else row.zero
    allowed = f"a whole number from {row.least} to {row.most}"
    if zero:
        allowed += f", or '{AUTO}'" if zero == AUTO else f", or 0 or '{zero}'"

    def read(value: object, field: str) -> int:
        if zero and value == zero:
            return 0
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        whole = isinstance(number, int) and not isinstance(number, bool)
        if whole and (row.least <= number <= row.most or (number == 0 and zero not in ("", AUTO))):  # type: ignore[operator]
            return number  # type: ignore[return-value]
        raise InvalidArgument(field, value, allowed)

    return Option(row, read, lambda number: zero if zero and not number else str(number))


def _span(row: Row) -> Option:
    special = {AUTO: 0, "off": OFF} if row.least == OFF else {AUTO: 0}
    allowed = f"{', '.join(special)}, or a duration of at most 1 h such as '300ms'"

    def read(value: object, field: str) -> int:
        if isinstance(value, str) and value in special:
            return special[value]
        try:
            seconds = duration_s(value, field)
        except InvalidArgument:
            raise InvalidArgument(field, value, allowed) from None
        if seconds > row.most / 1e9 or seconds < 1e-9:
            raise InvalidArgument(field, value, allowed)
        return round(seconds * 1e9)

    def write(number: int) -> str:
        named = {number: word for word, number in special.items()}.get(number)
        unit, ns = ("s", 10**9) if number >= 10**9 else ("ms", 10**6) if number >= 10**6 else ("us", 1000)
        return named or f"{number / ns:.9g}{unit}"

    return Option(row, read, write)


def _option(row: Row) -> Option:
    made = _switch if set(row.words) == {"yes", "no"} else _word if row.words else _span if row.span else _whole
    return made(row)


TABLE = tuple(_option(row) for row in OPTIONS)
BY_NAME = {option.name: option for option in TABLE}
FIXED = tuple(row.name for row in OPTIONS if row.fixed)
"""Cannot be changed while the job runs."""
PARTIAL = ("policy", *(row.name for row in OPTIONS if row.partial_only or row.coded_only))
"""Of partial jobs; all but the first mean nothing in others."""


def resolve(
    options: Options | None, environment: Mapping[str, str], world_size: int = WORLD_SIZE_MAX
) -> dict[str, int]:
    """What is said of the options of a job of so many ranks, by field of the message, as numbers. Raises
    InvalidArgument.
    """
    if options is not None and not isinstance(options, Options):
        raise InvalidArgument("options", options, "ultima.Options(...)")
    said: dict[str, int] = {}
    for option in TABLE:
        given = getattr(options, option.name) if options is not None else None
        text = environment.get(option.variable) or None
        if given is not None:
            name, value = option.name, given
        elif text is not None:
            name, value = option.variable, text.strip()
        else:
            continue
        number = said[option.field] = option.read(value, name)
        if option.row.of_ranks and number > world_size:
            raise InvalidArgument(name, value, f"1 to {world_size}, the ranks of the job, or '{AUTO}'")
    policy = said.get("policy", POLICY_NONE)
    for option in TABLE if policy != POLICY_NONE else ():
        default = option.row.default
        if option.row.whole_only and (number := said.get(option.field, default)) != default:
            partial = f"the job is partial: its policy is {BY_NAME['policy'].write(policy)}"
            raise InvalidArgument(option.name, option.write(number), f"{option.write(default)}, because {partial}")
    for option in TABLE if said.get("deterministic") == DETERMINISTIC_YES else ():
        word = option.write(said.get(option.field, option.row.default))
        if option.row.by_arrival == word:
            others = ", ".join(one for one in option.row.words if one != word)
            raise InvalidArgument(option.name, word, f"{others}, because the job is deterministic")
    for option in TABLE if policy != POLICY_CODED else ():
        default = option.row.default
        if option.row.coded_only and (number := said.get(option.field, default)) != default:
            word = BY_NAME["policy"].write(policy)
            allowed = f"{option.write(default)}, because the policy of the job is {word}, not coded"
            raise InvalidArgument(option.name, option.write(number), allowed)
    return said


def changes(pairs: list[str]) -> dict[str, int]:
    """The same of `key=value` texts, for a job that runs. A duration needs its unit there. Raises InvalidArgument."""
    names = [name for name in BY_NAME if name not in FIXED]
    said: dict[str, int] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in names:
            why = f"; {name} cannot be changed while the job runs" if name in FIXED else ""
            raise InvalidArgument("KEY=VALUE", pair, f"KEY one of {', '.join(names)}{why}")
        if BY_NAME[name].row.span and _is_number(text):
            raise InvalidArgument(name, text, f"a duration with its unit, such as '{text}ms' or '{text}s'")
        said[BY_NAME[name].field] = BY_NAME[name].read(text, name)
    return said


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def message(said: Mapping[str, int]) -> types_pb2.JobOptions:
    """What was said, as a message."""
    from ultima.v1 import types_pb2  # only where a daemon is spoken to: the import takes a while

    made = types_pb2.JobOptions()
    for name, number in said.items():
        setattr(made, name, number)
    return made


def words(message: Any) -> dict[str, str]:
    """A JobOptions message for people: option by option, in words."""
    return {
        one.name: one.write(getattr(message, one.field) if message.HasField(one.field) else one.row.default)
        for one in TABLE
    }


def is_partial(message: types_pb2.JobOptions) -> bool:
    """Whether the job has a policy. Daemons of before there were any say none."""
    return message.policy > POLICY_NONE


def policy_text(message: types_pb2.JobOptions, world_size: int) -> str:
    """What starts the ops of a partial job, with the numbers that count under it: "quorum of 4, tau 8"."""
    text = BY_NAME["policy"].write(message.policy)
    if text == "coded":
        told = words(message)
        shape = "star" if not message.children else f"tree of {message.children} children"
        whose = "of each group" if told["code"] == "groups" else "of all"
        return f"coded, {shape}, {told['stragglers']} {whose} may be late, {told['code']}, exact: {told['exact']}"
    if text == "quorum":
        text += f" of {message.quorum or (world_size + 1) // 2}"
    if text in ("probe", "seeded"):
        text += f" of {message.probes or min(PROBES, world_size)}"
    return f"{text}, tau {message.tau or TAU}, eta {message.eta or ETA}"
