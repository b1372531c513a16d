# SPDX-License-Identifier: Apache-2.0
"""How a job behaves: `Options` for `connect`, and the one table of their words, numbers and environment variables.

    option           environment               values (the first is the default)
    algorithm        ULTIMA_ALGORITHM          tar, ring, bcube, ps: the schedule of an op; fixed while the job runs
    congestion       ULTIMA_CONGESTION         swift, dctcp, timely, none: what decides how fast a host sends
    hadamard         ULTIMA_HADAMARD           off, on, auto: send buckets under a randomized Hadamard transform
    incast           ULTIMA_INCAST             0 (dynamic), 1 to 15: hosts that one host hears at once
    early_percent    ULTIMA_EARLY_PERCENT      10, 1 to 100: share of t_c to wait after the tail was seen
    t_b              ULTIMA_T_B                auto (measured), off, a duration: hard bound of a stage
    t_c              ULTIMA_T_C                auto (measured), off, a duration: expected time of a stage
    timer_start      ULTIMA_TIMER_START        rendezvous, local: t_b runs from when all have called, or the own call
    delay_target     ULTIMA_DELAY_TARGET       auto, a duration: queueing that the congestion control aims for
    policy           ULTIMA_POLICY             none, full, solo, majority, quorum, probe, seeded: what starts an op; any
                                               but none makes the job partial, and that is fixed while it runs
    quorum           ULTIMA_QUORUM             auto (half of the ranks, rounded up), 1 to the ranks: that must be ready
    probes           ULTIMA_PROBES             auto (2), 1 to the ranks: that are asked, or drawn, for each op
    tau              ULTIMA_TAU                auto (8), 1 to 255: ops in a row without a rank, before one waits for it
    eta              ULTIMA_ETA                auto (4), 1 to 255: steps between the parts that a rank combines
    policy_seed      ULTIMA_POLICY_SEED        auto (a new one), a whole number: of the draws; fixed while the job runs

All ranks of a job must say the same. docs/transport.md says when to touch which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ultima.base.durations import duration_s
from ultima.base.errors import InvalidArgument

if TYPE_CHECKING:
    from ultima.v1 import types_pb2

INCAST_MAX = 15
RANKS_MAX = 1024
SPAN_MAX_S = 3600.0
OFF = -1
AUTO = "auto"
TAU_DEFAULT, ETA_DEFAULT = 8, 4


@dataclass(frozen=True, slots=True)
class Options:
    """How a job behaves; see the module. What is None comes from the environment, and then from the defaults."""

    algorithm: str | None = None
    congestion: str | None = None
    hadamard: str | None = None
    incast: int | str | None = None
    early_percent: int | str | None = None
    t_b: float | str | timedelta | None = None
    t_c: float | str | timedelta | None = None
    timer_start: str | None = None
    delay_target: float | str | timedelta | None = None
    policy: str | None = None
    quorum: int | str | None = None
    probes: int | str | None = None
    tau: int | str | None = None
    eta: int | str | None = None
    policy_seed: int | str | None = None


class Option(NamedTuple):
    """One row of the table: field of `Options`, field of the message, and how its values are read and written."""

    name: str
    field: str
    read: Callable[[object, str], int]
    write: Callable[[int], str]
    default: int = 0
    of_ranks: bool = False
    """Counts ranks of the job: it cannot be more than there are."""

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"ULTIMA_{self.name.upper()}"


def _words(name: str, *words: str) -> Option:
    numbers = {word: number for number, word in enumerate(words, 1)}

    def read(value: object, field: str) -> int:
        if not isinstance(value, str) or value not in numbers:
            raise InvalidArgument(field, value, "one of " + ", ".join(words))
        return numbers[value]

    return Option(name, name, read, lambda number: words[number - 1] if 0 < number <= len(words) else str(number), 1)


def _whole(name: str, low: int, high: int, zero: str = "", default: int = 0) -> Option:
    allowed = f"a whole number from {low} to {high}" + (f", or 0 or '{zero}'" if zero else "")

    def read(value: object, field: str) -> int:
        number = value
        if isinstance(value, str):
            number = 0 if zero and value == zero else int(value) if value.isascii() and value.isdigit() else None
        allowed_numbers = (*range(low, high + 1), *([0] if zero else []))
        if isinstance(number, int) and not isinstance(number, bool) and number in allowed_numbers:
            return number
        raise InvalidArgument(field, value, allowed)

    return Option(name, name, read, lambda number: zero if zero and not number else str(number), default)


def _count(name: str, high: int, of_ranks: bool = False) -> Option:
    """A whole number from 1 on. The default is 0 in the message and a word here, so that a 0 is never meant as it."""
    allowed = f"a whole number from 1 to {high}, or 'auto'"

    def read(value: object, field: str) -> int:
        number = value
        if isinstance(value, str):
            number = int(value) if value.isascii() and value.isdigit() else 0
            if value == AUTO:
                return 0
        if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= high:
            return number
        raise InvalidArgument(field, value, allowed)

    return Option(name, name, read, lambda number: str(number) if number else AUTO, of_ranks=of_ranks)


def _span(name: str, may_be_off: bool) -> Option:
    special = {"auto": 0, "off": OFF} if may_be_off else {"auto": 0}
    allowed = f"{', '.join(special)}, or a duration of at most 1 h such as '300ms'"

    def read(value: object, field: str) -> int:
        if isinstance(value, str) and value in special:
            return special[value]
        try:
            seconds = duration_s(value, field)
        except InvalidArgument:
            raise InvalidArgument(field, value, allowed) from None
        if seconds > SPAN_MAX_S or seconds < 1e-9:
            raise InvalidArgument(field, value, allowed)
        return round(seconds * 1e9)

    def write(number: int) -> str:
        named = {number: word for word, number in special.items()}.get(number)
        unit, ns = ("s", 10**9) if number >= 10**9 else ("ms", 10**6) if number >= 10**6 else ("us", 1000)
        return named or f"{number / ns:.9g}{unit}"

    return Option(name, f"{name}_ns", read, write)


TABLE = (
    _words("algorithm", "tar", "ring", "bcube", "ps"),
    _words("congestion", "swift", "dctcp", "timely", "none"),
    _words("hadamard", "off", "on", "auto"),
    _whole("incast", 1, INCAST_MAX, "dynamic"),
    _whole("early_percent", 1, 100, default=10),
    _span("t_b", may_be_off=True),
    _span("t_c", may_be_off=True),
    _words("timer_start", "rendezvous", "local"),
    _span("delay_target", may_be_off=False),
    _words("policy", "none", "full", "solo", "majority", "quorum", "probe", "seeded"),
    _count("quorum", RANKS_MAX, of_ranks=True),
    _count("probes", RANKS_MAX, of_ranks=True),
    _count("tau", 255),
    _count("eta", 255),
    _count("policy_seed", 2**64 - 1),
)
BY_NAME = {option.name: option for option in TABLE}
FIXED = ("algorithm", "policy_seed")
"""Cannot be changed while the job runs."""
PARTIAL = ("policy", "quorum", "probes", "tau", "eta", "policy_seed")
"""Of partial jobs; all but the first mean nothing in others."""
WHOLE_ONLY = ("algorithm", "hadamard")
"""Have just their default in partial jobs."""
POLICY_NONE = 1


def resolve(options: Options | None, environment: Mapping[str, str], world_size: int = RANKS_MAX) -> dict[str, int]:
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
        if option.of_ranks and number > world_size:
            raise InvalidArgument(name, value, f"1 to {world_size}, the ranks of the job, or '{AUTO}'")
    policy = said.get("policy", POLICY_NONE)
    for name in WHOLE_ONLY if policy != POLICY_NONE else ():
        row = BY_NAME[name]
        if (number := said.get(name, row.default)) != row.default:
            partial = f"the job is partial: its policy is {BY_NAME['policy'].write(policy)}"
            raise InvalidArgument(name, row.write(number), f"{row.write(row.default)}, for {partial}")
    return said


def changes(pairs: list[str]) -> dict[str, int]:
    """The same of `key=value` texts, for a job that runs. Raises InvalidArgument."""
    names = [name for name in BY_NAME if name not in FIXED]
    said: dict[str, int] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in names:
            why = f"; {name} cannot be changed while the job runs" if name in FIXED else ""
            raise InvalidArgument("KEY=VALUE", pair, f"KEY one of {', '.join(names)}{why}")
        said[BY_NAME[name].field] = BY_NAME[name].read(text, name)
    return said


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
        row.name: row.write(getattr(message, row.field) if message.HasField(row.field) else row.default)
        for row in TABLE
    }


def is_partial(message: types_pb2.JobOptions) -> bool:
    """Whether the job has a policy. Daemons of before there were any say none."""
    return message.policy > POLICY_NONE


def policy_text(message: types_pb2.JobOptions, world_size: int) -> str:
    """What starts the ops of a partial job, with the numbers that count under it: "quorum of 4, tau 8"."""
    text = BY_NAME["policy"].write(message.policy)
    if text == "quorum":
        text += f" of {message.quorum or (world_size + 1) // 2}"
    if text in ("probe", "seeded"):
        text += f" of {message.probes or min(2, world_size)}"
    return f"{text}, tau {message.tau or TAU_DEFAULT}, eta {message.eta or ETA_DEFAULT}"
