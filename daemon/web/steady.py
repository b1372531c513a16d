# SPDX-License-Identifier: Apache-2.0
"""Which of the sentences that are true now the page shows, so that it does not flip with each second's noise.

A sentence about a measurement (who is late, what is slow) is shown once it has been true for `HOLD_S` without a gap,
and then until it has not been true for as long. What is a fact, such as a host that is gone, is shown at once, and goes
at once. What is measured and grave, such as ops that are not complete, is shown at once and stays for as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ultima.daemon.web.why import Why

HOLD_S = 10.0


@dataclass(slots=True)
class _Topic:
    """What is known of a measured sentence. Times in seconds of the caller's clock."""

    since_s: float
    seen_s: float
    newest: Why
    shown: bool = False


class Steady:
    """See the module."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._fresh = True
        self._shown: list[Why] = []

    def rest(self) -> None:
        """Nobody looks any more: what is true when somebody looks again is shown at once."""
        self._topics.clear()
        self._fresh = True

    def take(self, now_s: float, reasons: Iterable[Why]) -> Why:
        """The sentence to show at `now_s`. `reasons` are true now, the gravest first; the last one is "ok"."""
        found = list(reasons)
        for each in found:
            if each.topic:
                new = _Topic(now_s, now_s, each, self._fresh or each.at_once)
                topic = self._topics.setdefault(each.topic, new)
                topic.seen_s, topic.newest = now_s, each
                topic.shown = topic.shown or now_s - topic.since_s >= HOLD_S
        self._fresh = False
        for name, topic in list(self._topics.items()):
            if topic.seen_s != now_s and (not topic.shown or now_s - topic.seen_s >= HOLD_S):
                del self._topics[name]
        true = [each for each in found if not each.topic or self._topics[each.topic].shown]
        over = [topic.newest for topic in self._topics.values() if topic.shown and topic.newest not in true]
        grave = [each for each in true if each.level != "ok"]
        self._shown = [*grave, *over, *(each for each in true if each.level == "ok")]
        return self._shown[0]

    def of_job(self, name: str) -> Why | None:
        """The gravest sentence that is shown of one job; None if there is none."""
        return next((each for each in self._shown if each.job == name), None)
