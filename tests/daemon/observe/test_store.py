# SPDX-License-Identifier: Apache-2.0
"""The history on disk: what survives, how large it may get, and that a disk in trouble is nobody else's trouble."""

import asyncio
import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.observe.test_record import a_life, done
from tests.heap import used
from ultima.daemon.engine.engine import Status
from ultima.daemon.observe.events import HostEvent
from ultima.daemon.observe.keeper import FLUSH_SECONDS, Keeper
from ultima.daemon.observe.record import JobRecord
from ultima.daemon.observe.recorder import Recorder, life_row
from ultima.daemon.observe.store import AGE_MAX_NS, BYTES_MAX, FILE, PAGES_MAX, Batch, MinuteRow, Store, _surplus
from ultima.v1 import admin_pb2

FOREVER = 2**62


def an_event(at_ns: int, text: str = "it happened") -> HostEvent:
    return HostEvent(0, at_ns, "kind", "job", text, "info")


def minutes_of(start: int, count: int, size: int = 10) -> list[MinuteRow]:
    return [MinuteRow(1, (start + n) * 60 * 10**9, b"m" * size, b"", b"") for n in range(count)]


def test_store__what_was_written_is_there_without_a_close(tmp_path: Path) -> None:
    """As after `kill -9`: another process opens the file and its log as they lie there."""
    store = Store(tmp_path)
    store.write(Batch([life_row(a_life())], minutes_of(1, 3), [an_event(5), an_event(7, "later")]))
    store.write(Batch([life_row(a_life())], minutes_of(3, 1, size=20)))
    other = Store(tmp_path)
    assert [event.text for event in other.events("", 0, FOREVER, 10)] == ["it happened", "later"]
    assert [len(row.minute) for _, row in other.minutes("train", 0, FOREVER, 10)] == [10, 10, 20]
    assert other.minutes("other", 0, FOREVER, 10) == [] and other.events("job", 6, 6, 10) == []
    assert [event.at_ns for event in other.events("", 0, FOREVER, 1)] == [7], "the newest, if not all are wanted"
    assert other.oldest_ns() == 5
    assert os.stat(tmp_path / FILE).st_mode & 0o777 == 0o600


def test_store__takes_over_a_file_of_before_events_had_ranks_and_hosts(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.executescript(
            "DROP TABLE events; CREATE TABLE events (at_ns INTEGER, kind TEXT, job TEXT, text TEXT, level TEXT);"
        )
        db.execute("INSERT INTO events VALUES (5, 'kind', 'job', 'it happened', 'info')")
        db.execute("PRAGMA user_version = 1")
    db.close()
    for _ in range(2):
        store = Store(tmp_path)
        assert store.events("", 0, 5, 10) == [an_event(5)]
        store.write(Batch(events=[about := replace(an_event(6), rank=0, host="10.0.0.2:29520")]))
        assert store.events("", 6, 6, 1) == [about]
        store.close()


def test_store__what_is_too_old_goes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    now = 100 * AGE_MAX_NS
    old, new = now - AGE_MAX_NS - 10, now - AGE_MAX_NS + 10
    rows = [MinuteRow(1, at, b"", b"", b"") for at in (old, new)]
    store.write(Batch([life_row(a_life())], rows, [an_event(old), an_event(new)]))
    store.prune(now)
    assert [row.start_ns for _, row in store.minutes("", 0, FOREVER, 10)] == [new]
    assert [event.at_ns for event in store.events("", 0, FOREVER, 10)] == [new]


def test_surplus__from_those_who_have_most() -> None:
    for counts, wanted, gone in (
        ({}, 1, {}),
        ({1: 3}, 1, {1: 1}),
        ({1: 10, 2: 4}, 5, {1: 5}),
        ({1: 10, 2: 8, None: 1}, 6, {1: 4, 2: 2}),
        ({1: 2, 2: 2}, 9, {1: 2, 2: 2}),
    ):
        assert _surplus(counts, wanted) == gone, (counts, wanted)


def test_store__one_user_does_not_wash_away_what_others_have(tmp_path: Path) -> None:
    store = Store(tmp_path, pages_max=64)
    mine = replace(life_row(a_life()), life=1, job="mine", uid=1000)
    events = [HostEvent(0, at, "kind", "mine", "it happened", "info") for at in range(1, 6)]
    store.write(Batch([mine], minutes_of(1, 5), events))
    for number in range(2, 3000):
        theirs = replace(mine, life=number, job=f"short-{number}", uid=2000, began_ns=number)
        at = (10 + number) * 60 * 10**9
        minute = MinuteRow(number, at, b"m" * 100, b"", b"")
        store.write(Batch([theirs], [minute], [HostEvent(0, at, "kind", theirs.job, "x" * 50, "info")]))
        if number % 500 == 0:
            store.prune(0)
    assert len(store.minutes("mine", 0, FOREVER, 10)) == 5
    assert len(store.events("mine", 0, FOREVER, 10)) == 5
    lives = {life.life for life, _ in store.minutes("", 0, FOREVER, 10_000)}
    assert 2999 in lives and 2 not in lives and store._db.execute("SELECT count(*) FROM lives").fetchone()[0] < 2500


def test_store__takes_little_of_the_daemon_s_memory_however_much_it_holds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(Batch([life_row(a_life())], minutes_of(1, 100)))
    before = used()
    for part in range(8):
        store.write(Batch([], minutes_of(1000 * (part + 1), 500, size=500)))
    assert used() - before < 512 << 10
    assert len(store.minutes("train", 0, FOREVER, 10_000)) == 4100


def test_store__stays_within_its_bytes_and_the_newest_stay(tmp_path: Path) -> None:
    assert PAGES_MAX * 4096 < BYTES_MAX == 64 << 20
    store = Store(tmp_path, pages_max=64)
    for start in range(0, 2000, 100):
        store.write(Batch([life_row(a_life())], minutes_of(start, 100, size=1000)))
    kept = [row.start_ns for _, row in store.minutes("", 0, FOREVER, 5000)]
    assert kept[-1] == 1999 * 60 * 10**9 and 20 < len(kept) < 260 and kept == sorted(kept)
    assert (tmp_path / FILE).stat().st_size <= 64 * 4096
    store.prune(0)
    store.write(Batch(minutes=minutes_of(3000, 10, size=1000)))


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be one" * 30, None])
def test_store__a_file_that_cannot_be_read_is_put_aside(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    else:
        with sqlite3.connect(tmp_path / FILE) as later:
            later.execute("PRAGMA user_version = 99")
    store = Store(tmp_path)
    store.write(Batch(events=[an_event(5)]))
    assert len(store.events("", 0, FOREVER, 10)) == 1 and (tmp_path / "history.bad").exists()


def a_recorder() -> tuple[Recorder, JobRecord]:
    recorder, record = Recorder(engine=None), JobRecord()  # type: ignore[arg-type]
    recorder.life_begins(record, a_life())
    return recorder, record


async def told(keeper: Keeper) -> tuple[list[str], int]:
    """Kinds of the events, and the ops in all minutes."""
    events = await keeper.ask(lambda store: store.events("", 0, FOREVER, 100))
    rows = await keeper.ask(lambda store: store.minutes("", 0, FOREVER, 100))
    minutes = [admin_pb2.JobMinute.FromString(row.minute) for _, row in rows]
    return [event.kind for event in events], sum(minute.ops_complete_count for minute in minutes)


async def test_keeper__writes_by_itself_and_the_next_life_reads_it(tmp_path: Path) -> None:
    assert FLUSH_SECONDS < 10
    recorder, record = a_recorder()
    keeper = Keeper(tmp_path, recorder)
    keeper.start()
    recorder.op_done(record, done(1), lambda: None)
    async with asyncio.timeout(20):
        while not (tmp_path / FILE).exists() or not keeper.bytes:
            await asyncio.sleep(0.01)
    recorder.op_done(record, done(2), lambda: None)
    assert await told(keeper) == (["job_begins"], 2) and keeper.on_disk
    recorder.life_ends(record)
    await keeper.stop()
    after = Keeper(tmp_path, Recorder(engine=None))  # type: ignore[arg-type]
    assert await told(after) == (["job_begins", "job_ends"], 2)
    await after.stop()


async def test_keeper__without_a_folder_it_keeps_the_same_in_memory() -> None:
    recorder, record = a_recorder()
    keeper = Keeper(None, recorder)
    recorder.op_done(record, done(1), lambda: None)
    assert await told(keeper) == (["job_begins"], 1)
    assert not keeper.on_disk and not keeper.trouble and not keeper.errors


async def test_keeper__a_folder_that_cannot_be_written_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file where the folder should be: also root cannot write there."""
    folder = tmp_path / "state"
    folder.write_text("")
    recorder, record = a_recorder()
    keeper = Keeper(folder, recorder, retry_seconds=0.0)
    for number in range(3):
        recorder.op_done(record, done(number), lambda: None)
        assert await told(keeper) == (["job_begins", *(["history_lost"] if number else [])], number + 1)
    assert keeper.trouble and keeper.errors >= 3 and not keeper.on_disk
    assert caplog.text.count("history is in memory only") == 1
    folder.unlink()
    folder.mkdir()
    assert (await told(keeper))[1] == 3, "what was in memory is on disk"
    assert keeper.on_disk and "history_kept" in (await told(keeper))[0]
    await keeper.stop()
    assert len(Store(folder).minutes("", 0, FOREVER, 10)) >= 1


async def test_keeper__a_disk_that_becomes_full_is_no_error_for_anyone(tmp_path: Path) -> None:
    recorder, record = a_recorder()
    keeper = Keeper(tmp_path, recorder)
    recorder.op_done(record, done(1), lambda: None)
    await keeper.flush()

    def fill(store: Store) -> None:
        store._db.execute("PRAGMA max_page_count = 1")
        store._db.execute("DELETE FROM minutes")

    await keeper.ask(fill)
    for number in range(2, 400):
        recorder.op_done(record, done(number, Status.PARTIAL), lambda: None)
        recorder.events.note(f"kind-{number}", "x" * 4000)
    await keeper.flush()
    assert "full" in keeper.trouble and keeper.errors == 1
    assert (await told(keeper))[0][-1] == "history_lost"


async def test_keeper__a_disk_that_hangs_holds_up_neither_loop_nor_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ultima.daemon.observe.keeper.STOP_SECONDS", 0.3)
    recorder, record = a_recorder()
    keeper = Keeper(tmp_path, recorder)
    keeper.start()
    await keeper.flush()
    answers = threading.Event()
    held = keeper._in_thread(lambda: answers.wait(60))
    recorder.op_done(record, done(1), lambda: None)
    await keeper.stop()
    assert not held.done() and not answers.is_set(), "it did not wait for the disk"
    answers.set()
    await held
