# SPDX-License-Identifier: Apache-2.0
"""What `connect` needs to know, from its arguments, the environment and the defaults, in this order.

    argument           environment              default
    job                ULTIMA_JOB               torchrun's MASTER_ADDR and MASTER_PORT as a name, else "default"
    rank, world_size   RANK, WORLD_SIZE         0 of 1, when neither is set
    socket             ULTIMA_SOCKET            /run/ultima/ultimad.sock; a path or unix:///path
    rendezvous         ULTIMA_RENDEZVOUS        MASTER_ADDR with port ULTIMA_PORT (29520), else "": all on this host
    rank_addresses     ULTIMA_RANK_ADDRESSES    none; "address:port" of the daemon of each rank, separated by commas
    timeout            ULTIMA_TIMEOUT           60 s, to attach and for all ranks to come
    deadline           ULTIMA_DEADLINE          of an op that is not given one: measured, at most 30 s; or "none"
    arena              ULTIMA_ARENA             256M of shared memory, of which only what is used costs memory
    bucket_bytes_max   ULTIMA_BUCKET_MAX        128M, or the arena or the daemon's limit if that is less; at most 4 GiB
    rate               ULTIMA_RATE              the daemon's default share of the link, in bytes per second
    reconnect          ULTIMA_RECONNECT         1: attach again after the daemon was lost
    world              ULTIMA_WORLD             fixed; "elastic": hosts come and go, and the next six are read in the
                                                place of rank, world_size and rendezvous (docs/elastic.md)
    least              ULTIMA_LEAST             1: hosts that an op needs
    most               ULTIMA_MOST              64: hosts that the job can have
    local_world_size   ULTIMA_LOCAL_WORLD_SIZE  1: ranks on each host, the same on all hosts
    local_rank         ULTIMA_LOCAL_RANK        0: which of them this is, from 0
    meet               ULTIMA_MEET              "": this host alone; "host:port" of the daemon where hosts meet, or some
    split              ULTIMA_ON_SPLIT          go on; "wait": the smaller side of a cut network does not go on alone
    follow             (none)                   no; a newcomer is in no op before it has caught up (`ElasticJob.follow`)
    (none)             ULTIMA_TRACE             none; a file for a timeline of the ops, with the rank in its name
    (none)             ULTIMA_MODE              bounded, best_effort or reliable: of float sums that name no mode
    (none)             ULTIMA_JOB_SECRET        none; the job's secret, or ULTIMA_JOB_SECRET_FILE a file that holds it
    options            ULTIMA_ALGORITHM, ...    how the job behaves; the table is in `ultima.settings.options`

Durations are seconds, or text with a unit (500us 250ms 2s 1.5m 1h), or a timedelta. Sizes are bytes, or text with a
binary unit (4096 64K 64M 1G, also 64MiB). A variable that is almost one of these, such as ULTIMA_INCASTS, is refused.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ultima.base.durations import Duration, deadline_s, duration_s
from ultima.base.errors import InvalidArgument
from ultima.settings import options as job_options
from ultima.settings.options import Options
from ultima.v1 import secrets
from ultima.v1.limits import BUCKET_BYTES_MAX, HOSTS_MAX, JOB_NAME_MAX, LOCAL_RANKS_MAX, MEET_MAX, WORLD_SIZE_MAX

Size = int | str

SECRET_VARIABLE, SECRET_FILE_VARIABLE = "ULTIMA_JOB_SECRET", "ULTIMA_JOB_SECRET_FILE"
DEFAULT_SOCKET = "/run/ultima/ultimad.sock"
DEFAULT_PORT = 29520
DEFAULT_TIMEOUT_S = 60.0
DEFAULT_DEADLINE_S = 30.0
DEFAULT_ARENA_BYTES = 256 << 20

ARENA_MIN_BYTES = 4096
ARENA_MAX_BYTES = 1 << 40
SOCKET_PATH_MAX = 107  # sun_path, less its final zero

VARIABLES = (
    *(f"ULTIMA_{name}" for name in "JOB SOCKET RENDEZVOUS PORT RANK_ADDRESSES TIMEOUT DEADLINE ARENA RATE".split()),
    *("ULTIMA_BUCKET_MAX", "ULTIMA_RECONNECT", "ULTIMA_MODE", "ULTIMA_ON_INSUFFICIENT", "ULTIMA_TRACE", "ULTIMA_WIRE"),
    *("ULTIMA_JOB_SECRET", "ULTIMA_JOB_SECRET_FILE"),
    *("ULTIMA_WORLD", "ULTIMA_LEAST", "ULTIMA_MOST", "ULTIMA_MEET", "ULTIMA_ON_SPLIT"),
    *("ULTIMA_LOCAL_WORLD_SIZE", "ULTIMA_LOCAL_RANK"),
    *(option.variable for option in job_options.TABLE),
)
"""All that the client reads. Others of this prefix belong to whoever set them."""
_ALIKE = 0.85  # a name that is as near as this to one of them is a slip: ULTIMA_INCASTS, ULTIMA_TB

_SIZE = re.compile(r"\s*([0-9]+)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_SIZE_ALLOWED = "whole bytes from {low} to {high}, or text such as '64K', '64M', '1G'"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that one `connect` goes by, checked."""

    job: str
    rank: int
    world_size: int
    socket: str
    """Path of the daemon's gRPC socket; the attach socket lies beside it."""
    rendezvous: str
    rank_addresses: tuple[str, ...]
    timeout_s: float
    deadline_s: float
    arena_bytes: int
    bucket_bytes_max: int
    """0: the daemon's choice."""
    rate_bytes_per_s: int
    """0: the daemon's default."""
    reconnect: bool
    adaptive: bool = False
    """Nobody named the deadline: it is the latest one of an op that follows what the engine measures."""
    mode: str = "bounded"
    """Of sums of floating-point numbers that are not given one."""
    options: Mapping[str, int] = field(default_factory=dict)
    """What was said of the job's options, as numbers by field of the message JobOptions."""
    secret: bytes = field(default=b"", repr=False)
    """Of the job, for daemons that authenticate each other; empty for none."""
    trace: str = ""
    """The file of a timeline; empty for none."""
    least: int = 0
    """Above 0: hosts come and go, world_size is that of all seats, `rank` is the place among the ranks of the host, and
    an op needs so many hosts."""
    local_world_size: int = 1
    """Ranks on each host then."""
    split_waits: bool = False
    """Then the smaller side of a cut network waits; else it goes on by itself."""
    follow: bool = False
    """Of a job whose hosts come and go: the rank comes in when it has caught up with the others."""


def size_bytes(value: object, field: str, low: int, high: int) -> int:
    """Bytes of a size within `low` to `high`. Raises InvalidArgument for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        size = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()]
    else:
        raise InvalidArgument(field, value, _SIZE_ALLOWED.format(low=low, high=high))
    if not low <= size <= high:
        raise InvalidArgument(field, value, _SIZE_ALLOWED.format(low=low, high=high))
    return size


def socket_path(value: object, field: str) -> str:
    """The path in a path or unix:// URL. Raises InvalidArgument for a relative URL or a path too long for a socket."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InvalidArgument(field, value, "a path, or unix:///path")
    if text.startswith("unix:"):
        text = text.removeprefix("unix:").removeprefix("//")
    if not text or "\0" in text or "://" in text or len(os.fsencode(text)) > SOCKET_PATH_MAX:
        raise InvalidArgument(field, value, f"a path of at most {SOCKET_PATH_MAX} bytes, or unix:///path")
    return text


def job_name(value: object, field: str) -> str:
    """The name of a job. Raises InvalidArgument for one that no job may have."""
    if not isinstance(value, str) or not 1 <= len(value) <= JOB_NAME_MAX or not value.isprintable():
        raise InvalidArgument(field, value, f"1 to {JOB_NAME_MAX} printable characters")
    return value


def resolve(
    environment: Mapping[str, str],
    *,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    socket: str | os.PathLike[str] | None = None,
    rendezvous: str | None = None,
    rank_addresses: Sequence[str] | None = None,
    timeout: Duration | None = None,
    deadline: Duration | None = None,
    arena: Size | None = None,
    bucket_bytes_max: Size | None = None,
    rate: Size | None = None,
    reconnect: bool | None = None,
    options: Options | None = None,
    world: str | None = None,
    least: int | None = None,
    most: int | None = None,
    meet: str | Sequence[str] | None = None,
    split: str | None = None,
    follow: bool | None = None,
    local_world_size: int | None = None,
    local_rank: int | None = None,
) -> Settings:
    """Settings from arguments, then `environment`, then defaults. Raises InvalidArgument naming the argument or
    variable.
    """
    check_names(environment)
    source = _Source(environment)
    rules = _elastic(source, world, least, most, meet, split, follow, local_world_size, local_rank)
    if rules is None:
        number, ranks = _rank_and_world(source, rank, world_size)
        addresses = _rank_addresses(source, rank_addresses, ranks)
    else:
        for field, given in (("rank", rank), ("world_size", world_size), ("rendezvous", rendezvous)):
            if given is not None:
                instead = "meet says where hosts meet" if field == "rendezvous" else "the view says it"
                raise InvalidArgument(field, given, f'none with world="elastic": {instead}')
        number, ranks, addresses = rules.local_rank, rules.most * rules.local_world_size, ()
    timeout_value, timeout_field = source.pick(timeout, "timeout", "ULTIMA_TIMEOUT", DEFAULT_TIMEOUT_S)
    deadline_value, deadline_field = source.pick(deadline, "deadline", "ULTIMA_DEADLINE", None)
    adaptive = deadline_value is None
    arena_value, arena_field = source.pick(arena, "arena", "ULTIMA_ARENA", DEFAULT_ARENA_BYTES)
    bucket_value, bucket_field = source.pick(bucket_bytes_max, "bucket_bytes_max", "ULTIMA_BUCKET_MAX", 0)
    rate_value, rate_field = source.pick(rate, "rate", "ULTIMA_RATE", 0)
    return Settings(
        job=_job_name(source, job),
        rank=number,
        world_size=ranks,
        socket=socket_path(*source.pick(socket, "socket", "ULTIMA_SOCKET", DEFAULT_SOCKET)),
        rendezvous=rules.meet if rules else "" if addresses else _rendezvous(source, rendezvous),
        rank_addresses=addresses,
        timeout_s=duration_s(timeout_value, timeout_field),
        deadline_s=DEFAULT_DEADLINE_S if adaptive else deadline_s(deadline_value, deadline_field),
        arena_bytes=size_bytes(arena_value, arena_field, ARENA_MIN_BYTES, ARENA_MAX_BYTES),
        bucket_bytes_max=size_bytes(bucket_value, bucket_field, 0, BUCKET_BYTES_MAX),
        rate_bytes_per_s=size_bytes(rate_value, rate_field, 0, 2**62),
        reconnect=job_options.yes_no(*source.pick(reconnect, "reconnect", "ULTIMA_RECONNECT", True)),
        adaptive=adaptive,
        mode=mode_named(environment),
        options=_options(options, environment, ranks, rules),
        secret=job_secret(environment),
        trace=environment.get("ULTIMA_TRACE", ""),
        least=rules.least if rules else 0,
        split_waits=bool(rules and rules.split_waits),
        follow=bool(follow),
        local_world_size=rules.local_world_size if rules else 1,
    )


def check_names(environment: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a variable whose name is almost, but not quite, one that the client reads."""
    for name in sorted(environment):
        if name.startswith("ULTIMA_") and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=_ALIKE)
            if near:
                raise InvalidArgument(name, environment[name], f"no such variable; the nearest one is {near[0]}")


def mode_named(environment: Mapping[str, str]) -> str:
    """ULTIMA_MODE, "bounded" where it is not set. Raises InvalidArgument."""
    from ultima.base.words import MODES  # it imports numpy, which not everybody who reads settings needs

    text = environment.get("ULTIMA_MODE") or "bounded"
    if text not in MODES:
        raise InvalidArgument("ULTIMA_MODE", text, ", ".join(MODES))
    return text


def job_secret(environment: Mapping[str, str]) -> bytes:
    """The job's secret that `environment` names, or b"". Raises InvalidArgument, which does not repeat the secret."""
    text, file = environment.get(SECRET_VARIABLE), environment.get(SECRET_FILE_VARIABLE)
    if text and file:
        raise InvalidArgument(SECRET_FILE_VARIABLE, file, f"only one of it and {SECRET_VARIABLE}")
    try:
        return secrets.parse(text) if text else secrets.read_file(Path(file)) if file else b""
    except ValueError as error:
        named, shown = (SECRET_VARIABLE, "set") if text else (SECRET_FILE_VARIABLE, file)
        raise InvalidArgument(
            named, shown, f"{secrets.SECRET_ALLOWED}, readable only by its owner: it {error}"
        ) from None


class _Source:
    """The environment, remembering under which name a value was found, for the message if it is wrong."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def get(self, variable: str) -> str | None:
        """The variable's text; one that is set but empty counts as not set."""
        return self._environment.get(variable) or None

    def pick(self, argument: object, field: str, variable: str, default: object) -> tuple[object, str]:
        if argument is not None:
            return argument, field
        text = self.get(variable)
        return (default, field) if text is None else (text, variable)


def _whole(value: object, field: str, low: int, high: int) -> int:
    allowed = f"a whole number from {low} to {high}"
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise InvalidArgument(field, value, allowed) from None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidArgument(field, value, allowed)
    number = int(value.__index__())
    if not low <= number <= high:
        raise InvalidArgument(field, number, allowed)
    return number


def _rank_and_world(source: _Source, rank: int | None, world_size: int | None) -> tuple[int, int]:
    rank_value, rank_field = source.pick(rank, "rank", "RANK", None)
    world_value, world_field = source.pick(world_size, "world_size", "WORLD_SIZE", None)
    if rank_value is None and world_value is None:
        return 0, 1
    if world_value is None:
        raise InvalidArgument(world_field, None, f"a whole number, as {rank_field} is given; or set WORLD_SIZE")
    world = _whole(world_value, world_field, 1, WORLD_SIZE_MAX)
    if rank_value is None:
        if world == 1:
            return 0, 1
        raise InvalidArgument(rank_field, None, f"a whole number from 0 to {world - 1}; or set RANK")
    return _whole(rank_value, rank_field, 0, world - 1), world


class _Elastic(NamedTuple):
    """Of a job whose hosts come and go."""

    least: int
    most: int
    meet: str
    split_waits: bool
    local_world_size: int
    local_rank: int


def _elastic(
    source: _Source,
    world: object,
    least: object,
    most: object,
    meet: object,
    split: object,
    follow: object,
    local_world_size: object,
    local_rank: object,
) -> _Elastic | None:
    world, field = source.pick(world, "world", "ULTIMA_WORLD", None)
    if world not in (None, "fixed", "elastic"):
        raise InvalidArgument(field, world, '"elastic": hosts come and go; "fixed" is the default')
    if world != "elastic":
        for name, given in (
            *(("least", least), ("most", most), ("meet", meet), ("split", split)),
            *(("follow", follow or None), ("local_world_size", local_world_size), ("local_rank", local_rank)),
        ):
            if given is not None:
                raise InvalidArgument(name, given, 'none without world="elastic"')
        return None
    if follow not in (None, True, False):
        raise InvalidArgument("follow", follow, "True or False")
    most_value = _whole(*source.pick(most, "most", "ULTIMA_MOST", HOSTS_MAX), 1, HOSTS_MAX)
    least_value = _whole(*source.pick(least, "least", "ULTIMA_LEAST", 1), 1, most_value)
    meet_value, meet_field = source.pick(meet, "meet", "ULTIMA_MEET", "")
    split_value, split_field = source.pick(split, "split", "ULTIMA_ON_SPLIT", "go on")
    if split_value not in ("go on", "wait"):
        raise InvalidArgument(split_field, split_value, '"go on" or "wait"')
    each = _whole(*source.pick(local_world_size, "local_world_size", "ULTIMA_LOCAL_WORLD_SIZE", 1), 1, LOCAL_RANKS_MAX)
    local = _whole(*source.pick(local_rank, "local_rank", "ULTIMA_LOCAL_RANK", 0), 0, each - 1)
    if follow and each > 1:
        raise InvalidArgument("follow", follow, f"False with local_world_size {each}")
    return _Elastic(least_value, most_value, _meets(meet_value, meet_field), split_value == "wait", each, local)


def _meets(value: object, field: str) -> str:
    """The daemons at which hosts meet, with commas between; "" for none."""
    several = value.split(",") if isinstance(value, str) else [*value] if isinstance(value, (list, tuple)) else [value]
    if value in ("", [], ()):
        return ""
    if len(several) > MEET_MAX:
        raise InvalidArgument(field, value, f"up to {MEET_MAX} daemons")
    return ",".join(_address(each, field) for each in several)


def _options(
    options: Options | None, environment: Mapping[str, str], ranks: int, rules: _Elastic | None
) -> dict[str, int]:
    said = job_options.resolve(options, environment, ranks)
    for name in ("policy", "algorithm") if rules is not None else ():
        row = job_options.BY_NAME[name]
        if said.get(row.field, row.row.default) != row.row.default:
            allowed = f'{row.write(row.row.default)}, with world="elastic"'
            raise InvalidArgument(name, row.write(said[row.field]), allowed)
    return said


def _job_name(source: _Source, job: str | None) -> str:
    address, port = source.get("MASTER_ADDR"), source.get("MASTER_PORT")
    default = f"torchrun-{address}-{port}" if address and port else "default"
    return job_name(*source.pick(job, "job", "ULTIMA_JOB", default))


def _rendezvous(source: _Source, rendezvous: str | None) -> str:
    port_value, port_field = source.pick(None, "port", "ULTIMA_PORT", DEFAULT_PORT)
    port = _whole(port_value, port_field, 1, 65535)
    master = source.get("MASTER_ADDR")
    value, field = source.pick(
        rendezvous, "rendezvous", "ULTIMA_RENDEZVOUS", join_address(master, port) if master else ""
    )
    if value == "":
        return ""
    return _address(value, field)


def _rank_addresses(source: _Source, given: Sequence[str] | None, world: int) -> tuple[str, ...]:
    text = source.get("ULTIMA_RANK_ADDRESSES")
    if given is not None:
        entries, field = list(given), "rank_addresses"
    elif text is not None:
        entries, field = text.split(","), "ULTIMA_RANK_ADDRESSES"
    else:
        return ()
    if isinstance(given, str) or (entries and len(entries) != world):
        raise InvalidArgument(field, given or text, f"one 'address:port' per rank, {world} in all")
    return tuple(_address(entry, field) for entry in entries)


def join_address(host: str, port: int) -> str:
    """ "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _address(value: object, field: str) -> str:
    allowed = "'host:port' or '[v6]:port'"
    if not isinstance(value, str):
        raise InvalidArgument(field, value, allowed)
    text = value.strip()
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]") and len(host) > 2
    if not host or (":" in host and not bracketed) or not text.isprintable() or " " in text:
        raise InvalidArgument(field, value, allowed)
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise InvalidArgument(field, value, allowed + ", the port from 1 to 65535")
    return text
