# SPDX-License-Identifier: Apache-2.0
"""`ultima history`: how jobs fared minute by minute, also before the daemon's last start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ultima.cli.common import AsJson, OfJob, Since, Socket, Until, print_json, say, socket_named
from ultima.cli.events import between
from ultima.cli.width import wrapped

if TYPE_CHECKING:
    from ultima.v1 import admin_pb2, records_pb2

HEAD = "          ops   whole   part   own  fail    p50 ms    p99 ms missing"
VIEWS_HEAD = "           view   from op  hosts     why"
ROWS = 60  # of a table that is asked for without a time


def history(
    since: Since = "",
    until: Until = "",
    job: OfJob = "",
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.past import get_history
    from ultima.base.instants import MINUTE_NS, clock_text
    from ultima.cli.status import to_dict

    since_ns, until_ns = between(since, until)
    answer = get_history(socket_named(socket), job, max(since_ns - MINUTE_NS + 1, 0), until_ns)
    # Minutes are asked for that began before; a change of the view has a moment.
    changes = [change for change in answer.views if change.at_ns >= since_ns]
    del answer.views[:]
    answer.views.extend(changes)
    if as_json:
        print_json(to_dict(answer))
        return
    shown = answer.minutes if since or until else answer.minutes[-ROWS:]
    if not shown:
        say("no ops ended" + (" in that time" if since or until else " since anything was recorded"))
    else:
        for text in table(shown):
            say(text)
    if len(shown) < len(answer.minutes):
        say(f"{len(answer.minutes) - len(shown)} earlier minutes are not shown; --since 7d shows all")
    told = changes if since or until else changes[-ROWS:]
    for text in views(told):
        say(text)
    if len(told) < len(changes):
        say(f"{len(changes) - len(told)} earlier views are not shown; --since 7d shows all")
    if answer.oldest_ns:
        where = "on disk" if answer.on_disk else "in memory only"
        say(f"recorded since {clock_text(answer.oldest_ns)}, {where}")


def table(minutes: Sequence[admin_pb2.JobMinute]) -> list[str]:
    """At most 80 columns; a line of its own for whoever was to blame."""
    from datetime import datetime

    from ultima.base.receipt import size_text

    lines, told = [], ""
    for row in minutes:
        day = datetime.fromtimestamp(row.start_ns / 1e9)
        head = f"{day:%Y-%m-%d}, job {row.job}"
        if head != told:
            lines += [head, HEAD]
            told = head
        counts = (row.ops_complete_count, row.ops_partial_count, row.ops_insufficient_count, row.ops_failed_count)
        whole, part, own, fail = counts
        missing = size_text(row.missing_bytes) if row.missing_bytes else "-"
        lines.append(
            f"{day:%H:%M} {sum(counts):7} {whole:7} {part:6} {own:5} {fail:5} "
            f"{row.op_p50_us / 1e3:9.2f} {row.op_p99_us / 1e3:9.2f} {missing}"
        )
        if row.culprit:
            lines.append(f"      to blame in {row.culprit_count} ops: {row.culprit}; slowest op {row.slowest_op_seq}")
    return lines


def views(changes: Sequence[records_pb2.ViewChange]) -> list[str]:
    """How the views of jobs changed, a line each, at most 80 columns where standard output is a terminal of so many."""
    from datetime import datetime

    lines, told = [], ""
    for change in changes:
        at = datetime.fromtimestamp(change.at_ns / 1e9)
        head = f"{at:%Y-%m-%d}, views of job {change.job}"
        if head != told:
            lines += [head, VIEWS_HEAD]
            told = head
        first = f"{at:%H:%M:%S} {change.number:6} {change.from_op_seq:9}  {f'{change.hosts} of {change.seats}':9} "
        lost = f" ({change.left_out} changes before are not recorded)" if change.left_out else ""
        lines += wrapped(change.why + lost, rest=" " * len(first), first=first)
    return lines
