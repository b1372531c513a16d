# SPDX-License-Identifier: Apache-2.0
"""Hosts of a lab that stand behind a NAT of their own, as hosts in an office or a cloud do.

The NAT is a namespace with the kernel's own address translation between the switch and the host. It has the address
that the host had. It forwards one TCP port to it, that of the daemon's control connections, or none at all: then the
host only goes out. No datagram comes in that was not asked for.

Two kinds of RFC 4787 are there. A *cone* gives a socket one port outside, whoever it sends to (endpoint-independent
mapping), and lets in what comes from where the socket has sent to. A *symmetric* NAT draws another port for each
destination.
"""

from __future__ import annotations

from typing import Literal

from tests.daemon.trust.papers import Authority
from tests.lab.cluster import PORT, Cluster
from tests.lab.lab import Lab, _do

MTU_LEAST = 1280
Kind = Literal["cone", "symmetric"]

# The range is not that of the daemon's ports: a NAT that happens to keep a port would hide that it is one.
_MASQUERADE = {"cone": "masquerade to :40000-40999", "symmetric": "masquerade random,fully-random"}


def put_behind_nat(lab: Lab, index: int, kind: Kind, forwards: bool = True) -> str:
    """Puts host |index| behind a NAT, which has its address from here on. Returns the host's own, which only the NAT
    knows. To be called once, before anything runs there; the NAT goes with `remove_nat`."""
    host = lab.host(index)
    nat, inside = f"{lab.prefix}-nat{index}", f"192.168.{index + 1}.2"
    gateway = inside.removesuffix("2") + "1"
    _do("ip", "netns", "add", nat)
    _do("ip", "link", "set", "eth0", "netns", nat, namespace=host.namespace)
    _do("ip", "link", "add", "in0", "netns", nat, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    for device, address, where in (
        ("eth0", f"{host.address}/24", nat),
        ("in0", f"{gateway}/24", nat),
        ("eth0", f"{inside}/24", host.namespace),
    ):
        _do("ip", "addr", "add", address, "dev", device, namespace=where)
        _do("ip", "link", "set", device, "up", namespace=where)
    _do("ip", "link", "set", "lo", "up", namespace=nat)
    _do("ip", "route", "add", "default", "via", gateway, namespace=host.namespace)
    _do("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward", namespace=nat)
    # What comes unasked is dropped before it is tracked: else it would take the very entry that the host's own
    # datagrams to its sender need.
    opened = f'iifname "eth0" tcp dport {PORT} dnat to {inside};' if forwards else ""
    rules = f"""
table ip nat {{
  chain post {{
    type nat hook postrouting priority 100;
    oifname "eth0" meta l4proto udp {_MASQUERADE[kind]};
    oifname "eth0" masquerade;
  }}
  chain pre {{
    type nat hook prerouting priority -100;
    {opened}
  }}
}}
table ip guard {{
  chain narrow {{
    type filter hook forward priority 0;
    tcp flags syn tcp option maxseg size set {MTU_LEAST - 40};
  }}
  chain in {{
    type filter hook input priority 0;
    iifname "eth0" meta l4proto udp counter drop;
    iifname "eth0" tcp flags syn / syn,ack counter drop;
  }}
}}
"""
    _do("nft", "-f", "-", namespace=nat, stdin=rules)
    return inside


def set_mtu(lab: Lab, index: int, mtu: int) -> None:
    """What goes through the NAT of host |index|, at least MTU_LEAST: as a router, it tells TCP of both sides, and the
    host."""
    assert mtu >= MTU_LEAST
    _do("ip", "link", "set", "eth0", "mtu", str(mtu), namespace=f"{lab.prefix}-nat{index}")


def remove_nats(lab: Lab) -> None:
    """Ends all NATs of a lab."""
    for host in lab.hosts:
        _do("ip", "netns", "del", f"{lab.prefix}-nat{host.index}", check=False)


class NatCluster(Cluster):
    """A daemon on every host of |lab|; those of |behind| stand behind a NAT of that kind, and say so if |always|.
    Unless |forwards|, nothing comes in there, and their daemons are told nothing of the NAT. With an |authority| their
    packets are sealed. |options|: of [relay]."""

    def __init__(
        self,
        lab: Lab,
        behind: dict[int, Kind],
        always: bool = False,
        forwards: bool = True,
        authority: Authority | None = None,
        **options: object,
    ) -> None:
        super().__init__(lab, authority=authority)
        self._options = {"ULTIMAD_RELAY_" + name.upper(): str(value) for name, value in options.items()}
        self._always, self._forwards = always, forwards
        self._inside: dict[int, str] = {}
        try:
            for index, kind in behind.items():
                self._inside[index] = put_behind_nat(lab, index, kind, forwards)
        except BaseException:
            remove_nats(lab)
            raise

    def _listens(self, index: int, address: str) -> tuple[list[str], dict[str, str]]:
        if index not in self._inside:
            return ["--bind", address], self._options
        said = {"ULTIMAD_RELAY_USE": "always"} if self._always else {}
        outside = {"ULTIMAD_ADVERTISE": address} if self._forwards else {}
        return ["--bind", self._inside[index]], outside | self._options | said

    def _stop(self) -> None:
        super()._stop()
        remove_nats(self.lab)
