# SPDX-License-Identifier: Apache-2.0
"""The part of `ultima status` that is about partial jobs: by what their ops start, and who is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from ultima.v1 import admin_pb2


def lines(job: admin_pb2.JobStatus) -> list[str]:
    """What holds, what came of it in the newest ops, and the straggler, a line each."""
    from ultima.settings.options import policy_text
    from ultima.v1 import types_pb2

    text = f"policy of {job.job}: {policy_text(job.options, job.world_size)}"
    if job.options_from_op_seq > job.next_op_seq:
        text += f", from op {job.options_from_op_seq} on"
    if job.options.policy == types_pb2.POLICY_PROBE and job.controller_host >= 0:
        text += f", controlled by host {job.controller_host}"
    if not job.partial_ops:
        return [f"{text}; no op has ended yet"]
    text += (
        f"; in the last {job.partial_ops} ops {job.included_mean:.3g} of {job.world_size} ranks, started "
        f"{job.waited_p50_us / 1e3:.2f} ms after this host was ready (median)"
    )
    return [text, *_coded(job), *_probes(job), *_straggler(job)]


def _coded(job: admin_pb2.JobStatus) -> list[str]:
    """Of a coded job: whether the sums were exact, and what was done without."""
    from ultima.base.receipt import size_text

    if not job.HasField("coded"):
        return []
    told = job.coded
    text = f"{told.exact_count} of {job.partial_ops} exact"
    if told.residual_max:
        text += f", the others at most {told.residual_max:.3g} from it (residual)"
    text += f"; {told.late_count} did not wait for some rank, {told.unused_count} did not need what some rank gave"
    if told.redundant_bytes:
        came = told.used_bytes + told.redundant_bytes
        text += f"; {size_text(told.redundant_bytes)} redundant, {100 * told.redundant_bytes / came:.3g} % of what came"
    return [f"steps of {job.job}: {text}"]


def _probes(job: admin_pb2.JobStatus) -> list[str]:
    """Of the daemon that is asked, if it is or was the job's controller."""
    probes = job.probes
    if not probes.decided_count:
        return []
    lost = f", {probes.gone_count} of them gone" if probes.gone_count else ""
    return [
        f"controller of {job.job}: this host asked {probes.sent_count} ranks{lost} and found the initiators of "
        f"{probes.decided_count} ops, each within {probes.decision_p50_us / 1e3:.2f} ms of its turn (median)"
    ]


def _straggler(job: admin_pb2.JobStatus) -> list[str]:
    from statistics import median

    slow = next((row for row in job.ranks if row.rank == job.straggler_rank), None)
    if slow is None:
        return []
    middle = median(row.fresh_count + row.stale_count for row in job.ranks)
    in_time = median(row.fresh_count for row in job.ranks)
    included, fresh = slow.fresh_count + slow.stale_count, slow.fresh_count
    if 2 * included >= middle and 2 * fresh >= in_time:
        return [f"straggler of {job.job}: rank {slow.rank}, for which all others wait most of the time in most ops"]
    return [
        f"straggler of {job.job}: rank {slow.rank}, in {share(included, job)} of the last {job.partial_ops} ops and in "
        f"time in {share(fresh, job)}; the median rank in {share(middle, job)} and {share(in_time, job)}"
    ]


def table(jobs: Sequence[admin_pb2.JobStatus]) -> Table:
    """A row for each rank of each job."""
    from rich import box
    from rich.table import Table

    ret = Table(title="Ranks", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    ret.add_column("job", overflow="fold")
    names = ["rank", "included", "fresh", "stale", "absent", "started by its host", "last in op"]
    coded = any(job.HasField("coded") for job in jobs)
    for name in [*names, *(["late", "unused"] if coded else [])]:
        ret.add_column(name, justify="right", no_wrap=True)
    for job in jobs:
        for row in job.ranks:
            ret.add_row(
                job.job,
                str(row.rank),
                share(row.fresh_count + row.stale_count, job),
                str(row.fresh_count),
                str(row.stale_count),
                str(row.null_count),
                str(row.initiated_count),
                str(row.last_op_seq) if row.last_op_seq >= 0 else "-",
                *([str(row.late_count), str(row.unused_count)] if coded else []),
            )
    return ret


def share(count: float, job: admin_pb2.JobStatus) -> str:
    """Of the newest ops, in percent."""
    return f"{100 * count / job.partial_ops:.0f} %" if job.partial_ops else "-"
