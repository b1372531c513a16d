# SPDX-License-Identifier: Apache-2.0
"""The account of one op: what went into the result, what did not, and why.

A receipt is made by the engine of this rank's own host, so two ranks may hold different receipts for one op: each says
what *its* result contains. Bytes obey `bytes_expected == bytes_used + bytes_missing`; repaired bytes are among the used
ones, duplicates are apart. All bytes are of payload that crosses the network; ranks on one host are summed before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from ultima.base.deferred import Deferred
from ultima.base.warning import renamed


class Status(StrEnum):
    """How much an op reached."""

    # generated: Status (schema/)
    COMPLETE = "COMPLETE"
    """Every element holds the contribution of every rank; where data is only moved, all of it has come."""
    PARTIAL = "PARTIAL"
    """Usable: each element is reduced over the ranks that reached it, and an average is divided by their number."""
    INSUFFICIENT = "INSUFFICIENT"
    """Nothing of any other host is in it or, where all ranks share one host, nothing of any other rank: the result is
    this host's, or this rank's, own value."""
    FAILED = "FAILED"
    """There is no result. Only the receipt that an exception carries says so."""
    # generated: end


class StageEnd(StrEnum):
    """What ended a stage of the op."""

    # generated: StageEnd (schema/)
    NONE = "none"
    """It did not end."""
    COMPLETE = "complete"
    """Everything is there."""
    DEADLINE = "deadline"
    """The deadline came or, in best effort, t_b was over."""
    ABSENT = "absent"
    """Nothing more could come: all that was missing belongs to hosts known to be gone."""
    EARLY = "early"
    """In best effort: every sender's last packets were seen; waiting on for what was lost would have bought little."""
    # generated: end


class Why(StrEnum):
    """Why bytes of a host are missing."""

    # generated: Why (schema/)
    NOTHING = "nothing missing"
    """All that was due of it has come."""
    ABSENT = "absent"
    """The host is known to be gone."""
    SILENT = "silent"
    """Nothing was heard of it during the op."""
    LOST = "lost"
    """It sent, but some packets did not come through in time."""
    CLOSED = "closed"
    """It left the job."""
    VIEW = "view"
    """It ran this op under another view of the job: its daemon knew of another epoch."""
    # generated: end


class Trouble(StrEnum):
    """What ails the host that is to blame."""

    # generated: Trouble (schema/)
    NONE = "nothing"
    """Nobody is to blame, or it is not known for what."""
    SENDER = "slow sender"
    """It called the op late, or stood still, and nothing was lost meanwhile."""
    PATH = "slow path"
    """It sent in time, but its data came late or was lost on the way."""
    RECEIVER = "slow receiver"
    """Its kernel dropped what had arrived: the socket buffer is too small, or the host has too little CPU time."""
    GONE = "gone"
    """It is known to be gone, or was silent all the time."""
    UDP = "udp blocked"
    """Its daemon answers over TCP, and UDP to it or from it does not get through at all: a firewall, most likely."""
    DAEMON = "daemon short of CPU"
    """This rank's own daemon lives, and did not answer in time: it is short of CPU time, or stopped. Such a receipt is
    made without it. The other ranks may have this rank's values in their results."""
    # generated: end


class Gift(StrEnum):
    """What an op of a job with a policy found of this rank when it started: its gift."""

    # generated: Gift (schema/)
    NULL = "null"
    """Nothing: the op went without this rank."""
    FRESH = "fresh"
    """What was given for this op."""
    STALE = "stale"
    """What was given for an earlier one, alone or with newer."""
    # generated: end


# generated: words by number (schema/)
GIFTS = (Gift.NULL, Gift.FRESH, Gift.STALE)
TROUBLES = (Trouble.NONE, Trouble.SENDER, Trouble.PATH, Trouble.RECEIVER, Trouble.GONE, Trouble.UDP)
STATUSES: tuple[Status | None, ...] = (None, Status.COMPLETE, Status.PARTIAL, Status.INSUFFICIENT, Status.FAILED)
STAGE_ENDS = (StageEnd.NONE, StageEnd.COMPLETE, StageEnd.DEADLINE, StageEnd.ABSENT, StageEnd.EARLY)
WHYS = (Why.NOTHING, Why.ABSENT, Why.SILENT, Why.LOST, Why.CLOSED, Why.VIEW)
# generated: end


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the job: a daemon and the ranks that are attached to it."""

    index: int
    """Its number among the hosts of the job, from 0."""
    address: str
    """The address at which its daemon serves other daemons."""
    ranks: tuple[int, ...]
    """Its ranks, ascending."""
    port: int = 0
    """The port on which the daemon answers other daemons."""
    wires: tuple[str, ...] = ()
    """Forms of few bits that its daemon knows: `wire` of allreduce can be one that all hosts know."""


@dataclass(frozen=True, slots=True)
class PeerReceipt:
    """What one host of the job brought to the op. The row of this rank's own host has no bytes: nothing crosses the
    network.
    """

    # generated: PeerReceipt (schema/)
    host: int
    """Index of the host in the job."""
    ranks: tuple[int, ...]
    """Ranks of the host, ascending."""
    expected_bytes: tuple[int, int]
    """Bytes that were due in the first stage (its contribution to our shard) and in the second (the shard that it
    reduced)."""
    missing_bytes: tuple[int, int]
    """How many of those bytes had not come when the stage ended."""
    weight: int
    """Number of ranks that are summed in what it sent; 0 if nothing came."""
    why: Why
    """Why bytes of it are missing."""
    last_s: float | None
    """When its last byte came, in seconds after the start of the op; None if none came."""
    trouble: Trouble = Trouble.NONE
    """What ails it, if it is to blame; NONE in a complete op."""
    first_s: float | None = None
    """When its first byte came; None if none came."""
    opened_s: float | None = None
    """When this host heard that it had called the op; 0 if it called before this host, None if it never did."""
    quiet_s: float = 0.0
    """Its longest silence after it had called the op."""
    delay_s: float = 0.0
    """How much longer its slowest packet was on the way than its fastest."""
    repaired_bytes: int = 0
    """How many bytes of what it sent were lost first and came as repairs."""
    lost_packets: int = 0
    """Packets to it that were lost."""
    drops: int = 0
    """Datagrams that its kernel dropped during the op, as it says itself."""
    fresh: tuple[int, ...] = ()
    """Its ranks that are in the op; empty if it did not tell. In a job with a policy: with what they gave for this
    op."""
    stale: tuple[int, ...] = ()
    """In a job with a policy: its ranks that are in the op with what they gave for an earlier one."""
    oldest_step: int | None = None
    """The oldest step, as its ranks number them, in what it contributed; None if it contributed nothing."""
    gone: tuple[int, ...] = ()
    """Without a policy: its ranks that are not in the op, and have left or died."""
    late: tuple[int, ...] = ()
    """Without a policy: its ranks that are not in the op because their host did not wait for their call. In what such a
    rank gets itself it is named here too, though it holds its own value."""
    weight_given: int = 0
    """In a weighted op: the sum of the weights that its ranks gave, as far as it told."""
    # generated: end


@dataclass(frozen=True, slots=True)
class Receipt(Deferred):
    """The account of one op, as the host of this rank saw it. Times in seconds."""

    # generated: Receipt (schema/)
    op_seq: int
    """Number of the op in the job, the same on every rank."""
    status: Status
    """How much the op reached."""
    world_size: int
    """Number of ranks of the job."""
    contributors: tuple[int, ...]
    """Ranks known to be in every element of the result, ascending. Where data is only moved: the ranks it is from."""
    partly: tuple[int, ...]
    """Ranks known to be in some elements but not known to be in all."""
    weight_min: int
    """Number of ranks in the least covered element."""
    peers: tuple[PeerReceipt, ...]
    """One row per host of the job, by host index."""
    culprit: tuple[int, ...]
    """Ranks to blame for what is missing: those of the host to blame, or of these those that were late or are gone,
    where that is known. Empty for nobody."""
    stage_ends: tuple[StageEnd, StageEnd]
    """What ended each stage."""
    stage_s: tuple[float, float]
    """Duration of each stage, counted from the start of the op."""
    elapsed_s: float
    """From submission to completion, as the engine saw it."""
    bytes_expected: int
    """Bytes that were due from other hosts."""
    bytes_used: int
    """How many of those bytes are in the result."""
    bytes_missing: int
    """How many of those bytes never came in time."""
    bytes_repaired: int
    """How many of the used bytes were lost first and came as repairs."""
    bytes_duplicate: int
    """Bytes that came again and were thrown away."""
    nonfinite: int
    """NaN or Inf elements in the result."""
    drops_host: int
    """Datagrams of all jobs that this host's kernel dropped during the op: if not 0, raise net.core.rmem_max."""
    trouble: Trouble = Trouble.NONE
    """What ails the host that `culprit` names."""
    digest: int = 0
    """64 bits that depend on every byte of the result: ranks with equal digests hold equal results. 0 for no digest."""
    agreed_op: int | None = None
    """The newest earlier op for which all hosts that were up have told their digest; None while there is none. A host
    tells the digest when its op has ended, so a receipt never speaks of its own op."""
    differ: tuple[int, ...] = ()
    """Ranks of the hosts whose result of that op differs from ours."""
    owners: tuple[int, ...] = ()
    """Ranks of the hosts among which the bucket was cut: each of them summed a shard. A few ops after a host has gone
    it owns none."""
    view: int = 0
    """Number of the view of the job under which the op ran here: which hosts were in it. 0: all of them, as the job
    began, or not known."""
    members: tuple[int, ...] = ()
    """Ranks of the view: those that the op was to have. In a job whose ranks are fixed these are all."""
    hadamard: bool = False
    """The data travelled transformed."""
    incast: int = 0
    """Number of hosts that a host heard at once."""
    t_b_s: float | None = None
    """The bound of a stage that was in force; None for no bound."""
    t_c_s: tuple[float | None, float | None] = (None, None)
    """The expected time of each stage that was in force; None if it was not known."""
    submitted_ns: int = 0
    """When this rank handed the op to the engine, by its time.monotonic_ns; 0 in the accounts of a daemon."""
    ended_ns: int = 0
    """When this rank heard that the op had ended."""
    deadline_s: float | None = None
    """The time that the op had from its start to its deadline; None for no deadline. Where the caller named none this
    is 8 t_b and 1 s once t_b is measured, counted anew when another host calls the op."""
    policy: str = "none"
    """What started the op, in a job with a policy: "solo", "majority" and so on."""
    included: int = 0
    """In a job with a policy: number of ranks that had something to give when the op started, as far as this host
    heard; 0 if no op started by the deadline."""
    initiator: tuple[int, ...] = ()
    """Ranks of the host that started the op; empty with the policy "full", without a policy, or if it is not known."""
    gift: Gift | None = None
    """What this rank had given when the op took it; None in a job without a policy."""
    kept: bool = False
    """What was given with this call was too late for the op; it waits for the next one."""
    waited_s: float = 0.0
    """The time from when this host had something to give, or was told of the op, to the op's start."""
    eta: int = 0
    """How many steps may lie between the oldest and the newest gradient that a rank combines; 0 without a policy."""
    step: int | None = None
    """In a coded job: the step that the op was for. None for other jobs, and where no op was."""
    exact: bool | None = None
    """In a coded job: whether the result is the sum over all data; None for other jobs."""
    unused: tuple[int, ...] = ()
    """In a coded job: ranks that gave, and of which this host needed nothing."""
    late: tuple[int, ...] = ()
    """In a coded job: ranks that had given nothing when the sum could be had."""
    redundant_bytes: int = 0
    """In a coded job: bytes that came although what they hold was there from another rank. There bytes_expected is
    bytes_used + redundant_bytes + bytes_missing."""
    residual: float = 0.0
    """In a coded job: how far the result's least element is from the sum of all parts of the data, the Euclidean norm
    of (what each part is multiplied by) - 1; 0 for an exact one."""
    wire_sent: int = 0
    """Bytes of payload that this host had sent of the op when it ended here, what it sent again included; slower peers
    may get some later. Of a sparse or a quantised op these are bytes as they travelled, where the numbers above count
    the dense tensor."""
    wire_received: int = 0
    """Bytes of payload of the op that came to this host, counted as `wire_sent`."""
    values: int = 0
    """In a sparse op: elements that this host's ranks gave, up to the first bad index of each; 0 for other ops."""
    lacks: bool = False
    """In a sparse op: some of what this host gave is in no sum; see the argument `returns` of `allreduce_sparse`."""
    portions: int = 1
    """Into how many portions the op was split, one for each lane of the job; its number is that of the first, and the
    next op's is higher by as many. All else is of all portions together."""
    weight_due: int = 0
    """In a weighted op: the weights of all ranks, as far as their hosts told."""
    weight_in: int = 0
    """In a weighted op: the weights of the ranks known to be in every element of the result."""
    wire: str | None = None
    """The forms in which a quantised op travelled: one of `int16`, `int8` and `int4`, or two, as in `int4/int8`, that
    of contributions before that of results. None where values travelled as they are."""
    nonfinite_given: int = 0
    """In a quantised op: elements of this host's own contribution that were NaN or infinite. Each of them is NaN in the
    result."""
    error_given: float = 0.0
    """In a quantised op: what rounding took from an element of this host's contribution, in units of the bucket: the
    root of the mean square that is expected of its scales."""
    error_answer: float = 0.0
    """In a quantised op, and in a sparse one with `down`: what rounding took from an element of the result, after the
    sum, as `error_given`. It is of the part of the result that came."""
    by_relay: tuple[int, ...] = ()
    """Ranks of the hosts to which packets of this host went by relay when the op ended: a host of the job forwarded
    them. Whose values are in the result does not depend on it."""
    relays: tuple[int, ...] = ()
    """Ranks of the hosts that forwarded them."""
    # generated: end

    @property
    def slot(self) -> Gift | None:
        """The old name of `gift`."""
        renamed("Receipt.slot", "Receipt.gift")
        return self.gift

    @property
    def complete(self) -> bool:
        """True when every element holds every rank's contribution, or all that was to be moved has come. In a job with
        a policy: the contribution of every rank that had one."""
        return self.status is Status.COMPLETE

    @property
    def fresh(self) -> tuple[int, ...]:
        """Ranks that are in the op, as far as their hosts told; in a job with a policy with what they gave for this op.
        Ascending.
        """
        return tuple(sorted(rank for peer in self.peers for rank in peer.fresh))

    @property
    def stale(self) -> tuple[int, ...]:
        """In a job with a policy: ranks that are in the op with what they gave for an earlier op, ascending."""
        return tuple(sorted(rank for peer in self.peers for rank in peer.stale))

    @property
    def stale_steps(self) -> dict[int, int]:
        """For each stale rank the oldest step, as its trainers number them, in what its host contributed."""
        return {
            rank: peer.oldest_step
            for peer in sorted(self.peers, key=lambda peer: peer.ranks)
            if peer.oldest_step is not None
            for rank in peer.stale
        }

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that are not known to be in every element, ascending. Without a policy a complete op has none."""
        everybody = self.complete and self.policy == "none"
        ranks = self.members if len(self.members) == self.world_size else range(self.world_size)
        there = set(ranks if everybody else self.contributors)
        return tuple(rank for rank in ranks if rank not in there)

    @property
    def gone(self) -> tuple[int, ...]:
        """Without a policy: ranks that are not in the op, and are known to have left or died, ascending."""
        return tuple(sorted(rank for peer in self.peers for rank in peer.gone))

    @property
    def loss(self) -> float:
        """The share of the expected bytes that is missing, 0 to 1."""
        return self.bytes_missing / self.bytes_expected if self.bytes_expected else 0.0

    def as_dict(self) -> dict[str, object]:
        """All of it in types that json.dumps takes. Keys are the names of the fields and do not change between
        releases.
        """
        told = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        peers, told["digest"] = told.pop("peers"), f"{self.digest:016x}"
        told["slot"] = told["gift"]  # its old name
        ranks = {name: list(getattr(self, name)) for name in ("gone", "fresh", "stale")}
        steps = {str(rank): step for rank, step in self.stale_steps.items()}
        return told | ranks | {"stale_steps": steps, "peers": peers}

    def __str__(self) -> str:
        """One line for a complete op; otherwise a line more per host that is missing something."""
        parts = [f"op {self.op_seq}: {self.status} after {self.elapsed_s * 1e3:.3f} ms"]
        if self.policy != "none":
            parts += self._policy_parts()
        elif self.complete and len(self.contributors) < self.world_size:
            parts.append(f"from {ranks_text(self.contributors)} to all {self.world_size}")
        elif self.complete:
            parts.append(f"all {self.world_size} ranks" if self.world_size > 1 else "the only rank")
        else:
            parts.append(f"{ranks_text(self.contributors)} in every element")
            if self.partly:
                parts.append(f"{ranks_text(self.partly)} in some")
            if self.gone:
                parts.append(f"{ranks_text(self.gone)} gone")
            late = [rank for peer in self.peers for rank in peer.late if rank not in self.contributors]
            if late:
                parts.append(f"{ranks_text(sorted(late))} late")
        if self.bytes_missing:
            parts.append(
                f"{size_text(self.bytes_missing)} of {size_text(self.bytes_expected)} missing ({100 * self.loss:.3g} %)"
            )
        if self.bytes_repaired:
            parts.append(f"{size_text(self.bytes_repaired)} repaired")
        if self.by_relay:
            parts.append(f"by relay with {ranks_text(self.by_relay)}")
        if self.nonfinite:
            parts.append(f"{self.nonfinite} elements NaN or Inf")
        if self.drops_host:
            parts.append(f"{self.drops_host} datagrams dropped by this host's kernel")
        if self.culprit and self.trouble is not Trouble.NONE:
            parts.append(f"{ranks_text(self.culprit)} to blame: {self.trouble}")
        lines = [", ".join(parts)]
        lines += [_peer_line(peer) for peer in self.peers if any(peer.missing_bytes) or peer.why is not Why.NOTHING]
        return "\n".join(lines)

    def _policy_parts(self) -> list[str]:
        """What a line says of an op in a job with a policy."""
        parts = [f"{self.included} of {self.world_size} ranks included"]
        if self.stale:
            steps = self.stale_steps
            oldest = f" (from step {min(steps.values())})" if steps else ""
            parts.append(f"{ranks_text(self.stale)} stale{oldest}")
        if not self.complete:
            parts.append(f"{ranks_text(self.contributors)} in every element")
        by = f"by {ranks_text(self.initiator)}" if self.initiator else "by all"
        parts.append(f"started {by} ({self.policy})" if self.initiator or self.policy == "full" else self.policy)
        if self.kept:
            parts.append("ours kept for the next")
        if self.exact is not None:
            parts += self._coded_parts()
        return parts

    def _coded_parts(self) -> list[str]:
        """What a line says of a step of a coded job."""
        parts = [f"step {self.step}" if self.step is not None else "no step"]
        parts.append("exact" if self.exact else f"not exact (residual {self.residual:.3g})")
        if self.late:
            parts.append(f"did not wait for {ranks_text(self.late)}")
        if self.unused:
            parts.append(f"did not need {ranks_text(self.unused)}")
        if self.redundant_bytes:
            parts.append(f"{size_text(self.redundant_bytes)} redundant")
        return parts


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0-2 5", "no rank"."""
    if not ranks:
        return "no rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return "ranks " + " ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _plain(value: object) -> object:
    """A value of a receipt in types that json.dumps takes."""
    if isinstance(value, PeerReceipt):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, StrEnum) else value


def _peer_line(peer: PeerReceipt) -> str:
    stages = [
        f"{size_text(missing)} of {size_text(expected)} of stage {stage}"
        for stage, (missing, expected) in enumerate(zip(peer.missing_bytes, peer.expected_bytes, strict=True), 1)
        if missing
    ]
    last = "never heard" if peer.last_s is None else f"last byte at {peer.last_s * 1e3:.3f} ms"
    missing_text = " and ".join(stages) if stages else "0 B"
    return f"  host {peer.host} ({ranks_text(peer.ranks)}): {missing_text} missing, {peer.why}, {last}"


def size_text(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
