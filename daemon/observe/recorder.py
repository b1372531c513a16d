# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: the newest ops and receipts of each job, and what has happened on this host.

The engine keeps the newest receipts of a running job by itself; they are copied when somebody asks, and once more when
a job ends, so that the last jobs can still be explained. All else comes from the events that the engine tells anyway:
nothing is added to its data path.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from ultima.daemon.base.errors import NotFound
from ultima.daemon.engine.engine import Event, Status
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.observe.events import EventLog
from ultima.daemon.observe.record import TROUBLES, JobRecord, Life, Minute, minute_message, op_message, word
from ultima.daemon.observe.ring import NOBODY, Op
from ultima.daemon.observe.store import LifeRow, MinuteRow
from ultima.daemon.observe.told_rounds import checked, outcome_of, trouble
from ultima.daemon.trainers.users import may_manage
from ultima.v1 import admin_pb2, records_pb2, rounds_pb2
from ultima.v1.words import counted

ENDED_MAX = 8  # jobs that are remembered after their end
LEFT_MINUTES_MAX = 256  # of lives that have ended, until somebody takes them
PEACE_NS = 10_000_000_000  # without an op that is not complete, until a job counts as well again


class Recorder:
    """See the module."""

    def __init__(self, engine: HostEngine) -> None:
        self._engine = engine
        self._ended: OrderedDict[tuple[int, str], admin_pb2.GetReceiptsResponse] = OrderedDict()
        """By owner and name, the one that ended first in front."""
        self.events = EventLog()
        self._lives: dict[int, JobRecord] = {}
        """Those that run, by the number of the life."""
        self._past: OrderedDict[int, JobRecord] = OrderedDict()
        self._left_minutes: deque[tuple[Life, Minute]] = deque()

    # ---- ops as they end ----

    def life_begins(self, record: JobRecord, life: Life) -> None:
        """A job has a membership here."""
        record.begin(life)
        self._lives[life.number] = record
        ranks = f"{counted(life.world_size, 'rank')} on {counted(len(life.addresses), 'host')}"
        self.events.note("job_begins", f"job {life.job} of uid {life.uid} begins with {ranks}", life.job)

    def life_void(self, record: JobRecord) -> None:
        """What a job was told here does not hold: it is to begin again, and nothing has happened yet."""
        if record.life is not None:
            self._lives.pop(record.life.number, None)
        record.states.clear()

    def life_ends(self, record: JobRecord) -> None:
        """A job is over here. It is remembered as those of `ended` are."""
        life = record.life
        if life is None or self._lives.pop(life.number, None) is None:
            return
        self._left_minutes.extend((life, minute) for minute in record.take_minutes())
        while len(self._left_minutes) > LEFT_MINUTES_MAX:
            ((most, _),) = Counter(each.uid for each, _ in self._left_minutes).most_common(1)
            self._left_minutes.remove(next(left for left in self._left_minutes if left[0].uid == most))
        self._past[life.number] = record
        if len(self._past) > ENDED_MAX:
            owners = {number: each.life.uid for number, each in self._past.items() if each.life is not None}
            ((most, _),) = Counter(owners.values()).most_common(1)
            del self._past[next(number for number, uid in owners.items() if uid == most)]
        self.events.note("job_ends", f"job {life.job} ends on this host", life.job)

    def op_done(self, record: JobRecord, event: Event, receipt_of: Callable[[], records_pb2.OpReceipt | None]) -> None:
        """Takes an OP_DONE event of a job."""
        op = record.op_done(event, receipt_of)
        life = record.life
        if op is None or life is None:
            return
        if op.status != Status.COMPLETE:
            if not record.troubled_ops:
                record.troubled_from_ns = op.ended_monotonic_ns
                self.events.note("ops_not_complete", _incomplete(op, life), life.job, "warning")
            record.troubled_ops += 1
            record.troubled_at_ns = op.ended_monotonic_ns
        elif record.troubled_ops and op.ended_monotonic_ns - record.troubled_at_ns >= PEACE_NS:
            lasted = f"{(record.troubled_at_ns - record.troubled_from_ns) / 1e9:.0f} s"
            text = f"ops of job {life.job} are complete again; {record.troubled_ops} were not, within {lasted}"
            self.events.note("ops_complete_again", text, life.job)
            record.troubled_ops = 0

    def round_told(self, record: JobRecord, told: rounds_pb2.RoundRecord) -> None:
        """Takes a round of local SGD that a rank told of; an event if a trouble begins. Raises InvalidArgument."""
        life = record.life
        if life is None:
            return
        checked(told, life.world_size)
        began, text = record.rounds.put(told), trouble(told, life.job)
        if began and text:
            self.events.note(f"round_{outcome_of(told)}", text, life.job, "warning", rank=told.rank)

    def rounds_of(self, name: str, uid: int) -> list[tuple[JobRecord, bool]]:
        """The lives that a user may read of jobs with rounds of local SGD: of this name or beside it, or of all for "";
        the newest first; and whether the life goes on."""
        found = [row for row in self.lives("", uid) if row[0].rounds and row[0].life is not None]
        mine = [row for row in found if row[0].life is not None and row[0].life.job == name]
        beside = [row for row in found if row[0].life is not None and row[0].life.job.startswith(f"{name}/")]
        return found if not name else mine or beside

    def host_is(self, record: JobRecord, host: Host, state: State, why: str) -> None:
        """How another host of a job looks from here now."""
        before = record.states.get(host.index)
        record.states[host.index] = state
        if state is State.CONNECTING or state is before or record.life is None:
            return
        job = record.life.job
        if state is State.UP:
            self.events.note("host_up", f"{host.name} of job {job} is connected", job, host=str(host.place))
        else:
            reason = f": {why}" if why else ""
            self.events.note(
                "host_gone", f"{host.name} of job {job} is gone{reason}", job, "warning", host=str(host.place)
            )

    def take_minutes(self) -> tuple[list[LifeRow], list[MinuteRow]]:
        """Minutes of all jobs that are new or have changed since the last call, and the lives that they are of."""
        new = list(self._left_minutes)
        self._left_minutes.clear()
        for record in self._lives.values():
            new += [(record.life, minute) for minute in record.take_minutes() if record.life is not None]
        lives = {life.number: life_row(life) for life, _ in new}
        return list(lives.values()), [minute_row(minute, life) for life, minute in new]

    def knows(self, name: str) -> bool:
        """Whether anything of a job of this name is in memory."""
        return any(
            each.life is not None and each.life.job == name for each in [*self._lives.values(), *self._past.values()]
        )

    def of_generation(self, name: str, generation: int) -> tuple[JobRecord, bool] | None:
        """The newest life here of one life of a job among all its hosts; and whether it goes on."""
        both = ((self._lives, True), (self._past, False))
        found = [(each, running) for lives, running in both for each in lives.values()]
        for record, running in reversed(found):
            if record.life is not None and (record.life.job, record.life.generation) == (name, generation):
                return record, running
        return None

    def lives(self, name: str, uid: int) -> list[tuple[JobRecord, bool]]:
        """What is in memory of jobs of this name, or of all for "", that a user may read, the newest first; and
        whether the life goes on."""
        found = [(each, True) for each in self._lives.values()] + [(each, False) for each in self._past.values()]
        mine = [row for row in found if row[0].life is not None and may_manage(row[0].life.uid, uid)]
        named = [row for row in mine if row[0].life is not None and name in ("", row[0].life.job)]
        return sorted(named, key=lambda row: -row[0].life.began_ns if row[0].life is not None else 0)

    # ---- receipts that the engine keeps ----

    def recorded(
        self, name: str, number: int, world_size: int, hosts: list[tuple[Host, State]], elastic: bool = False
    ) -> admin_pb2.GetReceiptsResponse:
        """All that the engine has kept of a running job, newest first."""
        return admin_pb2.GetReceiptsResponse(
            job=name,
            world_size=world_size,
            running=True,
            hosts=[host.to_proto(state) for host, state in hosts],
            receipts=sorted(self._engine.receipts(number), key=lambda receipt: -receipt.op_seq),
            elastic=elastic,
        )

    def job_ends(self, record: admin_pb2.GetReceiptsResponse, uid: int) -> None:
        """Keeps a record of a user's job that is about to be removed; one life of a name, the newest.

        Where there are too many, one of the user goes who has the most: nobody can wash away what others have.
        """
        if not record.receipts:
            return
        record.running = False
        self._ended.pop((uid, record.job), None)
        self._ended[uid, record.job] = record
        while len(self._ended) > ENDED_MAX:
            ((most, _),) = Counter(owner for owner, _ in self._ended).most_common(1)
            del self._ended[next(key for key in self._ended if key[0] == most)]

    def ended(self, name: str, uid: int) -> admin_pb2.GetReceiptsResponse | None:
        """The newest record that this user may read of an ended job of this name; of any for ""."""
        readable = (key for key in reversed(self._ended) if name in ("", key[1]) and may_manage(key[0], uid))
        return next((self._ended[key] for key in readable), None)

    def owners(self, name: str) -> list[int]:
        """The users whose ended jobs of this name are remembered, the newest first."""
        return [uid for uid, job in reversed(self._ended) if job == name]


def selected(record: admin_pb2.GetReceiptsResponse, op_seq: int | None) -> admin_pb2.GetReceiptsResponse:
    """The record with the receipt of one op; of the newest op for None. Raises NotFound."""
    found = [receipt for receipt in record.receipts if op_seq is None or receipt.op_seq == op_seq][:1]
    if not found:
        kept = f"ops {record.receipts[-1].op_seq} to {record.receipts[0].op_seq} are" if record.receipts else "none is"
        raise NotFound(f"op_seq = {op_seq if op_seq is not None else 'newest'}: not recorded here; {kept}")
    ret = admin_pb2.GetReceiptsResponse()
    ret.CopyFrom(record)
    del ret.receipts[:]
    ret.receipts.extend(found)
    return ret


def life_row(life: Life) -> LifeRow:
    """As it is kept on disk."""
    return LifeRow(
        life.number, life.job, life.uid, life.generation, life.host_index, life.world_size, life.hosts, life.began_ns
    )


def minute_row(minute: Minute, life: Life) -> MinuteRow:
    """As it is kept on disk."""
    op = b"" if minute.slowest is None else op_message(minute.slowest).SerializeToString()
    return MinuteRow(life.number, minute.start_ns, minute_message(minute, life).SerializeToString(), op, minute.receipt)


def _incomplete(op: Op, life: Life) -> str:
    """The sentence about the first of several ops that are not complete."""
    text = f"op {op.op_seq} of job {life.job} is {Status(op.status).name.lower()}, {op.bytes_missing} bytes are missing"
    if op.culprit == NOBODY or op.culprit >= len(life.addresses):
        return text
    return f"{text}; to blame: host {op.culprit} at {life.addresses[op.culprit]}, {word(TROUBLES, op.trouble)}"
