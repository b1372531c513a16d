# SPDX-License-Identifier: Apache-2.0
"""How a rank of an elastic job gives its state to newcomers, or takes that of others: turns with the daemon, until all
who asked have what was chosen."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import numpy as np

from ultima.api.connection import Connection
from ultima.api.giving import Giver
from ultima.api.requests import allreduce_op
from ultima.api.state_pairs import PairReader, PairsGiven
from ultima.base.durations import DURATION_MAX_S, Duration, duration_s
from ultima.base.errors import DaemonLost, DeadlineExceeded, Desync, InvalidArgument, Unsupported
from ultima.base.words import MODES
from ultima.session.attachment import StateLine
from ultima.session.session import SessionState
from ultima.state.chosen import Rank, Turn, Word, choose, differing, holders, is_behind, op_of, waits_for
from ultima.state.fetching import Fetch
from ultima.state.listing import PART_BYTES, Arrays, Listing, digest, parts_of
from ultima.state.outcome import StateReport
from ultima.state.results import Kind

CHOICES = ("popular", "receive")
BOUNDED = MODES["bounded"]
REVISION_MAX = 2**63 - 1
TURN_S, BUSY_TURN_S = 0.2, 0.02  # that a turn waits for news: with nothing else to do, and while parts are fetched
SKIP_DEADLINE_S = 0.5


class StateRound:
    """One call of `share` or `sync_state`, on one rank."""

    def __init__(
        self, connection: Connection, line: StateLine, op_seq: int, arrays: Arrays, revision: int, until: float
    ) -> None:
        """until: by time.monotonic."""
        self._line, self._rank, self._arrays, self._until = line, connection.session.rank, arrays, until
        self._reader = PairReader(connection, line, arrays.size)
        self._pairs = PairsGiven(connection, line, self._part)
        self._word = Word(op_seq, False, False, b"", arrays.size, revision)
        self._listing: Listing | None = None
        self._written = b""
        self._turn = Turn(0, (), 0)
        self._op_seq = op_seq
        self._differing: tuple[int, ...] = ()
        self._began = time.monotonic()

    def give(self, in_vain: set[int]) -> StateReport | None:
        """Until nobody asks any more. None if there was nobody, or this rank has to go on first. `in_vain` are the
        lives of hosts that were waited for in vain; those that are now are added. Raises Desync."""
        self._take_turn(0.0)
        if not self._askers(in_vain) or self._is_overtaken():
            return None
        self._sum_up()
        report = self._run(in_vain)
        if report is None and not self._is_overtaken():
            in_vain.update(self._askers(in_vain))
        return report

    def take(self, popular: bool) -> StateReport | None:
        """Until the arrays hold the chosen state, and those of all others who ask. None: this rank has the newest
        state, and has to go on first. Raises DeadlineExceeded, which names whom it waits for, or Desync."""
        self._word = self._word._replace(takes=True)
        if popular:
            self._take_turn(0.0)  # others hear of it at once, or they begin an op that waits for this rank
            self._sum_up()
        return self._run(set())

    def _run(self, in_vain: set[int]) -> StateReport | None:
        """All ask until they have what was chosen, so nobody goes on before."""
        self._word = self._word._replace(asks=True)
        fetch, takes = Fetch(self._reader, self._listing, self._arrays.part), self._word.takes
        self._take_turn(0.0)
        while True:
            if (self._word.asks and is_behind(self._word, self._turn.ranks)) or (not takes and self._is_overtaken()):
                return None
            silent = waits_for(self._turn.ranks, self._turn.next_op)
            chosen = None if silent or not self._word.asks else choose(self._turn.ranks)
            if chosen is not None and chosen.word is not None:
                self._op_seq = op_of(self._turn.ranks)
                self._differing = differing(self._turn.ranks, chosen.word.root)
                if chosen.word.root != self._word.root:
                    self._fetch(fetch, chosen.word)
                if chosen.word.root == self._word.root:
                    self._word = self._word._replace(asks=False, revision=chosen.word.revision)
                    self._take_turn(0.0)
            if not self._word.asks and not self._askers(in_vain):
                return self._report(fetch)
            if time.monotonic() >= self._until:
                if not takes:
                    return None
                if not self._word.asks:
                    return self._report(fetch)
                raise DeadlineExceeded(self._why(silent, chosen, fetch))
            self._take_turn(TURN_S)

    def end(self) -> None:
        """Says nothing any more."""
        self._pairs.end()
        with contextlib.suppress(ConnectionError):  # a daemon that is gone knows nothing any more
            self._line.turn(None, 0, (0, b""), 0.0)
        self._line.close()

    def _take_turn(self, wait_s: float) -> None:
        wait_s = max(0.0, min(wait_s, self._until - time.monotonic()))
        self._turn = self._line.turn(self._word, self._turn.table, (0, b""), wait_s)
        while self._turn.wish:
            answer = self._turn.wish, self._answer(self._turn)
            self._turn = self._line.turn(self._word, self._turn.table, answer, BUSY_TURN_S)

    def _answer(self, turn: Turn) -> bytes:
        if turn.kind == Kind.PAIR:
            return self._pairs.begin(turn.op_seq, turn.place)
        return self._part(turn.part)

    def _part(self, number: int) -> bytes:
        if number < 0:
            first = (-number - 1) * PART_BYTES
            return self._written[first : first + PART_BYTES]
        return self._arrays.part(number) if number < parts_of(self._arrays.size) else b""

    def _sum_up(self) -> None:
        self._has(self._arrays.listing())

    def _has(self, listing: Listing) -> None:
        """The arrays are these."""
        self._listing = listing
        self._written = self._listing.written()
        self._word = self._word._replace(root=digest(self._written))

    def _askers(self, in_vain: set[int]) -> set[int]:
        """Lives of the hosts whose ranks wait for state."""
        asking = (each for each in self._turn.ranks if each.word is not None and each.word.wants)
        return {each.life for each in asking if each.rank != self._rank} - in_vain

    def _is_overtaken(self) -> bool:
        """Others stand before a later op, or are in the one before which this rank stands: it has to go on."""
        return is_behind(self._word, self._turn.ranks) or self._turn.next_op > self._word.op_seq

    def _fetch(self, fetch: Fetch, chosen: Word) -> None:
        """Brings the chosen state into the arrays, if its holders give it; takes turns meanwhile."""
        found: list[tuple[Listing, memoryview]] = []
        self._reader.places = {each.rank: each.place for each in self._turn.ranks if each.place}
        stop, trouble = threading.Event(), list[Desync]()

        def work() -> None:
            ranks = [rank for rank in holders(self._turn.ranks, chosen.root) if rank != self._rank]
            listing = fetch.listing(chosen.root, ranks)
            if listing is None:
                return
            if differs := self._arrays.outline().differs(listing):
                name, here, there = differs
                text = f"state: {name!r} differs: {here} here, {there} on rank {ranks[0]}"
                trouble.append(Desync(ranks[0], f"state[{name!r}]", here, there, None, text))
                return
            try:
                data = fetch.run(listing, chosen.root, ranks, lambda: not stop.is_set())
            finally:
                self._reader.end()
            if data is not None:
                found.append((listing, data))

        thread = threading.Thread(target=work, name="ultima-state", daemon=True)
        thread.start()
        while thread.is_alive():
            self._take_turn(BUSY_TURN_S)
            thread.join(BUSY_TURN_S / 4)
            if time.monotonic() >= self._until:
                stop.set()
                self._line.close()
                thread.join()
        if trouble:
            raise trouble[0]
        if found:
            self._arrays.fill(found[0][1])
            self._has(found[0][0])

    def _why(self, silent: tuple[int, ...], chosen: Rank | None, fetch: Fetch) -> str:
        if chosen is not None:
            what = f"the state of rank {chosen.rank} did not come"
            what += f"; ranks {list(fetch.false)} sent something else than their digests say" if fetch.false else ""
        elif len(silent) == len(self._turn.ranks):
            what = "other ranks call ops meanwhile: let each call share() or sync_state() before its op"
        elif silent:
            what = f"ranks {list(silent)} have not called share() or sync_state() before op {op_of(self._turn.ranks)}"
        else:
            what = "no rank has any state to give"
        return f"sync_state: {what}; the arrays are as they were"

    def _report(self, fetch: Fetch) -> StateReport:
        return StateReport(
            revision=self._word.revision,
            op_seq=self._op_seq,
            root=self._word.root.hex(),
            nbytes=self._arrays.size,
            sources=dict(sorted(fetch.sources.items())),
            parts=fetch.parts,
            again=fetch.again,
            false=fetch.false,
            differing=self._differing,
            elapsed_s=time.monotonic() - self._began,
        )


class Newcomers:
    """What an elastic job has for the state of newcomers."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._in_vain: set[int] = set()
        self._outside = False
        self._giver: Giver | None = None
        """While other ranks follow this one."""

    @property
    def asked(self) -> bool:
        """Whether a newcomer asks for the state, so that `share` would give it. It costs about a microsecond."""
        session = self._connection.session
        return session.look() is SessionState.OPEN and session.state_wanted

    def share(self, state: Any, revision: int, wait: Duration = "60s") -> StateReport | None:
        """Gives the state to newcomers, if there are some: call it on every rank before each op, with the arrays that
        the op changes, while no op is under way.

        While nobody asks this costs about a microsecond, and nothing is read. For a rank that calls `follow` this one
        takes a copy, and goes on. Else it stands still until all who ask have the state; so do the others, and the next
        op finds them all at the same place. If replicas had drifted apart, which ops that end PARTIAL can do, they are
        made the same by the way, as in `sync_state`.

        state: a dict of names to numpy arrays or CPU tensors, or to such dicts; the same names, types and shapes on all
        ranks. It must be writable, and may be changed again when the call returns.
        Or a function that returns one, which is called if somebody asks.
        revision: the age of the state, such as the number of steps: the highest counts.
        wait: for which newcomers are waited for, up to 10 min. A host that was waited for in vain is no more.

        Returns what came of it; None if nobody asked, or other ranks stand before another op: then call the op, and
        this one again before the next. Raises InvalidArgument, Desync or Unsupported; that the daemon
        is lost the next op says.
        """
        self._check_revision(revision)
        seconds = seconds_of(wait, "wait")
        session = self._connection.session
        if session.look() is not SessionState.OPEN or self._outside:
            return None
        report = self._stand_still(state, revision, seconds) if session.state_wanted else None
        if self._giver is not None and (self._giver.over or not session.followed or (report and report.sources)):
            self._giver.end()  # what a round brought is another state than followers have
            self._giver = None
        if session.followed and self._giver is None and session.state_line is not None:
            arrays = _arrays(state)
            line = session.state_line.another()
            self._giver = Giver(self._connection, line, arrays, revision, session.calls_next)
        return report

    def _stand_still(self, state: Any, revision: int, seconds: float) -> StateReport | None:
        made = self._round(state, revision, seconds)
        try:
            return made.give(self._in_vain)
        except ConnectionError:
            return None
        finally:
            made.end()

    def sync_state(
        self, state: Any, revision: int = 0, mode: str = "popular", timeout: Duration = "60s"
    ) -> StateReport | None:
        """Makes the arrays the same as those of the other ranks: on a newcomer before its first op, while the others
        call `share`; or on all ranks at once.

        When it returns, all ranks that took part have the same bits, and call the same op next. Taken is the state of
        the highest revision; of several the one that most ranks have, and of two that equally many have the one of the
        oldest rank. If some ranks call `share`, it is one of theirs. Each part of 512 KiB is checked
        by its digest, and fetched from all who hold it at once; what a host that vanishes had to send others send.

        state: see `share`; the arrays must be writable, and are written once all of the state is here.
        revision: see `share`; 0 for a newcomer's.
        mode: "popular", or "receive": what is here is no candidate, and is not read.
        timeout: up to 10 min.

        Returns a StateReport, whose `revision` says where the program goes on. None, on a rank with the newest state,
        if others stand before a later op: then call the op first. Raises DeadlineExceeded, which names whom it waited
        for; Desync, which names the first array that is another one elsewhere; InvalidArgument; Unsupported; or
        DaemonLost. Then the arrays are as they were.
        """
        self._check_revision(revision)
        if mode not in CHOICES:
            raise InvalidArgument("mode", mode, ", ".join(CHOICES))
        made = self._round(state, revision, seconds_of(timeout, "timeout"))
        try:
            taken = made.take(mode == "popular")
        except ConnectionError as error:
            raise DaemonLost("hangup", f"sync_state: {error}; the arrays are as they were") from None
        finally:
            made.end()
        if taken is None:
            return None
        self._skip(taken.op_seq)
        return taken

    def _round(self, state: Any, revision: int, seconds: float) -> StateRound:
        session = self._connection.ready(time.monotonic_ns() + int(seconds * 1e9))
        if session.state_line is None:
            raise Unsupported("sync_state", "this daemon passes on no state")
        arrays = _arrays(state)
        until = time.monotonic() + seconds
        return StateRound(self._connection, session.state_line, session.calls_next, arrays, revision, until)

    def _skip(self, op_seq: int) -> None:
        """The others are through with the ops before it: this rank has no part in them, and uses up their numbers.

        A call that the engine refuses uses up its number, and nothing of it is said to other hosts. What is refused
        here is a maximum in the mode bounded, which is one of the few that this side would not send.
        """
        session = self._connection.session
        while session.calls_next < op_seq and session is self._connection.session:
            op = allreduce_op(
                self._connection, time.monotonic_ns(), np.zeros(1), "max", mode="reliable", deadline=SKIP_DEADLINE_S
            )
            op.mode = BOUNDED
            self._connection.begin(op).wait(op)

    @staticmethod
    def _check_revision(revision: object) -> None:
        if isinstance(revision, bool) or not isinstance(revision, int) or not 0 <= revision <= REVISION_MAX:
            raise InvalidArgument("revision", revision, "a whole number, 0 or more")


def _arrays(state: Any) -> Arrays:
    """Of a dict, or of a function that makes one. Raises InvalidArgument."""
    return Arrays(state() if callable(state) else state, writable=True)


def seconds_of(given: Duration, field: str) -> float:
    """Of a call that gives or takes state. Raises InvalidArgument."""
    seconds = duration_s(given, field)
    if seconds > min(600.0, DURATION_MAX_S):
        raise InvalidArgument(field, given, "a duration of at most 600 s")
    return seconds
