# SPDX-License-Identifier: Apache-2.0
"""The rate of log lines: what passes, what is left out and told, and how much is remembered."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from ultima.daemon.base import log_forms, logs
from ultima.daemon.base.log_forms import LINE_CHARACTERS_MAX
from ultima.daemon.base.logs import APART_MAX, PLAIN, RARE, Limiter, about


class Log:
    """A logger of its own with the daemon's handler, a clock that stands still, and what was written."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.stream = io.StringIO()
        self.limiter = Limiter(lambda: self.now)
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(log_forms.Lines())
        handler.addFilter(self.limiter)
        self.logger = logging.getLogger(f"test.{id(self)}")
        self.logger.propagate = False
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(handler)

    def lines(self) -> list[str]:
        """What came since the last time."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text.splitlines()

    def one(self, number: int = 0) -> None:
        self.logger.info("one number=%d", number)

    def another(self) -> None:
        self.logger.info("another")

    def of(self, job: str) -> None:
        self.logger.warning("op not complete job=%s", job, extra=about(job))

    def fails(self, kind: type[Exception]) -> None:
        try:
            raise kind("by the test")
        except Exception:
            self.logger.exception("rpc failed")

    def fails_elsewhere(self) -> None:
        try:
            int("x")
        except ValueError:
            self.logger.exception("rpc failed")


@pytest.fixture
def log() -> Iterator[Log]:
    yield Log()


def test_burst__then_one_now_and_then_that_says_what_is_missing(log: Log) -> None:
    for number in range(PLAIN.burst + 50):
        log.one(number)
    lines = log.lines()
    assert len(lines) == PLAIN.burst and not any("left_out" in line for line in lines)
    log.another()
    assert [line.split()[-1] for line in log.lines()] == ["another"], "another kind has a rate of its own"
    log.now += PLAIN.seconds * 1.5
    for number in range(5):
        log.one(number)
    (line,) = log.lines()
    assert line.endswith(" INFO " + log.logger.name + " one number=0 left_out=50")
    log.now += PLAIN.seconds
    log.one(7)
    assert log.lines()[0].endswith("one number=7 left_out=4")
    log.now += PLAIN.seconds * PLAIN.burst
    for number in range(PLAIN.burst):
        log.one(number)
    assert len(log.lines()) == PLAIN.burst, "after a quiet time a burst passes again"


def test_about__one_job_does_not_hide_another(log: Log) -> None:
    for _ in range(1000):
        log.of("loud")
    log.of("quiet")
    lines = log.lines()
    assert len(lines) == RARE.burst + 1 and lines[-1].endswith("job=quiet")


def test_about__names_from_outside_do_not_pile_up(log: Log) -> None:
    for number in range(20_000):
        log.of(f"job-{number}")
    assert len(log.limiter) <= APART_MAX + 1
    assert len(log.lines()) == APART_MAX + RARE.burst
    log.now += RARE.seconds * RARE.burst
    log.of("job-20001")
    assert len(log.limiter) <= 3, "those that are quiet again are forgotten"
    assert len(log.lines()) == 1


def test_tracebacks__are_told_apart_by_where_they_come_from(log: Log) -> None:
    for _ in range(1000):
        log.fails(KeyError)
    log.fails(OSError)
    log.fails_elsewhere()
    text = "\n".join(log.lines())
    assert text.count("KeyError: ") == RARE.burst
    assert text.count("OSError: by the test") == 1 and text.count("ValueError: invalid literal") == 1


def test_lines__that_libraries_have_put_together_are_one_kind(log: Log) -> None:
    for number in range(5000):
        log.logger.info(f"object at {number:#x} is odd")
    assert len(log.limiter) == 1 and len(log.lines()) == PLAIN.burst


def test_lines__are_cut(log: Log) -> None:
    log.logger.info("reason=%s", "x" * 10**6)
    (line,) = log.lines()
    assert len(line) < LINE_CHARACTERS_MAX + 100 and line.endswith("characters more")


def test_begin__is_for_all_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    stream = io.StringIO()
    handler = logs.begin(stream)
    try:
        for name in ("grpc", "asyncio", "ultimad.jobs"):
            for _ in range(1000):
                logging.getLogger(name).error("again")
    finally:
        logging.captureWarnings(False)
        logging.root.removeHandler(handler)
    assert stream.getvalue().count("\n") == 3 * PLAIN.burst
