# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with this host and its jobs, as far as the daemon can tell without asking anybody."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections import Counter
from collections.abc import Iterable

from ultima.daemon.base.addresses import interface_of
from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.base.written import shown_bytes
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Host, Place, State
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.table import JobTable
from ultima.v1 import admin_pb2

OK, WARNING = admin_pb2.Check.VERDICT_OK, admin_pb2.Check.VERDICT_WARNING
FAILURE, UNKNOWN = admin_pb2.Check.VERDICT_FAILURE, admin_pb2.Check.VERDICT_UNKNOWN

RECEIVE_BUFFER_BYTES = 8 << 20  # what the engine asks for where the configuration names nothing
PAGE_BYTES = 4096
QUEUE_S = 1.5 * 100e-6  # of its link a host has in its own queue at most (UT_BACKLOG_NS, and half as much again)
LOSS_SHARE, LOSS_PACKETS = 0.002, 500  # lost of those sent, and how many must have been sent, before it is told
TCP_SUFFERS_SHARE = 0.1  # lost one way: then one of 150 exchanges fails three times, and a handshake has several
RECENT_OPS = 64
# generated: ut_trouble (schema/)
TROUBLES = {1: "slow sender", 2: "slow path", 3: "slow receiver", 4: "gone", 5: "udp blocked"}
# generated: end
_SIOCGIFMTU = 0x8921


def check(
    name: str, verdict: admin_pb2.Check.Verdict.ValueType, finding: str, remedy: str = "", subject: str = ""
) -> admin_pb2.Check:
    """One row of the answer."""
    return admin_pb2.Check(name=name, verdict=verdict, finding=finding, remedy=remedy, subject=subject)


def of_host(config: DaemonConfig, engine: HostEngine) -> list[admin_pb2.Check]:
    """Of the host itself."""
    if not config.bind:
        return [check("peers", OK, "no `bind` is set: this daemon serves its own host alone, without a network")]
    sockets = [_buffers(config, engine), *_send_buffer(engine), *_offloads(config, engine)]
    return [*sockets, _interface(config, engine), *_cap(config)]


def of_history(trouble: str) -> admin_pb2.Check:
    """Where what is recorded does not reach the disk."""
    remedy = "make room there, or make it writable; training goes on, and the daemon tries again each minute"
    return check("history", WARNING, f"what is recorded stays in memory: {trouble}", remedy)


def _buffers(config: DaemonConfig, engine: HostEngine) -> admin_pb2.Check:
    """Whether the receive buffer suffices for what was measured; as long as nothing was, whether it is what was asked
    for. How much suffices the pool of credit says: docs/operations.md, "Buffers"."""
    asked, counters = config.engine.receive_buffer_bytes or RECEIVE_BUFFER_BYTES, engine.stats()
    granted, drops = engine.info.receive_buffer_bytes, counters.get("kernel_drops", 0)
    wanted, rate = counters.get("receive_wanted", 0), counters.get("arrival_rate", 0)
    finding = f"the kernel grants {shown_bytes(granted)} of {shown_bytes(asked)} to receive"
    enough = max(asked, -(-wanted // PAGE_BYTES) * PAGE_BYTES)
    remedy = f"sysctl -w net.core.rmem_max={enough}, for good in /etc/sysctl.d, and start the daemon again"
    if enough > asked:
        remedy = f"receive_buffer_bytes = {enough} under [engine], and {remedy}"
    if granted < wanted:
        finding += f", and {rate * 8e-6:.0f} Mbit/s, as data arrive here, need {shown_bytes(wanted)}"
    if granted < (wanted or asked) or (drops and granted < asked):
        if drops:
            return check("socket buffers", FAILURE, f"{finding}, and has dropped {drops} datagrams", remedy)
        return check("socket buffers", WARNING, finding, remedy)
    if drops:
        finding = f"{shown_bytes(granted)} to receive, and the kernel has dropped {drops} datagrams all the same"
        return check("socket buffers", WARNING, finding, "this host has too little CPU time, or needs a larger buffer")
    used = f", of which {rate * 8e-6:.0f} Mbit/s need {shown_bytes(wanted)}" if wanted else ""
    return check("socket buffers", OK, f"{shown_bytes(granted)} to receive{used}; nothing dropped")


def _send_buffer(engine: HostEngine) -> list[admin_pb2.Check]:
    """Whether what may stand in this host's own queue fits the send buffer, which distance does not matter to. Both are
    the kernel's bytes, and the buffer holds twice what is told of it."""
    granted, wanted = engine.info.send_buffer_bytes, round(engine.stats().get("send_drain_rate", 0) * QUEUE_S / 2)
    if granted >= wanted:
        return []
    finding = (
        f"the kernel grants {shown_bytes(granted)} to send, and {shown_bytes(wanted)} stand in this host's own queue"
    )
    enough = -(-wanted // PAGE_BYTES) * PAGE_BYTES
    remedy = f"send_buffer_bytes = {enough} under [engine], and sysctl -w net.core.wmem_max={enough}"
    return [check("send buffer", WARNING, finding, remedy)]


def _cap(config: DaemonConfig) -> list[admin_pb2.Check]:
    """What makes ops as slow as an operator wants them."""
    most = config.engine.rate_bytes_per_s
    finding = f"this host sends {most * 8e-6:.4g} Mbit/s at most, all jobs together (engine.rate_bytes_per_s)"
    return [check("rate", OK, finding)] if most else []


def _offloads(config: DaemonConfig, engine: HostEngine) -> list[admin_pb2.Check]:
    rows = []
    for name, wanted, has in (
        ("gso", config.engine.gso, engine.info.gso),
        ("gro", config.engine.gro, engine.info.gro),
    ):
        if has or not wanted:
            rows.append(check(name, OK, "in use" if has else "turned off in the configuration"))
        else:
            rows.append(
                check(name, WARNING, "the kernel or the interface has none", "costs CPU time; see `ethtool -k`")
            )
    return rows


def _interface(config: DaemonConfig, engine: HostEngine) -> admin_pb2.Check:
    """Whether a full packet fits the interface that has the daemon's address."""
    packet = engine.info.packet_bytes + (48 if ":" in config.bind else 28)
    mtu = _mtu_towards(config.bind)
    if mtu is None:
        return check("interface mtu", UNKNOWN, f"no interface tells its MTU for {config.bind}")
    if mtu < packet:
        remedy = f"set the interface's MTU to {packet}, or engine.packet_bytes on all hosts to {(mtu - 48) // 8 * 8}"
        return check(
            "interface mtu", FAILURE, f"the MTU is {mtu}, full packets have {packet} B: they go in pieces", remedy
        )
    return check("interface mtu", OK, f"the MTU is {mtu}, full packets have {packet} B")


def _mtu_towards(address: str) -> int | None:
    """The MTU of the interface with that IPv4 address; None if it cannot be found out."""
    name = interface_of(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            told = fcntl.ioctl(probe, _SIOCGIFMTU, struct.pack("16s16x", name.encode())) if name else b""
        except OSError:
            return None
    return int(struct.unpack_from("16si", told)[1]) if told else None


def of_job(job: Job, engine: HostEngine, jobs: JobTable) -> list[admin_pb2.Check]:
    """Of one job that is here."""
    name = f"job {job.name}"
    if job.membership is None or not job.ready:
        if not job.waiting_for:
            return [check("forming", OK, "it has only begun to form", subject=name)]
        remedy = "start the missing ranks, with the same MASTER_ADDR and WORLD_SIZE, or see their hosts' logs"
        return [check("forming", FAILURE, job.waiting_for, remedy, name)]
    checks = [_ailment(job, name)] if job.ailment else []
    gone = [host for host, state in job.present() if state is State.ABSENT]
    for host in gone:
        why = job.links[host.index].why if job.links is not None and host.index in job.links else ""
        remedy = "see whether the host is up, and ultimad and the ranks on it run (`systemctl status ultimad` there)"
        checks.append(check("peer", FAILURE, f"{host.name} is gone: {why}", remedy, name))
    known = {host.index for host in gone} | set(job.ailment.hosts if job.ailment else ())
    if job.own is not None and job.own.index in known:
        known |= {host.index for host, _ in job.hosts()}  # what is closed here loses packets to everybody
    checks += _losses(job, engine, known, name)
    if not job.ailment:
        checks += _slow(job, jobs.record(job), known, name)
        checks += _late(job, engine, jobs, {check.name for check in checks}, name)
    return checks or [check("job", OK, "all hosts are up, and none stands out", subject=name)]


def _ailment(job: Job, name: str) -> admin_pb2.Check:
    assert job.ailment is not None
    finding, _, remedy = job.ailment.text.partition("; TCP does. ")
    return check(job.ailment.name, FAILURE, finding, remedy, name)


def _losses(job: Job, engine: HostEngine, known: set[int], name: str) -> list[admin_pb2.Check]:
    rows = []
    now = engine.snapshot()
    for host, _ in job.hosts():
        if host is job.own or host.index in known:
            continue
        path = now.peer_stats(job.number, host.index)
        share = path.lost_bytes / path.sent_bytes if path.sent_bytes else 0.0
        if path.sent_packets >= LOSS_PACKETS and share >= LOSS_SHARE:
            finding = f"{100 * share:.2g} % of {path.sent_packets} packets to {host.name} were lost and sent again"
            remedy = "look for errors and drops on both interfaces (`ip -s link`) and on the switch between them"
            rows.append(check("loss", WARNING, finding, remedy, name))
    return rows


def lossy(jobs: Iterable[Job], engine: HostEngine, place: Place) -> str:
    """What is lost on the way to a daemon, in words, if a host there is up in a job here and so much is lost that TCP
    suffers from it as well; "" if not."""
    now = engine.snapshot()
    for job in jobs:
        for host, state in job.hosts():
            if host is job.own or state is not State.UP or host.place[:2] != place[:2]:
                continue
            path = now.peer_stats(job.number, host.index)
            share = path.lost_bytes / path.sent_bytes if path.sent_bytes else 0.0
            if path.sent_packets >= LOSS_PACKETS and share >= TCP_SUFFERS_SHARE:
                return f"{host.name} is up in job {job.name}, and {100 * share:.2g} % of the packets to it were lost"
    return ""


def _slow(job: Job, record: admin_pb2.GetReceiptsResponse, known: set[int], name: str) -> list[admin_pb2.Check]:
    """Hosts that are to blame for what the newest ops lack."""
    receipts = record.receipts[:RECENT_OPS]
    hosts = [host for host, _ in job.hosts()]
    rows: list[admin_pb2.Check] = []
    if len(receipts) < 4:
        return rows
    blamed = Counter((raw.culprit, raw.trouble) for raw in receipts if raw.culprit < len(hosts))
    for (index, trouble), times in blamed.most_common(2):
        if index not in known and 4 * times >= len(receipts):
            word = TROUBLES.get(trouble, "trouble")
            finding = f"{hosts[index].name} is to blame for {times} of the last {len(receipts)} ops: {word}"
            rows.append(check("slow host", WARNING, finding, _remedy(word, hosts[index]), name))
    return rows


def _late(job: Job, engine: HostEngine, jobs: JobTable, found: set[str], name: str) -> list[admin_pb2.Check]:
    """The host for which the others wait while ops stay whole, unless there is a graver reason for waiting."""
    latest = job.latest(engine, engine.snapshot())
    if latest is None or found & {"slow host", "peer"}:
        return []
    host, late = latest
    finding = f"the others wait for {host.name}: it calls an op {late.text}"
    return [check("slow rank", WARNING, finding, _remedy("slow sender", host), name)]


def _remedy(word: str, host: Host) -> str:
    return {
        "slow sender": f"its trainer is slower: look at its CPU, its data loader, its batch ({host.address})",
        "slow path": f"look at the link of {host.address}: its rate, errors and drops (`ip -s link`, `ethtool`)",
        "slow receiver": f"raise net.core.rmem_max on {host.address}, or give it more CPU time",
        "gone": f"see whether ultimad and the ranks run on {host.address}",
    }.get(word, f"run `ultima doctor --peer {host.address}`")
