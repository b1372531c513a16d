# SPDX-License-Identifier: Apache-2.0
"""From the engine's account of an op to a Receipt. It came through shared memory, or as an OpReceipt of admin.proto.

Both have the same field names. Nothing here needs the extension, so `ultima explain` runs without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ultima.base.receipt import GIFTS, STAGE_ENDS, STATUSES, TROUBLES, WHYS, Host, PeerReceipt, Receipt, Status, Trouble
from ultima.base.words import POLICY_BY_CODE, wire_words
from ultima.v1.job_options import ETA

if TYPE_CHECKING:
    from ultima.v1.records_pb2 import OpReceipt

Word = TypeVar("Word")
NEVER_US = 2**32 - 1


def status_of(number: int) -> Status:
    """The status of a result; what has none failed."""
    return (STATUSES[number] if number < len(STATUSES) else None) or Status.FAILED


def is_whole(raw: OpReceipt) -> bool:
    """Whether an OpReceipt has all that decode_receipt reads: a row for each of its hosts, and both stages in each."""
    parts = (part for row in raw.peer for part in (row.expected, row.missing))
    stages = (raw.stage_end, raw.stage_ns, raw.t_c_us, *parts)
    return len(raw.peer) == raw.hosts and all(len(values) == 2 for values in stages)


def decode_receipt(raw: Any, hosts: Sequence[Host], rank: int, world_size: int) -> Receipt:
    """The Receipt of `rank` from a `ut_receipt *` or an OpReceipt: host masks become ranks, and ns become seconds."""
    status = status_of(raw.status)
    in_view = len(_ranks_of(hosts, raw.members))
    if in_view and (not world_size or status is Status.COMPLETE):
        world_size = in_view  # where hosts come and go, an op has the ranks of its view
    world_size = world_size or sum(len(host.ranks) for host in hosts)
    rows = [raw.peer[index] for index in range(min(raw.hosts, len(hosts)))]
    full, some = raw.full_mask, raw.any_mask
    policy = POLICY_BY_CODE.get(raw.policy, "none")
    contributors: list[int] = []
    partly: list[int] = []
    if policy != "none":
        contributors, partly = _gift_ranks(hosts, rows, full, some)
        if status is Status.INSUFFICIENT and not raw.included:
            contributors = [rank]  # no op came: its own value
    elif status is Status.COMPLETE:
        contributors = [other for host in hosts if full >> host.index & 1 for other in host.ranks]
        contributors.sort()
    else:
        for host, row in zip(hosts, rows, strict=False):
            bit = 1 << host.index
            if not (full | some) & bit:
                continue
            whole = host.ranks if row.weight >= len(host.ranks) else ()
            inside = _places(host, row.fresh) or whole
            if full & bit and inside:
                contributors += inside
            elif full & bit:
                # A host that did not tell which of its ranks are in its sum; but we know of ourselves.
                contributors += [rank] if rank in host.ranks else []
                partly += [other for other in host.ranks if other != rank]
            else:
                partly += inside or host.ranks
        contributors.sort()
        partly.sort()
    return Receipt(
        # generated: Receipt (schema/)
        op_seq=raw.op_seq,
        status=status,
        world_size=world_size,
        contributors=tuple(contributors),
        partly=tuple(partly),
        weight_min=raw.weight_min,
        peers=tuple(_peer(host, row, policy) for host, row in zip(hosts, rows, strict=False)),
        culprit=_culprit(hosts[raw.culprit], rows[raw.culprit], raw.trouble) if raw.culprit < len(rows) else (),
        stage_ends=(_one_of(STAGE_ENDS, raw.stage_end[0]), _one_of(STAGE_ENDS, raw.stage_end[1])),
        stage_s=(raw.stage_ns[0] * 1e-9, raw.stage_ns[1] * 1e-9),
        elapsed_s=raw.elapsed_ns * 1e-9,
        bytes_expected=raw.bytes_expected,
        bytes_used=raw.bytes_used,
        bytes_missing=raw.bytes_missing,
        bytes_repaired=raw.bytes_repaired,
        bytes_duplicate=raw.bytes_duplicate,
        nonfinite=raw.nonfinite,
        drops_host=raw.drops_host,
        trouble=_one_of(TROUBLES, raw.trouble),
        digest=raw.digest,
        agreed_op=agreed_op(raw.op_seq, raw.agreed_seq),
        differ=_ranks_of(hosts, raw.differ_mask),
        owners=_ranks_of(hosts, raw.owners),
        view=raw.view,
        members=_ranks_of(hosts, raw.members),
        hadamard=bool(raw.hadamard),
        incast=raw.incast,
        t_b_s=raw.t_b_us * 1e-6 or None,
        t_c_s=(raw.t_c_us[0] * 1e-6 or None, raw.t_c_us[1] * 1e-6 or None),
        deadline_s=raw.deadline_ns * 1e-9 or None,
        policy=policy,
        included=raw.included,
        initiator=hosts[raw.initiator].ranks if policy != "none" and raw.initiator < len(hosts) else (),
        gift=_one_of(GIFTS, raw.slot) if policy != "none" and hasattr(raw, "slot") else None,
        kept=bool(getattr(raw, "kept", 0)),
        waited_s=raw.waited_ns * 1e-9,
        eta=(raw.eta or ETA) if policy not in ("none", "coded") else 0,
        step=raw.step if policy == "coded" and raw.exact else None,
        exact=raw.exact == 1 if policy == "coded" else None,
        unused=_ranks_of(hosts, raw.unused_mask),
        late=_ranks_of(hosts, raw.late_mask),
        redundant_bytes=raw.bytes_redundant,
        residual=math.sqrt(raw.residual_squared) if raw.residual_squared >= 0 else 0.0,
        wire_sent=raw.wire_sent,
        wire_received=raw.wire_received,
        values=raw.values,
        lacks=bool(raw.lacks),
        portions=max(1, raw.portion >> 4),
        weight_due=sum(row.share for row in rows),
        weight_in=sum(row.share for host, row in enumerate(rows) if full >> host & 1),
        wire=wire_words(raw.wire),
        nonfinite_given=raw.nonfinite_given,
        error_given=math.sqrt(raw.error_given_squared) if raw.error_given_squared >= 0 else 0.0,
        error_answer=math.sqrt(raw.error_answer_squared) if raw.error_answer_squared >= 0 else 0.0,
        by_relay=_ranks_of(hosts, raw.relayed_mask),
        relays=_ranks_of(hosts, raw.relays_mask),
        # generated: end
    )


def _ranks_of(hosts: Sequence[Host], mask: int) -> tuple[int, ...]:
    return tuple(sorted(rank for host in hosts if mask >> host.index & 1 for rank in host.ranks))


def _gift_ranks(hosts: Sequence[Host], rows: Sequence[Any], full: int, some: int) -> tuple[list[int], list[int]]:
    """In a partial job: ranks in every element, and those in some only. A host says which of its ranks gave."""
    contributors: list[int] = []
    partly: list[int] = []
    for host, row in zip(hosts, rows, strict=False):
        gave = _places(host, row.fresh | row.stale)
        if full >> host.index & 1:
            contributors += gave
        elif some >> host.index & 1:
            partly += gave
    return sorted(contributors), sorted(partly)


def _culprit(host: Host, row: Any, trouble: int) -> tuple[int, ...]:
    """Of the host to blame the ranks that are, where it is known that not all of them are."""
    word = _one_of(TROUBLES, trouble)
    blamed = row.gone if word is Trouble.GONE else row.late if word is Trouble.SENDER else 0
    return _places(host, blamed) or host.ranks


def _places(host: Host, mask: int) -> tuple[int, ...]:
    """The ranks of a host that a mask names, a bit for each place among them."""
    return tuple(rank for place, rank in enumerate(host.ranks) if mask >> place & 1)


def agreed_op(op_seq: int, low: int) -> int | None:
    """The op near |op_seq| with these low 32 bits; its own stand for none."""
    distance = (low - op_seq) % 2**32
    if distance == 0:
        return None
    return int(op_seq + (distance - 2**32 if distance >= 2**31 else distance))


def _peer(host: Host, row: Any, policy: str) -> PeerReceipt:
    return PeerReceipt(
        # generated: PeerReceipt (schema/)
        host=host.index,
        ranks=host.ranks,
        expected_bytes=(row.expected[0], row.expected[1]),
        missing_bytes=(row.missing[0], row.missing[1]),
        weight=row.weight,
        why=_one_of(WHYS, row.why),
        last_s=row.last_us * 1e-6 if row.last_us else None,
        trouble=_one_of(TROUBLES, row.trouble),
        first_s=row.first_us * 1e-6 if row.first_us else None,
        opened_s=row.opened_us * 1e-6 if row.opened_us != NEVER_US else None,
        quiet_s=row.quiet_us * 1e-6,
        delay_s=row.delay_us * 1e-6,
        repaired_bytes=row.repaired,
        lost_packets=row.lost,
        drops=row.drops,
        fresh=_places(host, row.fresh),
        stale=_places(host, row.stale),
        oldest_step=row.oldest_step if policy != "none" and row.fresh | row.stale else None,
        gone=_places(host, row.gone),
        late=_places(host, row.late),
        weight_given=row.share,
        # generated: end
    )


def _one_of(words: Sequence[Word], number: int) -> Word:
    """A number that this release does not know reads as the first word, "nothing special"."""
    return words[number] if number < len(words) else words[0]
