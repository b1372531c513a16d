# SPDX-License-Identifier: Apache-2.0
"""What hosts said of the epochs and the state of a job before this host could listen: it is heard once the job has
formed here.

A host says a word again only when it has news. So a word that is dropped may be missed for as long as the job lives.
"""

from __future__ import annotations

from ultima.daemon.hosts.host import Place
from ultima.v1 import peer_pb2

WORDS_MAX = 64  # that one daemon can have waiting here, for as many jobs that form; the oldest gives way


class EarlyWords:
    """The newest words of each host, by the daemon that told them."""

    def __init__(self) -> None:
        self._words: dict[Place, dict[tuple[str, int, int, int], peer_pb2.WatchResponse]] = {}

    def keep(self, place: Place, news: peer_pb2.WatchResponse) -> None:
        """It came too early."""
        words = self._words.setdefault(place, {})
        said_by = news.state_word.local if news.HasField("state_word") else -1  # the host
        key = (news.job, news.generation, news.host_index, said_by)
        words.pop(key, None)
        words[key] = news
        if len(words) > WORDS_MAX:
            del words[next(iter(words))]

    def take(self, job: str, generation: int) -> list[tuple[Place, peer_pb2.WatchResponse]]:
        """All that was told of that life of the job."""
        found = [(place, key) for place, words in self._words.items() for key in words if key[:2] == (job, generation)]
        return [(place, self._words[place].pop(key)) for place, key in found]

    def forget(self, place: Place) -> None:
        """That daemon is watched no more: it tells its words again when it is."""
        self._words.pop(place, None)
