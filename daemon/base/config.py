# SPDX-License-Identifier: Apache-2.0
"""The daemon's options: defaults < TOML file < environment (ULTIMAD_*) < flags.

Whatever is wrong is named with where it came from, its key, its value and what is allowed, all in one line, because a
daemon that does not start is read about in a journal. Limits stand here on one page and are printed at start.
"""

from __future__ import annotations

import difflib
import grp
import ipaddress
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from ultima.daemon.base import dscp
from ultima.daemon.base.errors import StartupError
from ultima.daemon.base.written import Bytes, Int, Seconds, listed
from ultima.v1.limits import (
    BUCKET_BYTES_MAX,
    HOSTS_MAX,
    JOBS_MAX,
    LANES_MAX,
    LOCAL_RANKS_MAX,
    PACKET_BYTES_MAX,
    PACKET_BYTES_MIN,
    PACKET_BYTES_STEP,
    SESSIONS_MAX,
    WORLD_SIZE_MAX,
)
from ultima.v1.nodes import NODE_ALLOWED, is_node

DEFAULT_FILE = Path("/etc/ultima/ultimad.toml")
ENVIRONMENT_PREFIX = "ULTIMAD_"
ENVIRONMENT_FILE = "ULTIMAD_CONFIG"

BUCKET_BYTES_UNSAID = 2**27  # at most, of a trainer that does not say how large its buckets are

FILES = ("certificate", "key", "authority")
RATE_LEAST = 2**16  # bytes per second: 16 packets, which go at once, then have a third of a second


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class EngineOptions(_Section):
    """How the engine uses the network. Zero leaves a choice to the engine."""

    lanes: Int = Field(2, ge=1, le=LANES_MAX, description="engines, each with a thread and two ports of its own")
    data_port: Int = Field(0, ge=0, le=65535, description="UDP, of the first lane; 0: the port after `port`")
    feedback_port: Int = Field(0, ge=0, le=65535, description="UDP, of the first lane; 0: the second one after `port`")
    receive_buffer_bytes: Bytes = Field(0, ge=0, le=2**31 - 1, description="asked of the kernel; 0: 8 MiB")
    send_buffer_bytes: Bytes = Field(0, ge=0, le=2**31 - 1, description="asked of the kernel; 0: 512 KiB")
    packet_bytes: Int = Field(
        0, ge=0, le=PACKET_BYTES_MAX, description="UDP payload of a full packet; 0: fits an MTU of 1500"
    )
    gso: bool = Field(True, description="segmentation offload, where the kernel has it")
    gro: bool = Field(True, description="receive offload, where the kernel has it")
    dscp: str = Field(
        "", description="class of UDP packets for routers: CS0 to CS7, AF11 to AF43, EF, VA, LE or 0 to 63; empty: none"
    )
    cipher: Literal["auto", "aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"] = Field(
        "auto", description="of the packets to this host, where peers are authenticated; auto: the fastest of this CPU"
    )
    rate_bytes_per_s: Bytes = Field(
        0, ge=0, le=2**40, description="most that this host sends, all jobs together and with headers; 0: no limit"
    )
    new_secret_seconds: Seconds = Field(
        3600, ge=1, le=86400, description="how often the packets to this host get a fresh secret, where they are sealed"
    )

    @field_validator("dscp", mode="before")
    @classmethod
    def _dscp(cls, value: object) -> object:
        return dscp.named(value)

    @property
    def dscp_number(self) -> int:
        """Of the class; 0 for none."""
        return dscp.number(self.dscp)

    def become(self, other: EngineOptions) -> None:
        """Takes over, in place, what may change while jobs run: the rate."""
        self.__dict__["rate_bytes_per_s"] = other.rate_bytes_per_s

    @field_validator("rate_bytes_per_s")
    @classmethod
    def _rate(cls, value: int) -> int:
        if 0 < value < RATE_LEAST:
            raise ValueError(f"allowed: 0, or {RATE_LEAST} or more: bytes per second, not Mbit/s")
        return value

    @field_validator("packet_bytes")
    @classmethod
    def _packet_bytes(cls, value: int) -> int:
        if value and (value < PACKET_BYTES_MIN or value % PACKET_BYTES_STEP):
            raise ValueError(
                f"allowed: 0, or {PACKET_BYTES_MIN} to {PACKET_BYTES_MAX} and a multiple of {PACKET_BYTES_STEP}"
            )
        return value


class RelayOptions(_Section):
    """Third hosts of a job that forward packets where UDP does not get through."""

    use: Literal["auto", "always", "never"] = Field(
        "auto", description="send by a third host: where UDP is found not to get through, to all from the start, or not"
    )
    serve: bool = Field(True, description="forward packets of other hosts of a job, if they ask")
    port: Int = Field(0, ge=0, le=65535, description="UDP, for that; 0: the port after those of all lanes")
    rate_bytes_per_s: Bytes = Field(
        0, ge=0, le=2**40, description="most that is forwarded; 0: half of what the network interface carries"
    )


class TlsOptions(_Section):
    """How the daemon and its peers authenticate each other: by three files, or by the secret of one job."""

    certificate: str = Field("", description="PEM file: this node's certificate, and those that lead to the authority")
    key: str = Field("", description="PEM file: the certificate's key; others may not read it")
    authority: str = Field("", description="PEM file: the authorities whose certificates are believed")
    withdrawn: str = Field("", description="file: the nodes that the authority has withdrawn; empty: none")
    job_secret: str = Field("", description="instead: file with the secret of the one job that the daemon serves")
    node: str = Field("", description="with job_secret: this node's name; empty: the host's")

    @field_validator("node")
    @classmethod
    def _node(cls, value: str) -> str:
        if value and not is_node(value):
            raise ValueError(f"allowed: {NODE_ALLOWED}")
        return value

    def given(self) -> list[str]:
        """Names of the options that are set."""
        return [f"tls.{name}" for name in TlsOptions.model_fields if getattr(self, name)]


class Limits(_Section):
    """All limits that are not built into the engine.

    One user may not have all of what is shared: a quarter is kept for others, unless a limit says how much. That is
    zero of fewer than four, so who is alone and sets small limits does not meet it.
    """

    jobs: Int = Field(JOBS_MAX, ge=1, le=JOBS_MAX, description="jobs at once")
    jobs_per_uid: Int = Field(0, ge=0, le=JOBS_MAX, description="of one user; 0: three quarters of `jobs`")
    sessions: Int = Field(SESSIONS_MAX, ge=1, le=SESSIONS_MAX, description="trainers at once")
    sessions_per_uid: Int = Field(0, ge=0, le=SESSIONS_MAX, description="of one user; 0: three quarters of `sessions`")
    attaching: Int = Field(64, ge=1, le=4096, description="attached processes at once that are not yet in a job")
    attaching_per_uid: Int = Field(0, ge=0, le=4096, description="of one user; 0: three quarters of `attaching`")
    arena_bytes: Bytes = Field(4 * 2**30, ge=4096, le=2**40, description="shared memory of one trainer")
    memory_bytes: Bytes = Field(
        32 * 2**30, ge=2**20, le=2**44, description="memory of all trainers and jobs; by itself never over MemoryMax"
    )
    memory_bytes_per_uid: Bytes = Field(
        0, ge=0, le=2**44, description="memory of one user's trainers and jobs; 0: three quarters of `memory_bytes`"
    )
    memory_bytes_per_job: Bytes = Field(
        0, ge=0, le=2**44, description="memory of a job: arenas, engine; 0: as much as one user may have"
    )
    bucket_bytes: Bytes = Field(BUCKET_BYTES_MAX, ge=4096, le=BUCKET_BYTES_MAX, description="largest bucket of any job")
    rate_bytes_per_s: Bytes = Field(0, ge=0, le=2**40, description="most that one job may send; 0: no limit")
    hello_seconds: Seconds = Field(5.0, gt=0, le=60, description="longest time from connecting to asking for memory")
    ticket_seconds: Seconds = Field(30.0, gt=0, le=3600, description="longest time from attaching to joining a job")
    join_seconds: Seconds = Field(
        300.0, gt=0, le=86400, description="longest time for joining, whatever the caller says"
    )
    drain_seconds: Seconds = Field(
        5.0, ge=0, le=600, description="how long to wait for open ops when the daemon is told to stop"
    )
    drain_window_seconds: Seconds = Field(
        10.0, ge=0, le=600, description="how long other hosts wait for a daemon that restarts; 0: not at all"
    )
    probe_seconds: Seconds = Field(
        2.0, ge=0.05, le=60, description="how long to wait for the ranks drawn to start an op before others are drawn"
    )

    def become(self, other: Limits) -> None:
        """Takes over the values of `other`, in place: whoever holds these limits goes by the new ones from now on."""
        self.__dict__.update(other.__dict__)

    def share(self, name: str) -> int:
        """How much one user may have of what the limit `name` bounds: `name`_per_uid, or all but a quarter."""
        whole = int(getattr(self, name))
        return int(getattr(self, f"{name}_per_uid")) or whole - whole // 4

    def in_force(self) -> dict[str, int]:
        """By name, in whole units, each as it holds."""
        shown = {name: int(value) for name, value in self.model_dump().items()}
        shares = {f"{name}_per_uid": self.share(name) for name in shown if f"{name}_per_uid" in shown}
        per_job = self.memory_bytes_per_job or shares["memory_bytes_per_uid"]
        return shown | shares | {"memory_bytes_per_job": per_job}


class DaemonConfig(_Section):
    """All options of one daemon."""

    runtime_dir: Path = Field(Path("/run/ultima"), description="folder of the two sockets and the lock")
    state_dir: str = Field("", description="folder of the history; empty: $STATE_DIRECTORY, else memory only")
    metrics: str = Field("", description="where Prometheus may ask, as 127.0.0.1:29519 or unix:PATH; empty: nowhere")
    web: str = Field("", description="where the status page is, as 127.0.0.1:29518 or unix:PATH; empty: nowhere")
    bind: str = Field("", description="numeric address for peers, TCP and UDP; empty: no peers, this host alone")
    advertise: str = Field("", description="numeric address that peers use instead of `bind`; needed behind a wildcard")
    port: Int = Field(29520, ge=0, le=65533, description="TCP for peers; 0 picks free ones")
    insecure: bool = Field(False, description="talk to peers without authentication")
    tls: TlsOptions = Field(default_factory=lambda: TlsOptions.model_validate({}))
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["auto", "lines", "logfmt", "json"] = Field(
        "auto", description="of log lines; auto: logfmt under the journal, lines for people elsewhere"
    )
    allow_uids: Annotated[list[Int], BeforeValidator(listed)] = Field([], description="users that may attach")
    allow_group: str = Field("", description="group whose members may attach")
    root_is_trusted: bool = Field(
        True,
        description="uid 0 may attach, and do with jobs and the log what their users may; false for containers",
    )
    engine: EngineOptions = Field(default_factory=lambda: EngineOptions.model_validate({}))
    relay: RelayOptions = Field(default_factory=lambda: RelayOptions.model_validate({}))
    limits: Limits = Field(default_factory=lambda: Limits.model_validate({}))
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("bind", "advertise")
    @classmethod
    def _address(cls, value: str) -> str:
        if value:
            try:
                ipaddress.ip_address(value)
            except ValueError:
                raise ValueError("allowed: a numeric IPv4 or IPv6 address") from None
        return value

    @field_validator("metrics", "web")
    @classmethod
    def _on_loopback(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        loopback = host in ("127.0.0.1", "[::1]") and port.isdecimal() and int(port) <= 65535
        if value and not loopback and not value.startswith("unix:/"):
            raise ValueError("allowed: 127.0.0.1:PORT, [::1]:PORT, or unix: and an absolute path")
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _level(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("allow_group")
    @classmethod
    def _group(cls, value: str) -> str:
        if value:
            try:
                grp.getgrnam(value)
            except KeyError:
                raise ValueError("allowed: a group of this machine") from None
        return value

    @model_validator(mode="after")
    def _together(self) -> DaemonConfig:
        self._check_trust()
        self._check_ports()
        if self.web and self.web == self.metrics and not self.web.endswith(":0"):
            raise ValueError(f"web = {self.web!r}: metrics are asked for there: allowed: another place")
        if self.advertise:
            if not self.bind:
                raise ValueError(f"advertise = {self.advertise!r}: allowed only with `bind`")
            bind = ipaddress.ip_address(self.bind)
            advertised = ipaddress.ip_address(self.advertise)
            if advertised.version != bind.version or advertised.is_unspecified:
                raise ValueError(f"advertise = {self.advertise!r}: allowed: a host's address of the family of bind")
        return self

    def _check_trust(self) -> None:
        """Raises ValueError unless it is clear how peers are authenticated. There is nothing between secure and not."""
        tls, given = self.tls, self.tls.given()
        files = [name for name in FILES if f"tls.{name}" in given]
        if self.insecure and given:
            raise ValueError(f"insecure = True: not together with {given[0]}: leave out one of the two")
        if files and tls.job_secret:
            raise ValueError(f"tls.job_secret = {tls.job_secret!r}: not together with tls.{files[0]}: leave out one")
        if files and len(files) < len(FILES):
            missing = next(name for name in FILES if name not in files)
            raise ValueError(f"tls.{files[0]} = {getattr(tls, files[0])!r}: needs tls.{missing} as well")
        if tls.withdrawn and not files:
            raise ValueError(f"tls.withdrawn = {tls.withdrawn!r}: allowed only with tls.certificate")
        if tls.node and not tls.job_secret:
            raise ValueError(f"tls.node = {tls.node!r}: allowed only with tls.job_secret; a certificate names its node")
        if self.bind and not self.insecure and not given:
            raise ValueError(
                f"bind = {self.bind!r}: peers must be authenticated: set tls.certificate, tls.key and tls.authority "
                "(`ultima ca` makes the files) or tls.job_secret; --insecure does without, on a network of your own; "
                "without `bind` the daemon serves this host alone"
            )

    def origins(self) -> dict[str, str]:
        """Of each key, with dots, where its value comes from: "default", a file, a variable or a flag."""
        return {".".join(key): self._origins.get(".".join(key), "default") for key in KEYS}

    def udp_ports(self) -> list[tuple[int, int]]:
        """Data and feedback port per lane: each lane takes the next two. 0 leaves it to the kernel."""
        engine = self.engine
        data = engine.data_port or (self.port + 1 if self.port else 0)
        feedback = engine.feedback_port or (self.port + 2 if self.port else 0)
        return [(data + 2 * i if data else 0, feedback + 2 * i if feedback else 0) for i in range(engine.lanes)]

    def _check_ports(self) -> None:
        """Raises ValueError where the lanes' ports meet one another, or there are not that many."""
        ports = [port for pair in self.udp_ports() for port in pair if port]
        if len(set(ports)) < len(ports) or max(ports, default=0) > 65535:
            raise ValueError(
                f"engine.lanes = {self.engine.lanes}: needs UDP ports {', '.join(map(str, ports))}, two more for each "
                "lane: allowed: different ones, up to 65535"
            )

    @property
    def socket(self) -> Path:
        """The gRPC socket for trainers and operators."""
        return self.runtime_dir / "ultimad.sock"

    @property
    def attach_socket(self) -> Path:
        """The socket on which trainers get their shared memory."""
        return self.runtime_dir / "attach.sock"

    @property
    def address(self) -> str:
        """The address that peers are told; empty if only they can know it, or if there are none."""
        if self.advertise or not self.bind:
            return self.advertise
        return "" if ipaddress.ip_address(self.bind).is_unspecified else self.bind

    def limits_in_force(self) -> dict[str, int]:
        """Limits by name, in whole units, the engine's own included; printed at start and shown in status."""
        return {f"limits.{name}": value for name, value in self.limits.in_force().items()} | {
            "engine.rate_bytes_per_s": self.engine.rate_bytes_per_s,
            "hosts_per_job": HOSTS_MAX,
            "ranks_per_host": LOCAL_RANKS_MAX,
            "ranks_per_job": WORLD_SIZE_MAX,
        }


Path_ = tuple[str, ...]


def _leaves(model: type[BaseModel], above: Path_ = ()) -> Iterator[Path_]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _leaves(field.annotation, (*above, name))
        else:
            yield (*above, name)


KEYS: tuple[Path_, ...] = tuple(_leaves(DaemonConfig))
_VARIABLES = {ENVIRONMENT_PREFIX + "_".join(key).upper(): key for key in KEYS}


class _Merged:
    """Values of all sources, and for each key the source that had the last word."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origin: dict[Path_, str] = {}

    def put(self, key: Path_, value: object, origin: str) -> None:
        at = self.values
        for part in key[:-1]:
            inner = at.setdefault(part, {})
            if not isinstance(inner, dict):
                return  # a section that the file gave a plain value: reported as such
            at = inner
        at[key[-1]] = value
        self.origin[key] = origin

    def put_tree(self, tree: Mapping[str, object], origin: str, above: Path_ = ()) -> None:
        for name, value in tree.items():
            if isinstance(value, dict):
                self.put_tree(value, origin, (*above, name))
                self.origin[(*above, name)] = origin
            else:
                self.put((*above, name), value, origin)

    def value(self, key: Path_) -> object:
        at: Any = self.values
        for part in key:
            at = at.get(part) if isinstance(at, dict) else None
        return at


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise StartupError(f"{file}: not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise StartupError(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise StartupError(f"{file}: {error.strerror}") from None


# What pydantic says of values, and what we say.
_PYDANTIC = {
    "Input should be ": "allowed: ",
    "less than or equal to": "at most",
    "greater than or equal to": "at least",
}
_ALLOWED = {
    "model_type": "a table",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
}


def _sentence(merged: _Merged, error: Mapping[str, Any]) -> str:
    key = tuple(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    for theirs, ours in _PYDANTIC.items():
        message = message.replace(theirs, ours)
    message = f"allowed: {allowed}" if (allowed := _ALLOWED.get(error["type"])) else message
    if not key:
        named = next((k for k in merged.origin if message.startswith(f"{'.'.join(k)} = ")), None)
        return f"{merged.origin[named]}: {message}" if named else message
    known = key
    while known and known not in merged.origin:
        known = known[:-1]  # of a list's item, the list is what was given
    origin = merged.origin.get(known, "defaults")
    if error["type"] == "extra_forbidden":
        siblings = sorted({k[len(key) - 1] for k in KEYS if k[: len(key) - 1] == key[:-1]})
        return f"{origin}: {'.'.join(key)}: unknown key; allowed: {', '.join(siblings)}"
    return f"{origin}: {'.'.join(known)} = {merged.value(known)!r}: {message}"


def load(
    flags: Mapping[str, object], environment: Mapping[str, str], default_file: Path = DEFAULT_FILE
) -> DaemonConfig:
    """Merges all sources and checks the result.

    `flags` holds only what was given on the command line, by key of DaemonConfig; "config" names the file. Without
    one, ULTIMAD_CONFIG does, and without that `default_file` is read if it exists. Raises StartupError with one line
    that names everything that is wrong.
    """
    merged = _Merged()
    named = flags.get("config") or environment.get(ENVIRONMENT_FILE)
    file = Path(str(named)) if named else default_file
    if named or file.exists():
        merged.put_tree(_read(file), str(file))
    wrong = []
    for name in sorted(environment):
        if name in _VARIABLES:
            merged.put(_VARIABLES[name], environment[name], name)
        elif name.startswith(ENVIRONMENT_PREFIX) and name != ENVIRONMENT_FILE:
            near = difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0.0)[0]
            wrong.append(f"{name}: unknown variable; allowed: ULTIMAD_ and a key in capitals; the nearest is {near}")
    for flag, value in flags.items():
        if flag != "config" and value is not None:
            merged.put((flag,), value, "--" + flag.replace("_", "-"))
    try:
        config = DaemonConfig.model_validate(merged.values)
    except ValidationError as error:
        wrong += [_sentence(merged, item) for item in error.errors(include_url=False, include_context=False)]
    if wrong:
        raise StartupError("; ".join(" ".join(sentence.split()) for sentence in wrong))
    config._origins.update({".".join(key): origin for key, origin in merged.origin.items()})
    return config
