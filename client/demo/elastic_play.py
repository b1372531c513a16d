# SPDX-License-Identifier: Apache-2.0
"""`ultima demo --elastic`: the same training twice, once with hosts that stay, once with one that is killed and one
that comes.

All ranks are started at once and load torch; then each is told when to join. So a newcomer costs the others nothing but
the moment in which it gets their state, and the two trainings begin at once.
"""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ultima.admin.calls import get_status
from ultima.demo.cluster import Child, ChildFailed, Cluster, tail
from ultima.demo.report import PLAIN_PERIOD_S

MODULE = "ultima.demo.elastic_rank"
# After which a rank that says nothing is taken for hung: it waits up to 30 s for state, and loads torch beside others.
SILENCE_S = 90.0
VICTIM = 1  # not 0: that is where hosts meet, and whose progress is shown


@dataclass
class Outcome:
    """One training: what its ranks told, by the number of their hosts."""

    name: str
    seats: dict[int, int] = field(default_factory=dict)
    """Of the job, by host."""
    views: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By number."""
    states: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Each time a host took the state of others."""
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    killed: tuple[int, int] | None = None
    """The host, and the step at which it was killed."""
    came: tuple[int, int] | None = None
    """The host, and the step at which it was told to come."""

    @property
    def accuracy(self) -> float:
        return float(next(iter(self.results.values()))["accuracy"])

    @property
    def test_images(self) -> int:
        return int(next(iter(self.results.values()))["test_images"])

    @property
    def replicas_equal(self) -> bool:
        """True if all ranks ended with the same parameters and momentum, bit for bit."""
        return len({each["digest"] for each in self.results.values()}) == 1

    @property
    def total(self) -> dict[str, int]:
        """Of all ranks that came to the end."""
        names = ("ops", "complete", "partial", "insufficient")
        return {name: sum(each[name] for each in self.results.values()) for name in names}

    def ops_of(self, host: int) -> int:
        """That it called; 0 for one that did not come to the end."""
        return int(self.results[host]["ops"]) if host in self.results else 0

    @property
    def untrue(self) -> list[str]:
        """Receipts that say otherwise than their result, and complete ops of which two hosts hold other results."""
        found = [f"host {host}: {text}" for host, each in self.results.items() for text in each["untrue"]]
        seen: dict[str, tuple[int, str]] = {}
        for host, each in self.results.items():
            for op, digest in each["results"].items():
                first, known = seen.setdefault(op, (host, digest))
                if known != digest:
                    number, view = op.split()
                    where = f"another sum on host {host} than on {first}"
                    found.append(f"op {number} of view {view}: complete, and {where}")
        return found


@dataclass
class _Rank:
    child: Child
    rest: bytes = b""
    ready: bool = False
    heard: float = 0.0
    out: bool = False
    """It has left the last job."""


class Stage:
    """The ranks of all hosts, and what they are told to do."""

    def __init__(self, cluster: Cluster, hosts: int, arguments: list[str], say: Callable[[str], None]) -> None:
        self._cluster, self._say = cluster, say
        self._meet = f"127.0.0.1:{get_status(str(cluster.sockets[0])).grpc_port}"
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, _Rank] = {}
        self._outcome = Outcome("")
        self._step = self._steps = 0
        self._said = 0.0
        for host in range(hosts):
            child = cluster.start_rank(host, MODULE, arguments)
            assert child.process.stdout is not None
            os.set_blocking(child.process.stdout.fileno(), False)
            self._ranks[host] = _Rank(child, heard=time.monotonic())
            self._selector.register(child.process.stdout, selectors.EVENT_READ, host)

    def load(self) -> None:
        """Returns when each rank has what it trains on. Raises ChildFailed."""
        self._until(lambda: all(rank.ready for rank in self._ranks.values()))

    def train(self, name: str, hosts: list[int], newcomer: int | None = None) -> Outcome:
        """One training on these hosts. With a newcomer, a host is killed after a third of the steps, and this one comes
        after two thirds. Raises ChildFailed."""
        outcome = self._outcome = Outcome(name)
        self._step = self._steps = 0
        for host in hosts:
            self._tell(host, f"train {name} {self._meet}")
        if newcomer is not None:
            self._until(lambda: self._steps > 0 and 3 * self._step >= self._steps)
            self._cluster.check()
            outcome.killed = VICTIM, self._step
            victim = self._ranks.pop(VICTIM)
            assert victim.child.process.stdout is not None
            self._selector.unregister(victim.child.process.stdout)
            self._cluster.kill_host(VICTIM, victim.child)
            self._say(f"  host {VICTIM} is killed: its daemon and its rank, by SIGKILL")
            self._until(lambda: 3 * self._step >= 2 * self._steps)
            outcome.came = newcomer, self._step
            self._tell(newcomer, f"train {name} {self._meet}")
            self._say(f"  host {newcomer} is told to come")
        there = [host for host in [*hosts, *([] if newcomer is None else [newcomer])] if host in self._ranks]
        self._until(lambda: all(host in outcome.results for host in there))
        for host in there:
            self._tell(host, "leave")
        self._until(lambda: all(self._ranks[host].out for host in there))
        return outcome

    def close(self) -> None:
        self._selector.close()

    def _tell(self, host: int, line: str) -> None:
        rank = self._ranks[host]
        rank.out, rank.heard = False, time.monotonic()
        assert rank.child.process.stdin is not None
        try:
            rank.child.process.stdin.write(line.encode() + b"\n")
            rank.child.process.stdin.flush()
        except BrokenPipeError:
            self._cluster.check()
            raise ChildFailed(f"{rank.child.name} reads nothing any more\n{tail(rank.child.log)}") from None

    def _until(self, done: Callable[[], bool]) -> None:
        """Reads what ranks tell until this is so."""
        while not done():
            for key, _ in self._selector.select(0.1):
                self._read(key.data)
            self._cluster.check()
            first = self._ranks[0]
            if time.monotonic() - first.heard > SILENCE_S:
                raise ChildFailed(f"rank 0 has said nothing for {SILENCE_S:g} s\n{tail(first.child.log)}")

    def _read(self, host: int) -> None:
        rank = self._ranks[host]
        assert rank.child.process.stdout is not None
        chunk = rank.child.process.stdout.read(1 << 20)
        if not chunk:
            self._selector.unregister(rank.child.process.stdout)
            return
        rank.heard = time.monotonic()
        *lines, rank.rest = (rank.rest + chunk).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a library's own chatter on standard output
            if isinstance(event, dict) and "event" in event:
                self._on_event(host, rank, event)

    def _on_event(self, host: int, rank: _Rank, event: dict[str, Any]) -> None:
        outcome, what = self._outcome, event.pop("event")
        if what == "ready":
            rank.ready = True
        elif what == "in":
            outcome.seats[host] = event["rank"]
        elif what == "view":
            # Who is behind a cut may have another view of the same number; here there is none.
            outcome.views.setdefault(event["number"], event)
        elif what == "state":
            outcome.states.setdefault(host, []).append(event)
        elif what == "result":
            outcome.results[host] = event
        elif what == "out":
            rank.out = True
        elif what == "step" and host == 0:
            self._step, self._steps = event["step"], event["steps"]
            now = time.monotonic()
            if self._step == self._steps or now - self._said >= PLAIN_PERIOD_S:
                self._said = now
                self._say(f"  step {self._step}/{self._steps}  loss {event['loss']:.3f}")


def play(cluster: Cluster, ranks: int, arguments: list[str], say: Callable[[str], None]) -> tuple[Outcome, Outcome]:
    """Both trainings, on daemons that run: one more than ranks. Raises ChildFailed."""
    stage = Stage(cluster, ranks + 1, ["--ranks", str(ranks), *arguments], say)
    try:
        say(f"{ranks + 1} ranks load torch and the images")
        stage.load()
        hosts = list(range(ranks))
        say(f"{ranks} hosts that stay")
        first = stage.train("demo-stay", hosts)
        say(f"{ranks} hosts, of which one is killed, and another one comes")
        return first, stage.train("demo-change", hosts, newcomer=ranks)
    finally:
        stage.close()
