# SPDX-License-Identifier: Apache-2.0
"""`ultima status`: what the daemon on this host is, whom it talks to and how its jobs fare."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli import partial_status
from ultima.cli.common import AsJson, Socket, print_json, say, socket_named
from ultima.cli.job_view import outside_lines
from ultima.cli.width import columns, wrapped

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console
    from rich.table import Table

    from ultima.v1 import admin_pb2, partial_pb2, types_pb2


def status(
    as_json: AsJson = False,
    job: Annotated[str, typer.Option(help="Show one job only.")] = "",
    everywhere: Annotated[
        bool, typer.Option("--all", help="Show all hosts of the jobs here, as each sees them.")
    ] = False,
    socket: Socket = None,
) -> None:
    """Exit status 1 with --all if some host did not answer."""
    from ultima.admin.calls import get_status

    if everywhere:
        show_all(socket_named(socket), job, as_json)
        return
    answer = get_status(socket_named(socket), job)
    if as_json:
        print_json(to_dict(answer))
        return
    from rich.console import Console

    show(Console(width=columns()), answer)


def show_all(socket: str, job: str, as_json: bool) -> None:
    """The view of the cluster. Raises typer.Exit if it is not whole."""
    from ultima.admin.operate import get_cluster
    from ultima.cli import cluster

    found = cluster.facts(get_cluster(socket, job))
    if as_json:
        print_json(found)
    else:
        for line in cluster.lines(found):
            say(line)
    if not all(host["answered"] for host in found["hosts"]):
        raise typer.Exit(1)


def to_dict(message: Message) -> dict[str, Any]:
    """Every field under its own name, set or not.

    Integers stay integers, but a fixed64 names something and is 16 hex digits: JSON readers round integers that large.
    Enums become words: HOST_STATE_UP is "up". Options of a job are what `ultima set` takes.
    """
    return {field.name: _plain(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {key: value[key] for key in sorted(value)}
    if field.is_repeated:
        return [_one(field, item) for item in value]
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.full_name == "ultima.v1.JobOptions":
        from ultima.settings.options import words

        return words(value)
    if field.message_type is not None:
        return to_dict(value)
    if field.enum_type is not None:
        return _word(field.enum_type, value)
    return f"{value:016x}" if field.type == field.TYPE_FIXED64 else value


def _word(kind: Any, number: int) -> str | int:
    """HOST_STATE_UP of HostState is "up"; a number that this client does not know stays a number."""
    known = kind.values_by_number.get(number)
    if known is None:
        return number
    prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in kind.name).lstrip("_") + "_"
    return str(known.name).removeprefix(prefix).lower()


def show(console: Console, answer: admin_pb2.GetStatusResponse) -> None:
    """For people: the daemon in a few lines, then a table of jobs and one of their hosts."""
    engine = answer.engine
    offloads = [name for name, on in (("GSO", engine.gso), ("GRO", engine.gro)) if on]
    _say(console, f"ultimad {answer.version}, pid {answer.pid}, up {duration(answer.uptime_ms / 1e3)}")
    _say(
        console,
        f"peers on {answer.address}: gRPC {answer.grpc_port}, {ports_text(engine)}"
        + (", NOT authenticated" if answer.insecure else "")
        if answer.grpc_port
        else "no peers: it serves this host alone",
    )
    for line in security_lines(answer.security):
        _say(console, line)
    _say(
        console,
        f"packets of {engine.packet_bytes} B, {' and '.join(offloads) or 'no offloads'}, {engine.simd}, "
        f"socket buffers {size(engine.receive_buffer_bytes)} in, {size(engine.send_buffer_bytes)} out",
    )
    if most := answer.limits.get("engine.rate_bytes_per_s", 0):
        _say(console, f"sends {most * 8e-6:.4g} Mbit/s at most, all jobs together")
    if not answer.jobs:
        _say(console, "no jobs")
        return
    for job in answer.jobs:
        for line in job_lines(job):
            _say(console, line)
        if job.hosts:
            console.print(_host_table(job, console))
    partial = [job for job in answer.jobs if job.ranks]
    if partial:
        console.print(partial_status.table(partial))
    for job in answer.jobs:
        if job.HasField("options"):
            _say(console, f"options of {job.job}: {options_text(job.options)}")
    for job in partial:
        for line in partial_status.lines(job):
            _say(console, line)


def job_lines(job: admin_pb2.JobStatus) -> list[str]:
    """A job and how its ops ended here; a number that is 0 is left out, unless it is what one hopes for."""
    if not job.world_size:
        asked = f" with {job.world_size_asked} ranks" if job.world_size_asked else ""
        return [f"job {job.job}: it forms{asked}{', ' * bool(job.waiting_for)}{job.waiting_for}"]
    counts = [
        f"{job.ops_complete_count} complete",
        *(
            f"{count} {what}"
            for count, what in (
                (job.ops_partial_count, "partial"),
                (job.ops_insufficient_count, "with own values only"),
                (job.ops_failed_count, "failed"),
                (job.ops_diverged_count, "diverged"),
            )
            if count
        ),
    ]
    ranks = "1 rank" if job.world_size == 1 else f"{job.world_size} ranks"
    times = f"p50 {job.op_p50_us / 1e3:.2f} ms, p99 {job.op_p99_us / 1e3:.2f} ms"
    return [
        f"job {job.job}: {ranks}, next op {job.next_op_seq}, host {job.host_index} here",
        f"  ops {', '.join(counts)}; missing {size(job.missing_bytes)}; {times}",
        *map(_wire_line, job.wires),
        *_round_lines(job),
        *(f"  {ailment.name}: {ailment.text}" for ailment in job.ailments),
        *(f"  {line}" for line in _way_lines(job)),
        *(f"  {line}" for line in outside_lines(job)),
        *_late_lines(job),
    ]


def _way_lines(job: admin_pb2.JobStatus) -> list[str]:
    """To whom packets do not go straight, and what this host forwards."""
    lines = []
    for row in job.hosts:
        if row.HasField("relay_host"):
            how = "straight, as both opened the way" if row.way_opened else f"by relay, host {row.relay_host}"
            lines.append(f"packets to host {row.host.index} go {how}")
    for pair in job.relayed:
        lines.append(f"forwarded from host {pair.from_host} to host {pair.to_host}: {size(pair.bytes)}")
    return lines


def _wire_line(row: partial_pb2.WireStatus) -> str:
    """What quantised ops of one form moved, and its share of what dense ops would have received."""
    share = f" ({row.received_bytes / row.value_bytes:.3f})" if row.value_bytes else ""
    received = f"received {size(row.received_bytes)} for {size(row.value_bytes)} of values{share}"
    return f"  wire {row.wire}: sent {size(row.sent_bytes)}, {received}"


def _round_lines(job: admin_pb2.JobStatus) -> list[str]:
    """Of a job whose ops are rounds of local SGD."""
    from ultima.admin.round_view import status_line

    return [f"  {status_line(job.rounds, time.time_ns())}"] if job.HasField("rounds") else []


def _late_lines(job: admin_pb2.JobStatus) -> list[str]:
    """For whom the others wait while ops stay whole."""
    from ultima.base.receipt import ranks_text

    late = next((row.host for row in job.hosts if job.late_us and row.host.index == job.late_host), None)
    if late is None:
        return []
    who = f"{late.address}:{late.grpc_port} ({ranks_text(late.ranks)})"
    times = f"{job.late_us / 1e3:.0f} ms later than the others, of {job.late_of_us / 1e3:.0f} ms that one takes"
    return [f"  straggler: {who} calls an op {times} (median)"]


def _host_table(job: admin_pb2.JobStatus, console: Console, window: bool = True) -> Table:
    """A row for each host. An address is never broken: the windows are left out where there is no room for both."""
    from rich import box
    from rich.table import Table

    from ultima.base.receipt import ranks_text

    longest = max(len(f"{row.host.address}:{row.host.grpc_port}") for row in job.hosts)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("host", overflow="fold", min_width=min(longest, console.width // 2))
    table.add_column("ranks", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("rtt", "sent", "received", "lost", *(["window"] if window else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in job.hosts:
        here = row.host.index == job.host_index
        table.add_row(
            f"{row.host.address}:{row.host.grpc_port}",
            ranks_text(row.host.ranks).removeprefix("ranks ").removeprefix("rank "),
            "here" if here else _state_text(row),
            "-" if here else rtt_text(row.srtt_us),
            size(row.sent_bytes),
            size(row.received_bytes),
            size(row.lost_bytes),
            *([size(row.window_bytes) if row.window_bytes else "-"] if window else []),
        )
    if window and console.measure(table).maximum > console.width:
        return _host_table(job, console, window=False)
    return table


def _state_text(row: admin_pb2.JobHostStatus) -> str:
    """How a host stands with this one, and what its packets did to that."""
    from ultima.v1 import types_pb2

    if row.quarantine_s:
        return f"QUARANTINED {row.quarantine_s:.0f} s"
    return str(_word(types_pb2.HostState.DESCRIPTOR, row.state))


def rtt_text(microseconds: int) -> str:
    """A round trip for people; one that was never measured is not 0."""
    return f"{microseconds} us" if microseconds else "unknown"


def security_lines(security: admin_pb2.Security) -> list[str]:
    """How the daemon and its peers know each other, and what an operator should see to."""
    if not security.node:
        return []
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(security.certificate_not_after_s))
    lines = [
        f"authenticated by {security.mode}, certificate until {until}:",
        f"  node {security.node} of {security.cluster}",
    ]
    return lines + ([f"WARNING: {security.warning}"] if security.warning else [])


def ports_text(engine: admin_pb2.EngineStatus) -> str:
    """UDP ports of all lanes: "data 29521, feedback 29522" or "data 29521 and 29523, feedback 29522 and 29524"."""
    data = " and ".join(str(lane.data_port) for lane in engine.lanes)
    feedback = " and ".join(str(lane.feedback_port) for lane in engine.lanes)
    return f"data {data}, feedback {feedback}"


def options_text(options: types_pb2.JobOptions) -> str:
    """All options in force, in words; what is of partial jobs only of those."""
    from ultima.settings.options import PARTIAL, is_partial, words

    hidden = () if is_partial(options) else PARTIAL
    return ", ".join(f"{name} {word}" for name, word in words(options).items() if name not in hidden)


def _say(console: Console, text: str) -> None:
    """A line, broken at words where the console is narrower; what follows is set in."""
    for line in wrapped(text, rest="    ", width=console.width):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def size(count: int) -> str:
    """Bytes with a binary unit, four characters of number at most."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def duration(seconds: float) -> str:
    """Seconds as people say them: 12 s, 3 min, 5 h, 8 days."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
