# SPDX-License-Identifier: Apache-2.0
"""The engines of all hosts of one job, and the network between them, in this process: `transport_c/lan/`.

This is the second file of the client that imports `ultima._simulator`. Times are nanoseconds of a clock that is the
caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ultima._simulator import ffi, lib
from ultima.base.errors import InvalidArgument, ResourceExhausted
from ultima.base.receipt import Host
from ultima.base.words import ERR_ARGUMENT, NEVER
from ultima.settings import options
from ultima.v1.job_options import BY_FIELD, OFF

JOB = 0
PACKET_BYTES = 1472
SPANS = ("t_b_ns", "t_c_ns")  # which may be off
EPOCH_SPREAD = 0x9E3779B97F4A7C15
"""Ids of epochs differ in their low bits, too, which are in packets."""
EVENT_READY: int = 7
"""Of a job with a policy: the ranks `places` of that host have given for the op."""


class Ready(NamedTuple):
    """A host tells that ranks of it are ready for an op."""

    host: int
    op_seq: int
    places: int
    """A bit for each of its ranks."""


def _in_c(said: Mapping[str, int]) -> dict[str, int]:
    """Numbers of options as the engine has them."""
    return {field: NEVER if value == OFF and field in SPANS else value for field, value in said.items()}


class Lan:
    """See the module. Not safe for several threads."""

    def __init__(
        self, hosts: Sequence[Host], said: Mapping[str, int], bucket_bytes_max: int, next_op_seq: int, seed: int
    ) -> None:
        """`said`: numbers of all options, by their fields. No host has the job yet; its next op is `next_op_seq`."""
        self._hosts = tuple(hosts)
        self._began = self._options = _in_c({field: said[field] for field in BY_FIELD})
        self._bucket_bytes_max = bucket_bytes_max
        self._open: set[int] = set()
        self._epoch = 0
        """The number of the newest."""
        self._agreed = True
        self._next_op_seq = next_op_seq
        self._event = ffi.new("ut_event *")
        self._lan = lib.ut_lan_open(len(hosts), seed)
        if self._lan == ffi.NULL:
            raise ResourceExhausted("memory", f"no memory for the engines of {len(hosts)} hosts")
        self._engines = [lib.ut_lan_engine(self._lan, host.index) for host in hosts]

    def close(self) -> None:
        """Frees everything. No memory of a session is touched from here on."""
        lib.ut_lan_close(self._lan)
        self._lan = ffi.NULL

    # Hosts

    def host_opens(self, host: int) -> None:
        """The job begins on `host`, at the op that the others will call next. Raises InvalidArgument for options that
        no job has."""
        first = self.next_op_seq()
        self._checked(lib.ut_lan_job_add(self._lan, host, JOB, self._config(host, first)))
        for other in self._open:
            ways = ((host, other), (other, host))
            cids = [self._listen(there, here) for here, there in ways]
            for (here, there), cid in zip(ways, cids, strict=True):
                self._checked(lib.ut_lan_connect(self._lan, JOB, here, there, cid, self._now_ns()))
        self._open.add(host)
        self._agreed = False

    def _listen(self, host: int, to: int) -> int:
        cid = ffi.new("uint32_t *")
        self._checked(lib.ut_engine_peer_listen(self._engines[host], JOB, to, cid))
        return int(cid[0])

    def host_closes(self, host: int) -> None:
        """All its trainers are gone, and the others know it."""
        self._open.discard(host)
        self._agreed = False
        lib.ut_lan_job_remove(self._lan, host, JOB, self._now_ns())
        for other in self._open:
            lib.ut_engine_peer_absent(self._engines[other], JOB, host, self._now_ns())
            lib.ut_lan_touched(self._lan, other)

    def agree(self) -> None:
        """Does what the daemons of the job do when hosts have come or gone, or options are to change: they agree on an
        epoch of those that are there, which own the shards from the next op on, and by which options ops go."""
        whole = len(self._open) == len(self._hosts) and self._options == self._began
        begins = self._epoch == 0 and whole  # as each engine knows
        if self._agreed or not self._open or begins:
            return
        self._agreed = True
        self._epoch += 1
        epoch = ffi.new("ut_epoch *")
        epoch.number, epoch.id = self._epoch, self._epoch * EPOCH_SPREAD % 2**64
        epoch.members = epoch.owners = sum(1 << host for host in self._open)
        epoch.world = sum(len(host.ranks) for host in self._hosts)
        epoch.options = self._options
        setattr(epoch, "from", self.next_op_seq())
        for host in self._open:
            self._checked(lib.ut_engine_epoch(self._engines[host], JOB, epoch, self._now_ns()))
            lib.ut_lan_touched(self._lan, host)

    def change(self, changes: Mapping[str, int]) -> None:
        """Options become other ones from the next op on. Raises InvalidArgument, and changes nothing."""
        before = self._options
        self._options, self._agreed = before | _in_c(changes), False
        try:
            self.agree()
        except InvalidArgument:
            self._options, self._agreed = before, True
            told = (f"{row.name} {row.write(changes[row.field])}" for row in options.TABLE if row.field in changes)
            raise InvalidArgument("options", ", ".join(told), "what this job can have while it runs") from None

    @property
    def open_hosts(self) -> frozenset[int]:
        """Hosts that have the job."""
        return frozenset(self._open)

    def next_op_seq(self) -> int:
        """The number that follows the newest op that any host knows of."""
        known = (int(lib.ut_engine_next_op_seq(self._engines[host], JOB)) for host in self._open)
        self._next_op_seq = max([self._next_op_seq, *known])
        return self._next_op_seq

    def _config(self, host: int, first_op_seq: int) -> Any:
        ranks_of = [len(each.ranks) for each in self._hosts]
        values = {
            "hosts": len(self._hosts),
            "self": host,
            "local_ranks": ranks_of[host],
            "packet_bytes": PACKET_BYTES,
            "world": sum(ranks_of),
            "bucket_bytes_max": self._bucket_bytes_max,
            "first_op_seq": first_op_seq,
            "ranks_of": ranks_of,
            "options": self._options,
        }
        return ffi.new("ut_job_config *", values)

    # Sessions

    def session_add(self, host: int, place: int, addresses: tuple[int, int, int], arena_bytes: int, first: int) -> int:
        """Attaches a rank by the addresses of both rings and of the arena; `first`: number of its first submission."""
        submissions, completions, arena = addresses
        memory = ffi.new("ut_session_memory *")
        memory.submissions = ffi.cast("ut_submission_ring *", submissions)
        memory.completions = ffi.cast("ut_completion_ring *", completions)
        memory.arena = ffi.cast("uint8_t *", arena)
        memory.arena_bytes, memory.place = arena_bytes, place
        session = ffi.new("uint32_t *")
        self._checked(lib.ut_engine_session_add(self._engines[host], JOB, memory, first, session))
        lib.ut_lan_touched(self._lan, host)
        return int(session[0])

    def session_remove(self, host: int, session: int) -> None:
        """The rank is gone. Its arena may be read until `has_let_go`."""
        lib.ut_engine_session_remove(self._engines[host], session, self._now_ns())
        lib.ut_lan_touched(self._lan, host)

    def has_let_go(self, host: int) -> bool:
        """Whether nothing of the sessions that were removed is read any more."""
        return host not in self._open or bool(lib.ut_engine_has_let_go(self._engines[host], JOB))

    def ring(self, host: int, session: int) -> None:
        """The rank has submitted something."""
        lib.ut_lan_ring(self._lan, host, session)

    # Time

    def _now_ns(self) -> int:
        """The engines' time, which may be ahead of that of the last run and never goes back."""
        return int(lib.ut_lan_now(self._lan))

    def run(self, now_ns: int) -> int:
        """Lets everything happen that is due; returns when to call again, NEVER for not until something happens."""
        return int(lib.ut_lan_run(self._lan, now_ns))

    def woken(self) -> Iterator[tuple[int, int]]:
        """(host, session) of all that have new completions."""
        for host in self._open:
            mask = int(lib.ut_lan_take_wakeups(self._lan, host))
            while mask:
                yield host, (mask & -mask).bit_length() - 1
                mask &= mask - 1

    def ready(self) -> Iterator[Ready]:
        """What hosts have told since the last call; the rest of what engines tell is for operators, and is dropped."""
        for host in self._open:
            while lib.ut_engine_poll_event(self._engines[host], self._event):
                if self._event.kind == EVENT_READY:
                    yield Ready(host, int(self._event.op_seq), int(self._event.a))

    def activate(self, host: int, op_seq: int) -> bool:
        """Starts an op of a job with a policy on `host`; False if it cannot, or not any more."""
        started = bool(lib.ut_engine_activate(self._engines[host], JOB, op_seq, self._now_ns()) == 0)
        lib.ut_lan_touched(self._lan, host)
        return started

    # Faults

    def set_paths(self, delay_ns: int, lost: float, cut: Iterable[int]) -> None:
        """From now on every path is so much longer, loses such a share of its packets, and all if it leads to or from
        one of the hosts `cut`."""
        cut = set(cut)
        for here in range(len(self._hosts)):
            for there in range(len(self._hosts)):
                sure = (here in cut) is not (there in cut) or (here in cut and here != there)
                share = lib.UT_LAN_SURE if sure else round(lost * lib.UT_LAN_SURE)
                lib.ut_lan_set_path(
                    self._lan, here, there, ffi.new("ut_lan_path *", {"delay": delay_ns, "lost": share})
                )

    def _checked(self, result: int) -> None:
        if result == ERR_ARGUMENT:
            said = [row for row in options.TABLE if self._options[row.field] not in (row.row.default, NEVER)]
            told = ", ".join(f"{row.name} {row.write(self._options[row.field])}" for row in said)
            allowed = f"what jobs of {len(self._hosts)} hosts can have, see docs/transport.md"
            raise InvalidArgument("options", told, allowed)
        if result:
            raise ResourceExhausted("engine", ffi.string(ffi.cast("char *", lib.ut_strerror(result))).decode())
