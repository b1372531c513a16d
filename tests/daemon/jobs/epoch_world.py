# SPDX-License-Identifier: Apache-2.0
"""Worlds in virtual time whose hosts agree on epochs by the daemon's own code, and what must be true in each of them.

A seed is a world: 2 to 9 hosts, their delays and losses, and faults: hosts that crash or vanish, with and without a
return, proposers that die while they ask, cuts into halves, single links cut in one direction or in both, trainers that
stand still, a control network that is down while data flows, and in some worlds a liar. `python -m
tests.daemon.jobs.epoch_world --seed 17 --trace` tells one world.

What is checked, at each step and in the end:

* one child per parent and line, and one content per id;
* nothing is folded that was opened by another epoch's members;
* no host accepts an epoch without a host that it sees, and none is decided without a host that most have seen for a
  while, unless it was or may have been decided before;
* a host never goes back to an epoch from which its own comes; no pause is longer than its bound, pauses in vain do not
  add up, who wants a change is called in time, and all hosts that live agree in the end, and are in.
"""

from __future__ import annotations

import argparse
import collections
import heapq
import random
from dataclasses import replace
from typing import Any

from tests.daemon.jobs import epoch_liar
from tests.daemon.jobs.epoch_pauses import Pauses
from tests.daemon.jobs.epoch_way import Way
from ultima.daemon.jobs.decree import Seat
from ultima.daemon.jobs.epoch import Epoch, Member, Word, quorum
from ultima.daemon.jobs.here import Here

HEARD_S = 0.12  # for which a datagram tells that its sender is alive
OP_S = 0.02
AHEAD = 4  # ops that a host opens before the slowest one has
WAIT_S = 0.1  # for the slowest, at most
MARGIN_OPS = 1
STAND_S = 60.0  # more than any host must stand that flaps


class Host:
    """One life of a host: its seat, the epochs that its core keeps, and what it sees of the others."""

    def __init__(self, world: World, me: Member, first: Epoch | None) -> None:
        self.world, self.me = world, me
        self.seat = world.seat(me, first, world.seed, world.now)
        self.core: list[Epoch] = [first] if first is not None else []
        self.next_op = 0
        self.opened = first is not None
        self.streams: set[Member] = set()
        self.data: dict[Member, float] = {}
        self.since: dict[Member, float] = {}
        self.sees: frozenset[Member] = frozenset()
        self.epoch = first
        self.told = 0
        self.accepted: Any = None
        self.pauses = Pauses()
        self.waits_from = self.still_until = -1.0
        self.wake = float("inf")
        self.lies = False

    def here(self) -> Here:
        world, fresh = self.world, {m for m, at in self.data.items() if self.world.now - at < HEARD_S}
        sees = frozenset(self.streams | fresh)
        self.since = {m: self.since.get(m, world.now) for m in sees}
        self.sees = sees
        trip, patience = world.way.round_trip(self.me), world.way.patience(self.me)
        return Here(sees, self.next_op, MARGIN_OPS, trip, self.opened, patience=patience)

    def look(self) -> None:
        """An op is under way: is anybody heard whom it did not see, or not any more?"""
        if self.here().sees != self.seat._here.sees:
            self.turn()

    def turn(self) -> None:
        world = self.world
        before = self.seat.hold
        word = self.seat.turn(world.now, self.here())
        came, trip = self.seat.epoch is not self.epoch, world.way.round_trip(self.me)
        vain = self.pauses.look(world.now, trip, before, self.seat, word, came, lambda what: world.bad(self, what))
        world.stats["holds in vain"] += vain
        if self.seat._attempts.wanted is not None and word.ask is None and self.seat.wake == float("inf"):
            world.bad(self, "wants a child, and nothing calls it at the time to ask for one")
        if came:
            self._took(self.seat.epoch)
        if word.ask is not None and word.ask.again and word.ask.child is not None:
            world.again.add(word.ask.child.id)
        if word.accepted is not None and word.accepted != self.accepted:
            world.accepts(self, word)
        self.accepted = word.accepted
        if word.serial != self.told:
            self.told = word.serial
            world.tell(self, word)
        if self.seat.wake < self.wake or self.wake <= world.now:
            self.wake = self.seat.wake
            if self.wake < world.end + STAND_S:
                world.later(self.wake - world.now, "wake", self)

    def _took(self, epoch: Epoch | None) -> None:
        world = self.world
        if epoch is None:  # of what this host knew nobody is left
            self.epoch = None
            return
        world.holds(self, self.epoch, epoch)
        self.epoch = epoch
        if self.me in epoch.members:
            self.core = [*self.core[-1:], epoch]
            if not self.opened:
                self.next_op = max(self.next_op, epoch.start)

    def open(self) -> None:
        """Opens an op, if none of the reasons to wait holds."""
        world, now = self.world, self.world.now
        epoch = next((e for e in reversed(self.core) if e.start <= self.next_op), self.core[0] if self.core else None)
        if epoch is None or self.me not in epoch.members or not self.seat.member or now < self.still_until:
            return
        if self.seat.hold is not None and self.next_op >= self.seat.hold[0] and now < self.seat.hold[1]:
            world.stats["waits of a hold"] += 1
            return
        fellows = [h for m in epoch.members if (h := world.hosts.get(m)) and m in self.sees and h.epoch is self.epoch]
        if any(self.next_op >= h.next_op + AHEAD for h in fellows):
            self.waits_from = now if self.waits_from < 0 else self.waits_from
            if now - self.waits_from < WAIT_S:
                return
        self.waits_from = -1.0
        world.opens(self, self.next_op, epoch)
        self.next_op += 1
        fresh, self.opened = not self.opened, True
        for m in epoch.members:
            if (
                m != self.me
                and m in world.hosts
                and world.carries(self.me, m)
                and world.rng.random() >= world.way.udp_loss
            ):
                world.hosts[m].data[self.me] = now
        if fresh:
            self.turn()


class World:
    """See the module."""

    def __init__(
        self, seed: int, liar: bool = False, trace: bool = False, seat: type[Seat] = Seat, way: type[Way] = Way
    ) -> None:
        self.rng = random.Random(seed)
        self.seed, self.trace, self.seat = seed, trace, seat
        self.now = 0.0
        self.queue: list[tuple[float, int, str, Any]] = []
        self.count = 0
        self.stats: collections.Counter[str] = collections.Counter()
        self.found: list[str] = []
        rng = self.rng
        self.way = way(rng)
        self.cut: set[tuple[int, int]] = set()
        self.mute_until = -1.0
        self.owed: set[tuple[Member, Member]] = set()
        self.again: set[int] = set()
        self.decided: set[int] = set()
        self.held_since: dict[int, float] = {}  # by the first honest host that heard of it
        self.accepted: dict[int, dict[Member, float]] = collections.defaultdict(dict)
        self.children: dict[tuple[int, tuple[Any, ...]], Epoch] = {}
        self.epochs: dict[int, Epoch] = {}
        self.by_op: dict[int, dict[int, Epoch]] = collections.defaultdict(dict)
        self.out_after: list[float] = []
        self.in_after: list[float] = []
        self.died: dict[Member, float] = {}
        self.came: dict[Member, float] = {}
        members = tuple(Member(slot, 1) for slot in range(rng.randint(2, 7 if not liar else 5) + (liar and 1)))
        first = Epoch(0, seed, 0, members, frozenset(members))
        self.epochs[first.id] = first
        self.way.slots = len(members)
        self.hosts: dict[Member, Host] = {}
        self.slots = len(members)
        self.lives = dict.fromkeys(range(9), 1)
        for m in members:
            self.hosts[m] = Host(self, m, first)
        for host in self.hosts.values():
            host.streams = {m for m in members if m != host.me}
            self.later(rng.random() * OP_S, "op", host)
        self.liar = self.hosts[rng.choice(members)] if liar else None
        self.lies_told = 0
        at = 0.3
        self.last_fault = at
        for _ in range(rng.randint(1, 6)):
            at += rng.choice([0.005, 0.03, 0.1, 0.4, 1.5, 2.5]) * (0.5 + rng.random())
            self.later(at, "fault", None)
            self.last_fault = at
        self.end = at + self.way.quiet
        self.later(at, "heal", None)
        for host in self.hosts.values():
            host.turn()
        if self.liar is not None:
            self.liar.lies = True
            self.later(0.1, "lie", self.liar)

    # ---- the network ----

    def later(self, seconds: float, what: str, about: Any) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now + seconds, self.count, what, about))

    def carries(self, a: Member, b: Member) -> bool:
        """Whether datagrams of one host reach the other."""
        return (a.slot, b.slot) not in self.cut

    def talks(self, a: Member, b: Member) -> bool:
        """Whether a connection between two hosts works."""
        return self.now >= self.mute_until and self.carries(a, b) and self.carries(b, a)

    def tell(self, host: Host, word: Word) -> None:
        """A host has something new to tell all others."""
        others, ask = [m for m in self.hosts if m != host.me], word.ask
        dies = ask is not None and ask.child is not None and self.now < self.last_fault and self.rng.random() < 0.2
        for m in others:
            if not dies or self.rng.random() < 0.5:
                self.send(host, m)
        if dies and len(self.hosts) > 2:
            self.note(host, "dies while it asks")
            self.kill(host.me, vanish=False)

    def send(self, host: Host, to: Member) -> None:
        """The newest word of a host goes to another one, now or when there is a way."""
        if not self.talks(host.me, to):
            self.owed.add((host.me, to))
            return
        word = host.seat.words[host.me]
        if host.lies:
            everybody = {*self.died, *self.hosts}
            word, false = epoch_liar.lie(self.rng, word, to, host.me, host.seat, everybody)
            self.again |= false
        if host is self.liar:
            self.lies_told += 1
            word = replace(word, serial=self.lies_told)
        after = self.way.words(host.me, to, self.now)
        for seconds in after:
            self.later(seconds, "word", (host.me, to, word))
        if not after:
            self.later(self.way.again(), "send", (host, to))

    def links_changed(self) -> None:
        """Streams end after a while where there is no way, and begin anew where there is one again."""
        for a in self.hosts:
            for b in self.hosts:
                if a != b and self.talks(a, b):
                    self.later(self.way.connects(a, b), "stream", (a, b))
                elif a != b:
                    self.later(self.way.gives_up(a, b), "stream", (a, b))

    def stream(self, a: Member, b: Member) -> None:
        """Whether a stream from b to a stands by now."""
        if (host := self.hosts.get(a)) is None:
            return
        up = b in self.hosts and self.talks(a, b)
        if up != (b in host.streams):
            (host.streams.add if up else host.streams.discard)(b)
            host.turn()
        if up and (b, a) in self.owed:
            self.owed.discard((b, a))
            self.send(self.hosts[b], a)

    # ---- faults ----

    def fault(self) -> None:
        rng, live = self.rng, [*self.hosts]
        what = rng.choice(["crash", "crash", "crash", "still", "cut", "cut", "one", "heal", "control"])
        if what == "crash" and len(live) > 1:
            self.kill(rng.choice(live), vanish=rng.random() < 0.3)
        elif what == "still":
            self.hosts[rng.choice(live)].still_until = self.now + rng.choice([0.3, 2.0])
        elif what == "cut":
            side = {m.slot for m in rng.sample(live, max(1, len(live) // 2))}
            self.cut = {(a.slot, b.slot) for a in live for b in live if (a.slot in side) != (b.slot in side)}
            self.note(None, f"cut {side}")
        elif what == "one" and len(live) > 1:
            a, b = (m.slot for m in rng.sample(live, 2))
            self.cut |= {(a, b)} | ({(b, a)} if rng.random() < 0.7 else set())
            self.note(None, f"link {a} to {b} cut")
        elif what == "heal":
            self.cut = set()
            self.note(None, "heal")
        elif what == "control":
            self.mute_until = self.now + rng.choice([0.05, 0.3, 1.2])
            self.later(self.mute_until - self.now, "links", None)
            self.note(None, f"control network down until {self.mute_until:.3f}")
        self.links_changed()

    def kill(self, m: Member, vanish: bool) -> None:
        self.note(self.hosts[m], "vanishes" if vanish else "crashes")
        del self.hosts[m]
        self.died[m] = self.now
        for host in self.hosts.values():
            after = (self.way.gives_up if vanish else self.way.hangs_up)(host.me, m)
            self.later(after, "stream", (host.me, m))
        if self.rng.random() < 0.6:
            self.later(self.rng.choice([0.01, 0.2, 0.8]), "back", m)

    def back(self, gone: Member) -> None:
        self.lives[gone.slot] += 1
        m = Member(gone.slot, self.lives[gone.slot])
        host = self.hosts[m] = Host(self, m, None)
        host.next_op = max([h.next_op for h in self.hosts.values()])
        self.came[m] = self.now
        self.note(host, "is back")
        for other in self.hosts.values():
            other.streams.discard(gone)
            other.data.pop(gone, None)
            self.owed |= {(m, other.me), (other.me, m)} if other is not host else set()
        self.later(0.0, "op", host)
        self.links_changed()
        host.turn()

    # ---- what must be true ----

    def bad(self, host: Host | None, what: str) -> None:
        self.found.append(f"seed {self.seed} at {self.now:.3f} s{f', host {host.me}' if host else ''}: {what}")
        self.note(host, "BAD " + what)

    def note(self, host: Host | None, text: str) -> None:
        if self.trace:
            print(f"{self.now:8.4f} {tuple(host.me) if host else ''} {text}")

    def accepts(self, host: Host, word: Word) -> None:
        """A host accepted something now."""
        assert word.accepted is not None and word.epoch is not None
        child = word.accepted[1]
        self.accepted[child.id].setdefault(host.me, self.now)
        for m in word.epoch.members:
            gone = m not in child.members and m in host.sees
            known = child.id in self.again or child.id in self.decided  # it may have been decided, or is
            if gone and not known and not host.lies and self.hosts.get(m) is not None:
                self.bad(host, f"accepts an epoch without host {m}, which it sees")

    def holds(self, host: Host, before: Epoch | None, epoch: Epoch) -> None:
        """An epoch holds for a host now."""
        members, owners = [*map(tuple, epoch.members)], sorted(m.slot for m in epoch.owners)
        self.note(host, f"{epoch.number}{epoch.line} {members} owners {owners} from {epoch.start}: {host.seat.why}")
        if host.lies or self._sees_only_the_liar(host, before):
            return
        known = self.epochs.setdefault(epoch.id, epoch)
        if known != epoch:
            self.bad(host, "two epochs have one id")
        above = before
        while above is not None and above.parent in self.epochs:
            above = self.epochs[above.parent]
            if above.id == epoch.id and host.me in epoch.members and host.seat.why != GONE_BACK:
                self.bad(host, "goes back to an epoch from which its own comes")
        base = self.epochs.get(epoch.parent)
        self.decided.add(epoch.id)
        self.held_since.setdefault(epoch.id, self.now)
        child = self.children.setdefault((epoch.parent, epoch.line), epoch)
        if child.id != epoch.id:
            if self.liar is not None and (base is None or self.liar.me in base.members):
                self.stats["two children by two votes of the liar"] += 1
            else:
                self.bad(host, "two children of one epoch")
        elif child is epoch and base is not None and base.line == epoch.line:
            self._check_put_out(host, base, epoch)
        if host.me in self.came and host.me in epoch.members:
            self.in_after.append(self.now - self.came.pop(host.me))

    def _sees_only_the_liar(self, host: Host, before: Epoch | None) -> bool:
        """Whether a host can be told anything: of those that are in its epoch, or in any, nobody else is there."""
        if self.liar is None:
            return False
        return not (host.sees if before is None else host.sees.intersection(before.members)) - {self.liar.me}

    def _check_put_out(self, host: Host, base: Epoch, epoch: Epoch) -> None:
        for m in base.members:
            if m in epoch.members:
                continue
            if m in self.died:
                self.out_after.append(self.now - self.died[m])
            if m not in self.hosts:
                continue
            honest = [x for x in base.members if x in self.hosts and self.hosts[x] is not self.liar]
            see = [x for x in honest if x != m and m in self.hosts[x].sees]
            see = [x for x in see if self.now - self.hosts[x].since[m] >= self.way.steady]
            if 2 * len(see) > len(base.members):
                long_ago = [x for x, at in self.accepted[epoch.id].items() if self.now - at >= self.way.steady]
                # By a host that heard of it before this one.
                held = self.now - self.held_since[epoch.id] >= self.way.steady
                if epoch.id in self.again or held or quorum(base, long_ago):
                    self.stats["out by an earlier decision"] += 1
                else:
                    self.bad(host, f"host {m} is out although {len(see)} of {len(base.members)} see it")

    def opens(self, host: Host, op: int, epoch: Epoch) -> None:
        """A host opens an op. The core folds what another one opened under the same id."""
        for slot, other in self.by_op[op].items():
            if other.id == epoch.id:
                self.stats["folded"] += 1
                if other.members != epoch.members or other.owners != epoch.owners:
                    self.bad(host, f"op {op}: what host {slot} sent is folded although its epoch is another one")
            elif slot != host.me.slot:
                self.stats["refused"] += 1
        self.by_op[op][host.me.slot] = epoch

    def at_the_end(self) -> None:
        live = [*self.hosts.values()]
        ids = {host.epoch.id if host.epoch is not None else None for host in live}
        if len(ids) > 1 or None in ids:
            held = [(tuple(h.me), h.epoch and (h.epoch.number, h.epoch.line, len(h.epoch.members))) for h in live]
            self.bad(None, f"no agreement in the end: {held}")
        elif live and {*live[0].epoch.members} != {*self.hosts}:  # type: ignore[union-attr]
            self.bad(None, f"members in the end {live[0].epoch.members}, alive {sorted(self.hosts)}")  # type: ignore[union-attr]
        elif live and {*live[0].epoch.owners} != {*self.hosts}:  # type: ignore[union-attr]
            self.bad(None, "not all own a shard in the end")

    def longest_stand(self) -> float:
        return max((a.must_stand for h in self.hosts.values() for a in h.seat.flaps.accounts.values()), default=0.0)

    def run(self) -> World:
        while self.queue:
            self.now, _, what, about = heapq.heappop(self.queue)
            if self.now > self.end and self.now > self.end + self.longest_stand():
                break
            if what == "word":
                sender, to, word = about
                host = self.hosts.get(to)
                if host is not None and host.seat.hear(sender, word):
                    host.turn()
            elif what == "op":
                if self.hosts.get(about.me) is about:
                    about.look()
                    about.open()
                    self.later(OP_S * self.rng.uniform(0.5, 1.5), "op", about)
            elif what == "wake":
                if self.hosts.get(about.me) is about and about.wake <= self.now + 1e-9:
                    about.turn()
            elif what == "send":
                host, to = about
                if self.hosts.get(host.me) is host and to in self.hosts:
                    self.send(host, to)
            elif what == "stream":
                self.stream(*about)
            elif what == "fault" and self.hosts:
                self.fault()
            elif what == "back":
                self.back(about)
            elif what == "links":
                self.links_changed()
            elif what == "lie":
                if self.hosts.get(about.me) is about and about.lies:
                    for m in [*self.hosts]:
                        if m != about.me:
                            self.send(about, m)
                    self.later(0.1, "lie", about)
            elif what == "heal":
                self.cut, self.way.loss = set(), 0
                self.mute_until = min(self.mute_until, self.now)
                self.links_changed()
                if self.liar is not None and self.hosts.get(self.liar.me) is self.liar:
                    self.liar.lies = False
                    for m in self.hosts:
                        if m != self.liar.me:
                            self.send(self.liar, m)
        self.at_the_end()
        return self


GONE_BACK = "nobody of the better line is left"
"""What a seat says of the one way back that there is."""


def main() -> None:
    """Prints what a few worlds found, or what happens in one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--liar", action="store_true")
    parser.add_argument("--trace", action="store_true")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.count) if asked.seed is None else [asked.seed]
    stats: collections.Counter[str] = collections.Counter()
    found, out, came = [], [], []
    for seed in seeds:
        world = World(seed, asked.liar, asked.trace).run()
        stats += world.stats
        found += world.found
        out += world.out_after
        came += world.in_after
    print(f"{len(seeds)} worlds: {dict(stats)}")
    for name, times in (("dead hosts are out", out), ("hosts that came are in", came)):
        times.sort()
        if times:
            shown = (1e3 * times[int(at * (len(times) - 1))] for at in (0.5, 0.99, 1))
            print(name + " after {:.0f}, {:.0f}, {:.0f} ms (p50, p99, most)".format(*shown))
    print(f"{len(found)} violations")
    print("\n".join(found[:8]))


if __name__ == "__main__":
    main()
