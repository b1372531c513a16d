# SPDX-License-Identifier: Apache-2.0
"""What hosts say of a job before it has formed here: the newest word of each kind and host, and not without end."""

from __future__ import annotations

from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs.early_words import WORDS_MAX, EarlyWords
from ultima.v1 import peer_pb2

HERE, THERE = Place("10.0.0.1", 1), Place("10.0.0.2", 1)


def word(serial: int, job: str = "job", generation: int = 1, host: int = 0) -> peer_pb2.WatchResponse:
    told = peer_pb2.WatchResponse(job=job, generation=generation, host_index=host)
    told.word.serial = serial
    return told


def test_the_newest_word_of_each_host_is_kept__once_and_for_its_own_job() -> None:
    words = EarlyWords()
    for told in (word(1), word(2), word(7, host=1), word(3, generation=2), word(4, job="other")):
        words.keep(HERE, told)
    words.keep(THERE, word(5))
    assert [(place, told.word.serial) for place, told in words.take("job", 1)] == [(HERE, 2), (HERE, 7), (THERE, 5)]
    assert words.take("job", 1) == []
    words.keep(THERE, word(6, generation=2))
    words.forget(HERE)
    assert [told.word.serial for _, told in words.take("job", 2)] == [6]


def test_a_word_on_state_takes_no_word_on_epochs_away() -> None:
    words, state = EarlyWords(), peer_pb2.WatchResponse(job="job", generation=1)
    state.state_word.revision = 9
    words.keep(HERE, word(1))
    words.keep(HERE, state)
    told = [told for _, told in words.take("job", 1)]
    assert [(each.HasField("word"), each.state_word.revision) for each in told] == [(True, 0), (False, 9)]


def test_of_more_words_than_a_daemon_may_have_waiting__the_oldest_gives_way() -> None:
    words = EarlyWords()
    words.keep(THERE, word(0))
    for host in range(WORDS_MAX + 1):
        words.keep(HERE, word(host, host=host))
    kept = [(place, told.word.serial) for place, told in words.take("job", 1)]
    assert kept == [(THERE, 0), *((HERE, host) for host in range(1, WORDS_MAX + 1))]
