# SPDX-License-Identifier: Apache-2.0
"""The history on disk: minutes of jobs and events, in one SQLite file of bounded size and age.

Everything here blocks, and is called by one thread that is not the event loop's. The file is in WAL mode: what was
written is there after `kill -9`. Raises sqlite3.Error where the disk does not do what it should.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ultima.daemon.observe.events import HostEvent

FILE = "history.db"
VERSION = 2
DAY_NS = 86_400 * 10**9
AGE_MAX_NS = 7 * DAY_NS
BYTES_MAX = 64 << 20  # of the file and its write-ahead log
_PAGE_BYTES, _LOG_BYTES = 4096, 4 << 20
# Of the file in the daemon's own memory: the ends of three tables and their indexes, which are what is written. What is
# read back the kernel has in its cache.
_CACHE_BYTES = 64 * _PAGE_BYTES
PAGES_MAX = (BYTES_MAX - 2 * _LOG_BYTES) // _PAGE_BYTES
MEMORY_PAGES_MAX = (4 << 20) // _PAGE_BYTES
_SCHEMA = """
CREATE TABLE lives (
    life INTEGER PRIMARY KEY, job TEXT, uid INTEGER, generation INTEGER, host_index INTEGER, world_size INTEGER,
    hosts BLOB, began_ns INTEGER);
CREATE TABLE minutes (
    life INTEGER, start_ns INTEGER, minute BLOB, op BLOB, receipt BLOB, PRIMARY KEY (life, start_ns));
CREATE INDEX minutes_by_time ON minutes (start_ns);
CREATE TABLE events (at_ns INTEGER, kind TEXT, job TEXT, text TEXT, level TEXT, rank INTEGER, host TEXT);
CREATE INDEX events_by_time ON events (at_ns);
"""
# What a file of version 1 lacks.
_SINCE_1 = """
ALTER TABLE events ADD COLUMN rank INTEGER;
ALTER TABLE events ADD COLUMN host TEXT DEFAULT '';
"""
_LIVES_BY_JOB = "CREATE INDEX IF NOT EXISTS lives_by_job ON lives (job, began_ns)"
# Of an event whose job nobody knows, as of what is the daemon's own: NULL.
_OWNER_OF_MINUTE = "(SELECT uid FROM lives WHERE lives.life = minutes.life)"
_OWNER_OF_EVENT = "(SELECT uid FROM lives WHERE lives.job = events.job ORDER BY began_ns DESC LIMIT 1)"
_TABLES = ("lives", "minutes", "events")


@dataclass(frozen=True, slots=True)
class LifeRow:
    """Columns of `lives`."""

    life: int
    job: str
    uid: int
    generation: int
    host_index: int
    world_size: int
    hosts: bytes
    began_ns: int


@dataclass(frozen=True, slots=True)
class MinuteRow:
    """Columns of `minutes`: a serialized JobMinute, and the OpRecord and OpReceipt of the slowest op or nothing."""

    life: int
    start_ns: int
    minute: bytes
    op: bytes
    receipt: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written at once."""

    lives: Sequence[LifeRow] = ()
    minutes: Sequence[MinuteRow] = ()
    events: Sequence[HostEvent] = ()

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.lives or self.minutes or self.events)


class Store:
    """See the module."""

    def __init__(self, folder: Path | None, pages_max: int = PAGES_MAX) -> None:
        """Opens the file in `folder`, or one in memory for None. A file that cannot be read is put aside."""
        self.path = folder / FILE if folder is not None else None
        self._pages_max = pages_max if folder is not None else min(pages_max, MEMORY_PAGES_MAX)
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            if self.path is None or isinstance(error, sqlite3.OperationalError):
                raise
            os.replace(self.path, self.path.with_suffix(".bad"))
            for end in ("-wal", "-shm"):
                self.path.with_name(self.path.name + end).unlink(missing_ok=True)
            self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path or ":memory:", timeout=2.0, isolation_level=None, check_same_thread=False)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            if self.path is not None:
                db.execute("PRAGMA journal_mode = WAL")
                os.chmod(self.path, 0o600)
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA max_page_count = {self._pages_max}")
            db.execute(f"PRAGMA cache_size = {-_CACHE_BYTES // 1024}")
            db.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
            if version == 0:
                db.executescript(f"BEGIN; {_SCHEMA} {_LIVES_BY_JOB}; PRAGMA user_version = {VERSION}; COMMIT;")
            elif version == 1:
                db.executescript(f"BEGIN; {_SINCE_1} {_LIVES_BY_JOB}; PRAGMA user_version = {VERSION}; COMMIT;")
            elif version == VERSION:
                db.execute(_LIVES_BY_JOB)
            else:
                raise sqlite3.DatabaseError(f"version {version} of the history; this release writes {VERSION}")
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Ends it; the write-ahead log goes into the file."""
        self._db.close()

    def write(self, batch: Batch) -> None:
        """All of it or nothing. If there is no room, the oldest goes."""
        for attempt in range(8):
            try:
                self._write(batch)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or attempt == 7 or not self._make_room():
                    raise

    def _write(self, batch: Batch) -> None:
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO lives VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                ((r.life, r.job, r.uid, r.generation, r.host_index, r.world_size, r.hosts, r.began_ns)
                 for r in batch.lives),
            )  # fmt: skip
            self._db.executemany(
                "INSERT OR REPLACE INTO minutes VALUES (?, ?, ?, ?, ?)",
                ((r.life, r.start_ns, r.minute, r.op, r.receipt) for r in batch.minutes),
            )
            self._db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
                ((e.at_ns, e.kind, e.job, e.text, e.level, e.rank, e.host) for e in batch.events),
            )

    def prune(self, now_ns: int) -> None:
        """Forgets what is too old, and the oldest where the file is nearly full."""
        self._forget(now_ns - AGE_MAX_NS)
        (pages,), (free,) = (self._db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
        if pages - free > self._pages_max * 7 // 8:
            self._make_room()
        self._db.execute("PRAGMA incremental_vacuum(1024)").fetchall()

    def bytes(self) -> int:
        """Of the file and what SQLite keeps beside it; 0 in memory."""
        if self.path is None:
            return 0
        files = (self.path.with_name(self.path.name + end) for end in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def events(self, job: str, since_ns: int, until_ns: int, most: int, kind: str = "") -> list[HostEvent]:
        """The newest `most` of them in that time, oldest first; of all jobs, and of all kinds, for ""."""
        rows = self._db.execute(
            "SELECT at_ns, kind, job, text, level, rank, host FROM events"
            " WHERE at_ns >= ? AND at_ns <= ? AND (? = '' OR job = ?)"
            " AND (? = '' OR kind = ?) ORDER BY at_ns DESC, rowid DESC LIMIT ?",
            (since_ns, until_ns, job, job, kind, kind, most),
        ).fetchall()
        return [HostEvent(0, *row) for row in reversed(rows)]

    def minutes(self, job: str, since_ns: int, until_ns: int, most: int) -> list[tuple[LifeRow, MinuteRow]]:
        """The newest `most` of them that began in that time, oldest first."""
        rows = self._db.execute(
            "SELECT lives.*, start_ns, minute, op, receipt FROM minutes JOIN lives USING (life)"
            " WHERE start_ns >= ? AND start_ns <= ? AND (? = '' OR job = ?) ORDER BY start_ns DESC, life LIMIT ?",
            (since_ns, until_ns, job, job, most),
        ).fetchall()
        return [(LifeRow(*row[:8]), MinuteRow(row[0], *row[8:])) for row in reversed(rows)]

    def knows(self, job: str) -> bool:
        """Whether there is a trace of a job of this name."""
        found = "SELECT EXISTS (SELECT 1 FROM lives WHERE job = ?) OR EXISTS (SELECT 1 FROM events WHERE job = ?)"
        return bool(self._db.execute(found, (job, job)).fetchone()[0])

    def oldest_ns(self) -> int:
        """When the first thing happened of which there is a trace; 0 for nothing."""
        rows = [self._db.execute(f"SELECT min({column}) FROM {table}").fetchone()[0]
                for table, column in (("minutes", "start_ns"), ("events", "at_ns"))]  # fmt: skip
        return min((int(row) for row in rows if row is not None), default=0)

    def copy_to(self, other: Store) -> None:
        """Writes all of this one into another, as when the disk is back."""
        lives = [LifeRow(*row) for row in self._db.execute("SELECT * FROM lives")]
        minutes = [MinuteRow(*row) for row in self._db.execute("SELECT * FROM minutes")]
        events = [HostEvent(0, *row) for row in self._db.execute("SELECT * FROM events ORDER BY at_ns, rowid")]
        other.write(Batch(lives, minutes, events))

    def _forget(self, before_ns: int) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM minutes WHERE start_ns < ?", (before_ns,))
            self._db.execute("DELETE FROM events WHERE at_ns < ?", (before_ns,))
            self._db.execute(
                "DELETE FROM lives WHERE began_ns < ? AND life NOT IN (SELECT life FROM minutes)", (before_ns,)
            )

    def _make_room(self) -> bool:
        """Forgets a quarter: the oldest of those users who have most, so that nobody washes away what others have.
        False if there is nothing."""
        gone = False
        for table, time, owner in (("minutes", "start_ns", _OWNER_OF_MINUTE), ("events", "at_ns", _OWNER_OF_EVENT)):
            counts = dict(self._db.execute(f"SELECT {owner} AS owner, count(*) FROM {table} GROUP BY owner"))
            for uid, many in _surplus(counts, sum(counts.values()) // 4 + 1).items():
                self._db.execute(
                    f"DELETE FROM {table} WHERE rowid IN"
                    f" (SELECT rowid FROM {table} WHERE {owner} IS ? ORDER BY {time}, rowid LIMIT ?)",
                    (uid, many),
                )
                gone = True
        self._db.execute("DELETE FROM lives WHERE life NOT IN (SELECT life FROM minutes)")
        return gone

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _surplus(counts: Mapping[int | None, int], wanted: int) -> dict[int | None, int]:
    """How many of whose go, `wanted` in all or a few more: from those who have most, down to the same number each."""
    most = max(counts.values(), default=0)
    # The level, turned round so that it grows: the number that goes grows with it.
    cut = bisect_left(range(most + 1), wanted, key=lambda cut: sum(max(0, n - most + cut) for n in counts.values()))
    level = max(0, most - cut)
    return {owner: count - level for owner, count in counts.items() if count > level}
