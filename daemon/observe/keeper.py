# SPDX-License-Identifier: Apache-2.0
"""Brings what the recorder knows to disk, and answers questions about the past.

Every few seconds the minutes and events that are new are collected in the event loop and written by a thread of the
keeper's own. Where there is no folder, or the disk is full, read-only or broken, the same goes into memory, of which
there is little; that is said once, counted, and tried again after a minute. Training never waits for any of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ultima.daemon.base.errors import Unavailable
from ultima.daemon.base.waiting import spawn
from ultima.daemon.observe.recorder import Recorder
from ultima.daemon.observe.store import Batch, Store

log = logging.getLogger("ultimad.history")

FLUSH_SECONDS = 4.0  # `kill -9` loses at most this, and what one write takes
PRUNE_SECONDS = 600.0
RETRY_SECONDS = 60.0
STOP_SECONDS = 3.0
Answer = TypeVar("Answer")


class Keeper:
    """See the module. All methods are for the event loop."""

    def __init__(self, folder: Path | None, recorder: Recorder, retry_seconds: float = RETRY_SECONDS) -> None:
        """`folder` exists; None: memory only."""
        self._folder, self._recorder, self._retry_seconds = folder, recorder, retry_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._flushing = asyncio.Lock()
        self._told = 0
        """Number of the newest event that was handed to the thread."""
        self._task: asyncio.Task[None] | None = None
        # Of the thread.
        self._store: Store | None = None
        self._retry_at = self._prune_at = 0.0
        # Written by the thread, read by everyone.
        self.trouble = ""
        """Why what is recorded does not reach the disk; empty where it does, or where no folder is set."""
        self.errors = 0
        self.bytes = 0

    @property
    def on_disk(self) -> bool:
        """Whether what is recorded survives the daemon."""
        return self._folder is not None and not self.trouble

    def off_disk(self) -> str:
        """Why what is recorded does not reach the disk, with its folder; empty where it does, or is not meant to."""
        return f"{self._folder}: {self.trouble}" if self.trouble else ""

    def start(self) -> None:
        """Opens the file, and begins to write."""
        self._task = spawn(self._keep(), "history")

    async def stop(self) -> None:
        """Writes what is left; gives up on a disk that does not answer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.flush(), STOP_SECONDS)
                await asyncio.wait_for(self._in_thread(self._close), STOP_SECONDS)
        self._thread.shutdown(wait=False)

    async def flush(self) -> None:
        """Writes all that is new."""
        async with self._flushing:
            batch = self._batch()
            before = self.trouble
            await self._in_thread(lambda: self._write(batch))
            if self.trouble != before:
                self._say()

    async def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """Has `question` answered by the store, in its thread, after all that has happened so far was written. Raises
        Unavailable if the disk does not tell."""
        await self.flush()
        try:
            return await self._in_thread(lambda: question(self._opened()))
        except sqlite3.Error as error:
            raise Unavailable(f"the history in {self._folder} cannot be read: {error}") from None

    async def _keep(self) -> None:
        while True:
            await self.flush()
            await asyncio.sleep(FLUSH_SECONDS)

    def _in_thread(self, work: Callable[[], Answer]) -> asyncio.Future[Answer]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _batch(self) -> Batch:
        lives, minutes = self._recorder.take_minutes()
        events = self._recorder.events.after(self._told)
        self._told = self._recorder.events.last
        return Batch(lives, minutes, events)

    def _say(self) -> None:
        if self.trouble:
            log.warning("history is in memory only folder=%s reason=%s", self._folder, self.trouble)
            text = f"the history stays in memory: {self._folder}: {self.trouble}"
            self._recorder.events.note("history_lost", text, level="warning")
        else:
            log.info("history is on disk again folder=%s", self._folder)
            self._recorder.events.note("history_kept", f"the history is on disk again in {self._folder}")

    # ---- in the thread ----

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self._try(lambda: Store(self._folder)) or Store(None)
        return self._store

    def _write(self, batch: Batch) -> None:
        store = self._opened()
        if store.path is None and self._folder is not None and time.monotonic() >= self._retry_at:
            store = self._try(lambda: self._back_to_disk(store)) or store
        if batch and not self._try(lambda: self._written(store, batch)) and store.path is not None:
            store.close()
            store = Store(None)
            with contextlib.suppress(sqlite3.Error):
                store.write(batch)
        self._store = store
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_SECONDS
            self._try(lambda: store.prune(time.time_ns()))
        self.bytes = store.bytes()

    @staticmethod
    def _written(store: Store, batch: Batch) -> bool:
        store.write(batch)
        return True

    def _back_to_disk(self, memory: Store) -> Store:
        disk = Store(self._folder)
        try:
            memory.copy_to(disk)
        except BaseException:
            disk.close()
            raise
        memory.close()
        self.trouble = ""
        return disk

    def _try(self, work: Callable[[], Answer]) -> Answer | None:
        """None if the disk did not do it."""
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            self.trouble = str(error)
            self.errors += 1
            self._retry_at = time.monotonic() + self._retry_seconds
            return None

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
