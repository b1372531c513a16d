# SPDX-License-Identifier: Apache-2.0
"""A small Ethernet on one machine: N hosts, each a network namespace with its own link to one switch.

Loopback hides what a network does: it never loses, never queues, and knows no peers. Namespaces are real stacks with
real addresses, so daemons, trainers and rival libraries run here as they do on machines. The lab shapes links (tbf) and
drops what the switch forwards (nftables): single packets, rows of packets, all for some milliseconds, all between two
groups of hosts. It needs neither netem nor a kernel module, and therefore has no jitter or reordering: those run in the
simulator. Traffic of others is made by tests/lab/traffic.py.

With `far` the hosts are apart: a process of ours (tests/lab/distance.c) takes the place of the kernel's switch. It
delays and loses what it forwards, and knows no rules that drop by host or port.

What a loss event takes depends on the offloads. Across a veth pair a segmentation burst of up to 64 KiB travels as one
buffer, and a drop rule takes it whole: `unit="burst"`. With `unit="packet"` the offloads are turned off in front of the
switch, so that one event is one packet of at most an MTU, at the price of more CPU per byte. Say with every loss figure
which unit it had.

Each lab has its own prefix, which holds the process id: runs do not collide, and what a killed run left is swept by the
next one. Nothing here touches an interface, a route or a rule of the machine itself.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from tests.lab.distance import Distance, Far
from tests.nursery import Nursery, Process

HOSTS_MAX = 64  # what one job of Ultima can have
PREFIX = "ultima-lab"
PPM = 1_000_000
BURST_MAX = 10_000  # packets that one burst may take
PORT_BURST = "16kb"  # that a port with a queue of its own lets pass at once after a rest
_numbers = itertools.count()

Unit = Literal["packet", "burst"]


class LabError(RuntimeError):
    """A command that builds the lab failed. The message holds the command and what it said."""


def unavailable() -> str | None:
    """Why there can be no lab on this machine, or None when there can. Tests skip with this sentence."""
    if os.geteuid() != 0:
        return "a lab of network namespaces needs root"
    missing = [tool for tool in ("ip", "tc", "nft", "ethtool") if _find(tool) is None]
    if missing:
        return f"a lab needs {', '.join(missing)} (Debian: iproute2 nftables ethtool)"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    try:
        _do("ip", "netns", "add", probe)
    except LabError as error:
        return f"no network namespace can be made here: {error}"
    _do("ip", "netns", "del", probe)
    return None


def _find(tool: str) -> str | None:
    # An ordinary user's PATH, and that of some containers, leaves the sbin folders out.
    return shutil.which(tool, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def _do(tool: str, *arguments: str, namespace: str = "", check: bool = True, stdin: str = "") -> str:
    """Runs |tool| (in |namespace|) and returns what it printed; raises LabError when it fails and |check| holds."""
    command = [_find(tool) or tool, *arguments]
    if namespace:
        command = [_find("ip") or "ip", "netns", "exec", namespace, *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, input=stdin)
    if check and done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()} (exit status {done.returncode})")
    return done.stdout


def sweep() -> None:
    """Removes the labs of processes that are gone: a run that was killed could not clean up."""
    for line in _do("ip", "netns", "list", check=False).splitlines():
        name = line.split()[0]
        match = re.fullmatch(rf"{PREFIX}-(\d+)-.*", name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            _remove_namespace(name)


def _remove_namespace(name: str) -> None:
    # Whoever still runs in it was started by that lab: nobody else knows the name.
    for pid in _do("ip", "netns", "pids", name, check=False).split():
        with contextlib.suppress(ProcessLookupError):  # it may end between the two calls
            os.kill(int(pid), signal.SIGKILL)
    _do("ip", "netns", "del", name, check=False)


class Host:
    """One host of a lab. `address` and `address6` are its numeric addresses; `index` counts from 0."""

    def __init__(self, lab: Lab, index: int) -> None:
        self._lab = lab
        self.index = index
        self.namespace = f"{lab.prefix}-h{index}"
        self.port = f"p{index}"  # the switch's end of its link
        self.address = f"10.43.0.{index + 1}"
        self.address6 = f"fd75:6c74:696d:61::{index + 1:x}"
        self._children: list[subprocess.Popen[Any] | Process] = []

    def popen(self, command: Sequence[str], env: Mapping[str, str] | None = None, **rest: Any) -> subprocess.Popen[Any]:
        """Starts |command| on this host. |env| is added to the caller's environment; |rest| goes to Popen.

        The child's pid is the command's own. It is killed when the lab goes down, if it still runs.
        """
        environment = {**os.environ, **(env or {})}
        enter = [_find("ip") or "ip", "netns", "exec", self.namespace]
        child = subprocess.Popen([*enter, *command], env=environment, **rest)
        self._children.append(child)
        return child

    def fork(self, nursery: Nursery, module: str, arguments: Iterable[str], **rest: Any) -> Process:
        """As popen, of `python -m |module|` out of a |nursery|; |rest| goes to `Nursery.start`."""
        child = nursery.start(module, arguments, namespace=self.namespace, **rest)
        self._children.append(child)
        return child

    def run(self, command: Sequence[str], timeout: float = 60, **rest: Any) -> subprocess.CompletedProcess[str]:
        """Runs |command| here to its end and returns it with its text output; it may fail."""
        enter = [_find("ip") or "ip", "netns", "exec", self.namespace]
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=timeout, **rest)

    def set_rate(self, mbit: float) -> None:
        """Shapes the link in both directions to |mbit| Mbit/s; 0 takes the shaping away."""
        for device, where in (("eth0", self.namespace), (self.port, self._lab.switch)):
            _do("tc", "qdisc", "del", "dev", device, "root", namespace=where, check=False)
            if mbit:
                shape = f"tbf rate {mbit}mbit burst {self._lab.burst_kb}kb latency {self._lab.queue_ms}ms".split()
                _do("tc", "qdisc", "add", "dev", device, "root", *shape, namespace=where)

    def set_queue(self, mbit: float, queue_bytes: int) -> None:
        """The switch's port towards this host: |mbit| Mbit/s, and |queue_bytes| that wait there before it drops. A rest
        lets PORT_BURST pass at once, which is next to nothing; the host's own side is as `set_rate` left it.
        """
        limit = f"tbf rate {mbit}mbit burst {PORT_BURST} limit {queue_bytes}".split()
        _do("tc", "qdisc", "replace", "dev", self.port, "root", *limit, namespace=self._lab.switch)

    def dropped_by_queue(self) -> int:
        """Packets that the switch's port towards this host has dropped so far for want of room; it must be shaped."""
        shown = _do("tc", "-s", "-j", "qdisc", "show", "dev", self.port, "root", namespace=self._lab.switch)
        return int(json.loads(shown)[0]["drops"])

    def set_link(self, up: bool) -> None:
        """Pulls the cable at the switch, or plugs it in again."""
        _do("ip", "link", "set", self.port, "up" if up else "down", namespace=self._lab.switch)

    def set_mtu(self, mtu: int, at_switch: bool = True) -> None:
        """What the link carries: bytes of an IP packet. Larger ones vanish in both directions, as in a black hole.

        With |at_switch| False the host knows, and refuses to send them. Only with unit="packet": a burst passes.
        """
        device, where = (self.port, self._lab.switch) if at_switch else ("eth0", self.namespace)
        _do("ip", "link", "set", device, "mtu", str(mtu), namespace=where)

    def stop_children(self) -> None:
        """Ends what popen started here and still runs: first politely, then for sure."""
        running = [child for child in self._children if child.poll() is None]
        for child in running:
            child.terminate()
        for child in running:
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()


class Lab:
    """N hosts behind one switch, up while the context lasts.

    |n|: 1 to 64 hosts. |rate_mbit|: shape of every link, both directions, 0 for none (the lab then measures CPU per
    byte, not a network). |loss_pct|: of what the switch forwards, 0 to 100. |unit|: what one loss event takes, see
    above. |congestion|: TCP congestion control of every host, None for the kernel's default. |queue_ms|: how long a
    shaped link queues before it drops. |burst_kb|: what it carries at once after a rest; no cable does that. |far|: how
    far the hosts are apart; then its loss is the one, and each loss event is a packet. Raises ValueError naming the
    argument, and LabError when a command fails.
    """

    def __init__(
        self,
        n: int,
        rate_mbit: float = 0,
        loss_pct: float = 0,
        unit: Unit = "burst",
        congestion: str | None = None,
        queue_ms: int = 20,
        burst_kb: int = 256,
        far: Far | None = None,
    ) -> None:
        if not 1 <= n <= HOSTS_MAX:
            raise ValueError(f"n is {n}, must be 1 to {HOSTS_MAX}")
        if rate_mbit < 0:
            raise ValueError(f"rate_mbit is {rate_mbit}, must be 0 (unshaped) or more")
        if unit not in ("packet", "burst"):
            raise ValueError(f"unit is {unit!r}, must be 'packet' or 'burst'")
        if far is not None and loss_pct:
            raise ValueError(f"loss_pct is {loss_pct}, must be 0 where hosts are far: give Far(loss_pct=...)")
        self.prefix = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        self.switch = f"{self.prefix}-sw"
        self.unit = unit if far is None else "packet"
        self.queue_ms, self.burst_kb = queue_ms, burst_kb
        self.hosts = [Host(self, index) for index in range(n)]
        self._rate, self._loss, self._congestion = rate_mbit, _checked_loss(loss_pct), congestion
        self._far = far
        self._distance: Distance | None = None

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.down()

    def host(self, index: int) -> Host:
        return self.hosts[index]

    @property
    def distance(self) -> Distance:
        """The switch of a lab with distance that is up."""
        assert self._distance is not None, "the lab was made without `far`, or is down"
        return self._distance

    def up(self) -> None:
        """Builds the lab; one that is up already is built anew."""
        sweep()
        self.down()
        atexit.register(self.down)
        try:
            self._build()
        except BaseException:
            self.down()
            raise

    def _build(self) -> None:
        _do("ip", "netns", "add", self.switch)
        if self._far is None:
            # No spanning tree and no delay: ports forward at once. The switch itself has no address.
            _do("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0", namespace=self.switch)
            _do("ip", "link", "set", "br0", "up", namespace=self.switch)
        for host in self.hosts:
            self._plug_in(host)
        if self._far is None:
            self.set_loss(self._loss)
        else:
            enter = [_find("ip") or "ip", "netns", "exec", self.switch]
            self._distance = Distance(enter, [host.port for host in self.hosts], self._far)

    def _plug_in(self, host: Host) -> None:
        inside, port = host.namespace, host.port
        _do("ip", "netns", "add", inside)
        _do("ip", "link", "add", "eth0", "netns", inside, "type", "veth", "peer", "name", port, "netns", self.switch)
        into = () if self._far is not None else ("master", "br0")
        _do("ip", "link", "set", port, *into, "up", namespace=self.switch)
        if self.unit == "packet":
            for device, where in (("eth0", inside), (port, self.switch)):
                # A process that forwards frames needs their checksums, too.
                features = ("tso", "gso", "tx-udp-segmentation", *(() if self._far is None else ("tx",)))
                _do("ethtool", "-K", device, *itertools.chain(*((name, "off") for name in features)), namespace=where)
        _do("ip", "link", "set", "lo", "up", namespace=inside)
        _do("ip", "addr", "add", f"{host.address}/24", "dev", "eth0", namespace=inside)
        # nodad: an address that is still being checked for duplicates cannot be bound, and that lasts a second.
        _do("ip", "addr", "add", f"{host.address6}/64", "dev", "eth0", "nodad", namespace=inside)
        _do("ip", "link", "set", "eth0", "up", namespace=inside)
        if self._congestion is not None:
            self._route(host, self._congestion)
        if self._rate:
            host.set_rate(self._rate)

    def _route(self, host: Host, congestion: str) -> None:
        # On the route, because a namespace may not change the default of the machine.
        route = ["10.43.0.0/24", "dev", "eth0", "src", host.address, "congctl", congestion]
        _do("ip", "route", "replace", *route, namespace=host.namespace)

    def set_congestion(self, name: str) -> None:
        """TCP congestion control of connections that are made from here on, over IPv4."""
        for host in self.hosts:
            self._route(host, name)

    def set_loss(self, pct: float, to: Iterable[int] | None = None) -> None:
        """Drops |pct| percent of what the switch forwards, to the hosts |to| only if they are named; 0 ends it.

        Each packet has the chance for itself. This, set_bursts and set_outages replace one another.
        """
        below = round(_checked_loss(pct) / 100 * PPM)
        # nft refuses a comparison that always holds.
        chance = f"numgen random mod {PPM} < {below}" if below < PPM else ""
        self._rules("loss", [f"{port} {chance} counter drop" for port in self._ports(to)] if below else [])

    def set_bursts(self, length: int, pct: float, to: Iterable[int] | None = None) -> None:
        """Drops |length| packets in a row, again and again, so that |pct| percent are lost; 0 percent ends it.

        Counted for each receiving host alone, so a burst hits whoever sends to it just then. The bursts come at an
        even distance, not at random: a stand-in for a queue that overflows, not a model of a channel that fades.
        """
        if not 1 <= length <= BURST_MAX:
            raise ValueError(f"length is {length}, must be 1 to {BURST_MAX}")
        every = round(length * 100 / _checked_loss(pct)) if pct else 0
        if pct and every <= length:
            raise ValueError(f"pct is {pct}, must be under 100 for bursts")
        chosen = self._ports(range(len(self.hosts)) if to is None else to) if pct else []
        self._rules("loss", [f"{port} numgen inc mod {every} < {length} counter drop" for port in chosen])

    def set_outages(self, ms: int, ppm: float, to: Iterable[int] | None = None) -> None:
        """After one packet in a million/|ppm|, drops all that goes to the same host for about |ms| milliseconds.

        The kernel counts such times in ticks, so an outage may last some milliseconds more. 0 ppm ends it.
        """
        if not 1 <= ms <= 10_000:
            raise ValueError(f"ms is {ms}, must be 1 to 10000")
        below = round(_checked_loss(ppm / PPM * 100) / 100 * PPM)
        rules = ["oifname @out counter drop"]
        for port in self._ports(range(len(self.hosts)) if to is None else to):
            rules.append(f"{port} numgen random mod {PPM} < {below} add @out {{ oifname }} counter drop")
        held = f"set out {{ type ifname; size 65535; flags dynamic,timeout; timeout {ms}ms; }}"
        self._rules("loss", rules if below else [], held)

    def set_partition(self, *groups: Iterable[int]) -> None:
        """Lets a host reach only those of its own group; without groups everybody reaches everybody again.

        Hosts that are in no group reach everybody. Raises ValueError for a host in two groups.
        """
        sides = [sorted(set(group)) for group in groups]
        named = [index for side in sides for index in side]
        if len(named) != len(set(named)):
            raise ValueError(f"groups are {sides}, must not share a host")
        rules = []
        for side, others in itertools.permutations(sides, 2):
            rules += [f"{self._pair(a, b)} counter drop" for a in side for b in others]
        self._rules("cut", rules)

    def set_one_way(self, pairs: Iterable[tuple[int, int]], protocol: str = "", port: int = 0) -> None:
        """Drops all that goes from a to b for each (a, b), or only one IPv4 |protocol| of it ("udp"), and of that only
        what is for |port|; replaces a partition. No pairs end it. ARP passes, without which b could send nothing to a.
        """
        only = f"ip protocol {protocol}" if protocol else "ether type != arp"
        only += f" {protocol} dport {port}" if port else ""
        self._rules("cut", [f"{self._pair(a, b)} {only} counter drop" for a, b in pairs])

    def _pair(self, a: int, b: int) -> str:
        return f"iifname {self.hosts[a].port} oifname {self.hosts[b].port}"

    def _ports(self, to: Iterable[int] | None) -> list[str]:
        return [f"oifname {self.hosts[index].port}" for index in to] if to is not None else [""]

    def _rules(self, table: str, rules: list[str], declared: str = "") -> None:
        """Puts |rules| in the place of all that |table| of the switch held; no rules take the table away."""
        if self._far is not None:
            raise LabError("the switch of a lab with distance knows no rules: see Lab.distance")
        script = f"table bridge {table}\ndelete table bridge {table}\n"
        if rules:
            body = "\n".join(["type filter hook forward priority 0; policy accept;", *rules])
            script += f"table bridge {table} {{\n{declared}\nchain forward {{\n{body}\n}}\n}}\n"
        _do("nft", "-f", "-", namespace=self.switch, stdin=script)

    def dropped(self) -> tuple[int, int]:
        """Packets (or bursts of segments) and bytes taken since the loss was set: a test of loss must show some."""
        listing = _do("nft", "-j", "list", "ruleset", namespace=self.switch)
        found = [item["rule"] for item in json.loads(listing)["nftables"] if "rule" in item]
        rules = [rule["expr"] for rule in found if rule["table"] == "loss"]
        counters = [part["counter"] for rule in rules for part in rule if "counter" in part]
        return sum(one["packets"] for one in counters), sum(one["bytes"] for one in counters)

    def down(self) -> None:
        """Ends every process on the hosts and removes them; nothing happens when the lab is down already."""
        for host in self.hosts:
            host.stop_children()
        if self._distance is not None:
            self._distance.stop()
            self._distance = None
        names = {line.split()[0] for line in _do("ip", "netns", "list", check=False).splitlines() if line}
        for name in [*(host.namespace for host in self.hosts), self.switch]:
            if name in names:
                _remove_namespace(name)
        atexit.unregister(self.down)


def _checked_loss(pct: float) -> float:
    if not 0 <= pct <= 100:
        raise ValueError(f"loss_pct is {pct}, must be 0 to 100")
    return pct


def main() -> int:
    parser = argparse.ArgumentParser(prog="make lab ARGS=...", description="A shell on host 0 of a lab.")
    parser.add_argument("--hosts", type=int, default=4, metavar="N")
    parser.add_argument("--rate", type=float, default=0, metavar="MBIT", help="of every link; 0: unshaped")
    parser.add_argument("--loss", type=float, default=0, metavar="PCT", help="of what the switch forwards")
    parser.add_argument("--unit", choices=("packet", "burst"), default="packet", help="what one loss event takes")
    parser.add_argument("--far", type=float, metavar="MS", help="round trip between hosts; by a process, slower")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        print(f"lab: {reason}", file=sys.stderr)
        return 1
    loss, far = options.loss, None
    if options.far is not None:
        loss, far = 0, Far(options.far, options.loss)
    with Lab(options.hosts, options.rate, loss, options.unit, far=far) as lab:
        for host in lab.hosts:
            print(f"host {host.index}: {host.address}  {host.address6}  ip netns exec {host.namespace} ...")
        print("This shell is on host 0; the lab goes when you leave it.")
        return lab.host(0).popen([os.environ.get("SHELL", "/bin/sh")]).wait()


if __name__ == "__main__":
    sys.exit(main())
