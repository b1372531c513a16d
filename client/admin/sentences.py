# SPDX-License-Identifier: Apache-2.0
"""A receipt in plain English: what went into the result, what did not and why, and who is to blame.

Pure text from a `Receipt`; `ultima explain` prints it for ops that the daemon remembers, and a program may for its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ultima.base.receipt import (
    Host,
    PeerReceipt,
    Receipt,
    StageEnd,
    Status,
    Trouble,
    Why,
    ranks_text,
    size_text,
)

SLOW = 3  # times what is usual; t_B, which 19 of 20 stages stay below, is often twice that

_STATUS = {
    Status.COMPLETE: "complete: every element holds every rank",
    Status.PARTIAL: "partial: usable, but not every rank is in every element",
    Status.INSUFFICIENT: "insufficient: the result holds nothing of any other {}, it is this {}'s own value",
    Status.FAILED: "failed: there is no result",
}
_STATUS_WITH_POLICY = _STATUS | {
    Status.COMPLETE: "complete: every element holds all that was given for it",
    Status.PARTIAL: "partial: usable, but not all that was given for it is in every element",
}
_STATUS_CODED = _STATUS | {
    Status.COMPLETE: "exact: every element is the sum over all data",
    Status.PARTIAL: "an estimate: some part of the data is missing from some element",
}
_ENDS = {
    StageEnd.NONE: "did not end",
    StageEnd.COMPLETE: "ended complete",
    StageEnd.DEADLINE: "was ended by its time limit",
    StageEnd.ABSENT: "ended because only data of hosts that are gone was missing",
    StageEnd.EARLY: "was ended early: nearly all was there, and the rest was overdue",
}
_WHYS = {
    Why.NOTHING: "for a reason that is not known",
    Why.ABSENT: "because the host is gone",
    Why.SILENT: "because nothing arrived",
    Why.LOST: "because it did not arrive in time",
    Why.CLOSED: "because the host went on without sending it",
    Why.VIEW: "because the host ran this op under another view of the job",
}


def explain(receipt: Receipt, hosts: Sequence[Host], here: int) -> list[str]:
    """Lines of text. |hosts| of the job by index; |here| is the host that made the receipt."""
    with_policy = receipt.policy != "none"
    coded = receipt.policy == "coded"
    status = (_STATUS_CODED if coded else _STATUS_WITH_POLICY if with_policy else _STATUS)[receipt.status]
    status = status.format(*(("host" if len(hosts) > 1 else "rank",) * 2))
    lines = [
        f"Op {receipt.op_seq}, as host {here} saw it, is {status}. It took {_ms(receipt.elapsed_s)} "
        f"from {'its start' if with_policy else 'the first call'} on this host{_deadline(receipt.deadline_s)}."
    ]
    if with_policy:
        lines += [_start(receipt, hosts), _gifts(receipt)]
    if coded:
        lines.append(_code(receipt))
    if receipt.status is not Status.FAILED and not (with_policy and receipt.complete and not receipt.nonfinite):
        lines.append(_contents(receipt))
    if 0 < len(receipt.owners) < receipt.world_size:
        lines.append(
            f"Only {ranks_text(receipt.owners)} summed shards: the other hosts were gone when the bucket was cut."
        )
    if receipt.bytes_expected:
        lines += [f"Stage {i + 1} ({name}) {_stage(receipt, i)}" for i, name in enumerate(("reduce", "broadcast"))]
    if receipt.bytes_missing:
        lines.append(
            f"Missing: {size_text(receipt.bytes_missing)} of {size_text(receipt.bytes_expected)} "
            f"({100 * receipt.loss:.3g} %)."
        )
        lines += [_missing(peer) for peer in receipt.peers if any(peer.missing_bytes)]
    if receipt.by_relay:
        who = _hosts_of(receipt.relays, hosts)
        lines.append(f"Packets to {ranks_text(receipt.by_relay)} went by relay: {who} forwarded them.")
    lines.append(_blame(receipt, hosts, here))
    lines += _repairs(receipt)
    if receipt.status is not Status.FAILED:
        lines.append(f"The digest of this result is {receipt.digest:016x}.")
    lines.append(_agreement(receipt))
    return lines


def _hosts_of(ranks: Sequence[int], hosts: Sequence[Host]) -> str:
    """The hosts of some ranks, with their addresses."""
    told = [f"host {host.index} at {host.address}" for host in hosts if set(host.ranks) & set(ranks)]
    return ", ".join(told) or "a third host"


def _start(receipt: Receipt, hosts: Sequence[Host]) -> str:
    """By what and by whom an op of a partial job was started, and how long that took."""
    host = next((host for host in hosts if receipt.initiator and host.ranks == receipt.initiator), None)
    if host is not None:
        who = f"host {host.index} at {host.address} started it for {ranks_text(host.ranks)}"
    elif receipt.policy == "full":
        who = "each host started it when all its ranks had given"
    else:
        who = "it is not known which host started it"
    return (
        f"By the policy {receipt.policy}, {who}. "
        f"It started {_ms(receipt.waited_s)} after this host had something to give or heard of it."
    )


def _gifts(receipt: Receipt) -> str:
    """Whose contribution an op of a partial job took."""
    included = {*receipt.fresh, *receipt.stale}
    absent = [rank for rank in range(receipt.world_size) if rank not in included]
    told = ", ".join(f"rank {rank} from its step {step} on" for rank, step in receipt.stale_steps.items())
    steps = f" ({told})" if told else ""
    return (
        f"Included: {len(included)} of {receipt.world_size} ranks. Fresh: {ranks_text(receipt.fresh)}; "
        f"stale: {ranks_text(receipt.stale)}{steps}; absent: {ranks_text(absent)}."
    )


def _code(receipt: Receipt) -> str:
    """Which step of a coded job it was, and whose contribution the sum did without."""
    late = f"{ranks_text(receipt.late)} gave nothing in time" if receipt.late else "no rank was late"
    unused = (
        f"this host did not need what {ranks_text(receipt.unused)} gave"
        if receipt.unused
        else "this host needed all that arrived"
    )
    text = f"It was step {receipt.step} of a coded job: {late}; {unused}"
    if receipt.redundant_bytes:
        text += f"; {size_text(receipt.redundant_bytes)} arrived after another rank had given the same"
    if receipt.residual:
        text += f". The least covered element is {receipt.residual:.3g} away from the sum of all parts"
    return text + "."


def _contents(receipt: Receipt) -> str:
    with_policy = receipt.policy != "none"
    if receipt.complete and not with_policy:
        text = (
            f"In the result: all {receipt.world_size} ranks"
            if receipt.world_size > 1
            else "In the result: the only rank"
        )
    else:
        text = f"In every element of the result: {ranks_text(receipt.contributors)}"
        if receipt.partly:
            text += f"; in some elements, or not known to be in all: {ranks_text(receipt.partly)}"
        text += "".join(f"; {ranks_text(peer.gone)} left or died" for peer in receipt.peers if peer.gone)
        text += "".join(f"; {ranks_text(peer.late)} called too late" for peer in receipt.peers if peer.late)
        if not receipt.complete:
            whole = receipt.included if with_policy else receipt.world_size
            text += f". The least covered element holds {receipt.weight_min} of {whole}"
    if receipt.nonfinite:
        text += f". {receipt.nonfinite} elements are NaN or Inf"
    return text + "."


def _stage(receipt: Receipt, stage: int) -> str:
    text = _ENDS[receipt.stage_ends[stage]]
    if receipt.stage_ends[stage] is not StageEnd.NONE:
        text += f", {_ms(receipt.stage_s[stage])} after the start"
    expected = receipt.t_c_s[stage]
    known = [f"{_ms(expected)} are usual"] if expected else []
    known += [f"19 of 20 take at most {_ms(receipt.t_b_s)}"] if receipt.t_b_s else []
    last = _last_call(receipt)
    if known and stage == 0 and last is not None and receipt.policy == "none":
        known.append(f"counted from the call of the last host, {_ms(last.opened_s or 0)} after the start")
    return text + (f" ({', '.join(known)})." if known else ".")


def _last_call(receipt: Receipt) -> PeerReceipt | None:
    """The host that called the op last, if that was after this host."""
    called = [peer for peer in receipt.peers if peer.opened_s]
    return max(called, key=lambda peer: peer.opened_s or 0, default=None)


def _slow(receipt: Receipt) -> str:
    """Why an op that nobody is to blame for took far longer than such ops do; empty if it did not."""
    usual_s = sum(each for each in receipt.t_c_s if each)
    if not usual_s or receipt.elapsed_s < SLOW * usual_s:
        return ""
    text = f" It took {receipt.elapsed_s / usual_s:.0f} times as long as usual"
    last = _last_call(receipt)
    if last is not None and (last.opened_s or 0) >= receipt.elapsed_s / 2:
        return f"{text}: {ranks_text(last.ranks)} called it {_ms(last.opened_s or 0)} after this host."
    if receipt.bytes_repaired:
        return f"{text}: {size_text(receipt.bytes_repaired)} were lost first and arrived again."
    return (
        f"{text}, and the cause is not known: nothing was lost, and other hosts called in time. A rank of this host "
        "may have called late, or a host had too little CPU time."
    )


def _missing(peer: PeerReceipt) -> str:
    parts = [
        f"{size_text(missing)} of {size_text(expected)} of {what}"
        for missing, expected, what in zip(
            peer.missing_bytes, peer.expected_bytes, ("its contribution", "the shard that it reduced"), strict=True
        )
        if missing
    ]
    first = f"its data came from {_ms(peer.first_s)} on" if peer.first_s is not None else "no data arrived from it"
    last = f", the last at {_ms(peer.last_s)}" if peer.last_s is not None else ""
    return f"  host {peer.host} ({ranks_text(peer.ranks)}): {' and '.join(parts)}, {_WHYS[peer.why]}; {first}{last}."


def _blame(receipt: Receipt, hosts: Sequence[Host], here: int) -> str:
    host = next((host for host in hosts if set(receipt.culprit) <= set(host.ranks)), None) if receipt.culprit else None
    if host is None:
        return "Nobody is to blame." + (_slow(receipt) if receipt.complete else "")
    peer = next((peer for peer in receipt.peers if peer.host == host.index), None)
    who = f"host {host.index} at {host.address} ({ranks_text(receipt.culprit)})" + (
        ", this host itself" if host.index == here else ""
    )
    if receipt.trouble is Trouble.NONE or peer is None:
        return f"To blame: {who}."
    return f"To blame: {who}: {receipt.trouble}{_evidence(receipt, peer, host.index == here)}."


def _evidence(receipt: Receipt, peer: PeerReceipt, itself: bool) -> str:
    """What made this kind of trouble the likeliest (transport_c/core/account/culprit.h)."""
    if receipt.trouble is Trouble.UDP:
        return (
            "; UDP between it and others does not get through, though its daemon answers; `ultima doctor` names ports"
        )
    if receipt.trouble is Trouble.GONE and peer.gone and peer.gone != peer.ranks:
        return f"; {ranks_text(peer.gone)} left or died"
    if receipt.trouble is Trouble.SENDER and peer.late:
        return f"; the host did not wait for {'its call' if len(peer.late) == 1 else 'their calls'}"
    if receipt.trouble is Trouble.GONE:
        return "; it is known to be gone, or nothing was heard from it during the op"
    if itself:
        return {
            Trouble.SENDER: "; all others had waited long when it called the op",
            Trouble.RECEIVER: f"; its kernel dropped {receipt.drops_host} datagrams that had arrived",
        }.get(receipt.trouble, "; nearly all other hosts look slow from here, but not from elsewhere")
    if receipt.trouble is Trouble.RECEIVER:
        return f"; its kernel dropped {peer.drops} datagrams that had arrived, {peer.lost_packets} of them were ours"
    if receipt.trouble is Trouble.SENDER:
        if peer.opened_s is None:
            return "; it never called the op, though its daemon answers"
        if peer.opened_s >= peer.quiet_s:
            return f"; it called the op {_ms(peer.opened_s)} after this host"
        return f"; it sent nothing for {_ms(peer.quiet_s)}, and no packet was lost in that time"
    return (
        f"; it sent in time, but {size_text(peer.repaired_bytes)} from it and {peer.lost_packets} packets to it "
        f"had to be sent again, and its slowest packet took {_ms(peer.delay_s)} longer than its fastest"
    )


def _repairs(receipt: Receipt) -> list[str]:
    lines = []
    if receipt.values:
        sent, came = size_text(receipt.wire_sent), size_text(receipt.wire_received)
        lines.append(f"Sparse: this host gave {receipt.values} values; {sent} were sent for the sum, and {came} came.")
        if receipt.error_answer:
            lines.append(
                f"It came back as int8: rounding took about {receipt.error_answer:.3g} from each element of it."
            )
    if receipt.wire:
        sent, came = size_text(receipt.wire_sent), size_text(receipt.wire_received)
        lines.append(
            f"Quantised: it travelled as {receipt.wire}; {sent} were sent, and {came} came. Rounding took about "
            f"{receipt.error_given:.3g} from an element that this host gave, and {receipt.error_answer:.3g} from one "
            "of the result."
        )
    if receipt.nonfinite_given:
        lines.append(f"This host gave {receipt.nonfinite_given} elements that are NaN or Inf.")
    if receipt.lacks:
        lines.append("Some values that this host gave are in no sum; the memory of unsent values keeps them.")
    if receipt.bytes_repaired:
        lines.append(f"Repaired: {size_text(receipt.bytes_repaired)} were lost first and arrived again in time.")
    if receipt.bytes_duplicate:
        lines.append(f"{size_text(receipt.bytes_duplicate)} arrived twice and were used once.")
    if receipt.drops_host:
        lines.append(
            f"This host's kernel dropped {receipt.drops_host} datagrams during the op: raise net.core.rmem_max."
        )
    return lines


def _agreement(receipt: Receipt) -> str:
    if receipt.agreed_op is None:
        return "No earlier op has been compared with all other hosts yet."
    if receipt.differ:
        return f"Op {receipt.agreed_op}: {ranks_text(receipt.differ)} held another result than this host."
    return f"Op {receipt.agreed_op} is the newest that was compared: all hosts held the same result."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _deadline(deadline_s: float | None) -> str:
    return f"; its deadline was {_ms(deadline_s)}" if deadline_s else ""
