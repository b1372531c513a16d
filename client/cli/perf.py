# SPDX-License-Identifier: Apache-2.0
"""`ultima perf`: the time of all-reduce, asked and told as nccl-tests does it.

Start one process per rank, with the variables that torchrun sets and ULTIMA_SOCKET where a host's daemon is elsewhere
than by default; `ultima run --nproc-per-node 2 -- ultima perf` does so. Rank 0 prints the table and writes the JSON.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.base.errors import InvalidArgument, UltimaError
from ultima.cli.common import say
from ultima.cli.files import new_file
from ultima.v1.limits import BUCKET_BYTES_MAX

if TYPE_CHECKING:
    import ultima
    from ultima import Job
    from ultima.cli.perf_bench import Plan

SIZE_ALLOWED = f"bytes from 1 to {BUCKET_BYTES_MAX}: a number, with K, M or G for 1024, 1024^2 or 1024^3"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


ALONE = (
    "ultima: RANK and WORLD_SIZE are not set, so this measures one rank by itself, without a network; "
    "`ultima run --nproc-per-node 2 -- ultima perf` starts two, and --nnodes more hosts"
)


class Mode(StrEnum):
    BOUNDED = "bounded"
    BEST_EFFORT = "best_effort"
    RELIABLE = "reliable"


class WrongValues(UltimaError):
    """Some result was not what it had to be."""


def perf(
    begin: Annotated[str, typer.Option("-b", "--minbytes", help="Smallest size: 64K, 25M, 25000000.")] = "32M",
    end: Annotated[
        str | None, typer.Option("-e", "--maxbytes", help="Largest size; without it only the smallest.")
    ] = None,
    step: Annotated[str, typer.Option("-i", "--stepbytes", help="Bytes from one size to the next.")] = "1M",
    factor: Annotated[int, typer.Option("-f", "--stepfactor", min=1, help="Or the factor; 1 means to add -i.")] = 1,
    iterations: Annotated[
        int, typer.Option("-n", "--iters", "--iterations", min=1, max=1_000_000, help="Timed ops of each size.")
    ] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", min=0, help="Ops before those.")] = 5,
    checks: Annotated[int, typer.Option("-c", "--check", min=0, help="Further ops, whose values are checked.")] = 1,
    datatype: Annotated[
        str, typer.Option("-d", "--datatype", help="float double half bfloat16 int32 int64 all")
    ] = "float",
    op: Annotated[str, typer.Option("-o", "--op", help="sum prod max min avg all")] = "sum",
    output: Annotated[Path | None, typer.Option("-J", "--output_file", help="Write JSON there, on rank 0.")] = None,
    loss_columns: Annotated[
        bool,
        typer.Option(
            "--loss-columns", help="Time ops one by one; add p50, p99, p99/p50 and loss% of the in-place half."
        ),
    ] = False,
    mode: Annotated[
        Mode, typer.Option(help="What to do about loss; min, max and prod are always reliable.")
    ] = Mode.BOUNDED,
    deadline: Annotated[str | None, typer.Option(help="Longest time of one op: 300ms, 2s, none.")] = None,
    agree: Annotated[bool, typer.Option("--agree", help="All ranks that return hold identical bytes.")] = False,
    wire: Annotated[
        str | None, typer.Option(help="Elements travel as int16, int8 or int4 (float; sum or avg): docs/quantised.md.")
    ] = None,
    answer: Annotated[str | None, typer.Option(help="And results as this, as fine as --wire or finer.")] = None,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="With --wire: what rounding takes is kept, and sent with the next op.")
    ] = False,
    algorithm: Annotated[str | None, typer.Option(help="tar, ring, bcube or ps.")] = None,
    congestion: Annotated[str | None, typer.Option(help="swift, dctcp, timely or none.")] = None,
    hadamard: Annotated[str | None, typer.Option(help="off, on or auto.")] = None,
    incast: Annotated[str | None, typer.Option(help="Hosts that one host hears at once, 1 to 15, or dynamic.")] = None,
    early_percent: Annotated[
        str | None, typer.Option(help="Share of t_C, in percent, to wait after every sender's last packets.")
    ] = None,
    t_b: Annotated[str | None, typer.Option(help="Bound of a stage: auto, off, 300ms.")] = None,
    t_c: Annotated[str | None, typer.Option(help="Expected time of a stage: auto, off, 30ms.")] = None,
    timer_start: Annotated[str | None, typer.Option(help="When t_B begins to run: rendezvous or local.")] = None,
    delay_target: Annotated[str | None, typer.Option(help="Queueing delay to aim for: auto, 200us.")] = None,
    split: Annotated[str | None, typer.Option(help="Large ops over all lanes at once: auto, never, always.")] = None,
    deterministic: Annotated[str | None, typer.Option(help="The same bits in each run: no, yes.")] = None,
) -> None:
    from ultima.cli.perf_values import OPS, SYNONYMS, TYPES

    sizes = sizes_of(begin, end, step, factor)
    types = _chosen("-d", SYNONYMS.get(datatype, datatype), tuple(TYPES))
    ops = _chosen("-o", op, OPS)
    _check_wire(wire, answer, feedback, types, ops)
    import ultima
    from ultima.base.durations import deadline_s
    from ultima.cli.perf_bench import Plan, scratch_bytes

    if deadline is not None:
        deadline_s(deadline, "--deadline")
    said = {
        "algorithm": algorithm,
        "congestion": congestion,
        "hadamard": hadamard,
        "incast": incast,
        "early_percent": early_percent,
        "t_b": t_b,
        "t_c": t_c,
        "timer_start": timer_start,
        "delay_target": delay_target,
        "split": split,
        "deterministic": deterministic,
    }
    options = options_of(said)
    if output is not None and not output.parent.is_dir():
        raise InvalidArgument("-J", str(output), "a file in an existing folder")
    plan = Plan(iterations, warmup, checks, mode.value, deadline, loss_columns, agree, wire, answer, feedback)
    largest = max(*sizes, scratch_bytes(plan))
    # Two arrays of the largest size, what the ranks tell one another, and what rounding takes.
    arena = (3 if feedback else 2) * largest + 2 * scratch_bytes(plan) + 65536
    config: dict[str, Any] = {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": sizes[0],
        "maximum_bytes": sizes[-1],
        **({"step_factor": factor} if factor > 1 else {"step_bytes": size_of("-i", step)}),
        "warmup_iters": warmup,
        "iterations": iterations,
        "aggregated_iterations": 1,
        "validation": checks,
        "graph": 0,
        "mode": mode.value,
        "deadline": deadline,
        "loss_columns": loss_columns,
        "agree": agree,
        "wire": wire,
        "answer": answer or wire,
        "feedback": feedback,
    }
    if not os.environ.get("RANK") and not os.environ.get("WORLD_SIZE"):
        say(ALONE, err=True)
    with ultima.connect(arena=arena, bucket_bytes_max=largest, options=options) as job:
        config["options"] = job.options
        config["authentication"] = _authentication()
        _measure(job, plan, sizes, types, ops, config, output)


def _measure(
    job: Job,
    plan: Plan,
    sizes: list[int],
    types: list[str],
    ops: list[str],
    config: dict[str, Any],
    output: Path | None,
) -> None:
    from ultima.cli import perf_table
    from ultima.cli.perf_bench import Bench
    from ultima.cli.perf_values import TYPES

    tell = say if job.rank == 0 else _nothing
    report = perf_table.Report(config, [_rank_facts(job, rank) for rank in range(job.world_size)])
    tell(preamble(config, report.ranks))
    tell(perf_table.header(plan.loss_columns, plan.wire is not None))
    bench = Bench(job, plan, sizes[-1])
    for op in ops:
        for type_name in types:
            for size in sizes:
                row = bench.row(size // TYPES[type_name][1], type_name, op)
                report.rows.append(row)
                tell(perf_table.line(row))
                sys.stdout.flush()
    tell(perf_table.footer(report))
    if output is not None and job.rank == 0:
        write_json(output, perf_table.to_json(report, sys.argv))
    if report.out_of_bounds():
        raise WrongValues(f"{report.out_of_bounds()} measurements held wrong values")


def _authentication() -> str:
    """How the daemon on this host knows its peers; "" if it does not say."""
    from ultima.admin.calls import get_status
    from ultima.settings.config import DEFAULT_SOCKET, socket_path

    try:
        told = get_status(socket_path(os.environ.get("ULTIMA_SOCKET") or DEFAULT_SOCKET, "ULTIMA_SOCKET"))
    except UltimaError:
        return ""
    return str(told.security.mode)


def _nothing(text: str) -> None:
    """What ranks other than 0 have to say."""


def _rank_facts(job: Job, rank: int) -> dict[str, Any]:
    """Of other ranks the host is known, not the process."""
    host = next(host for host in job.hosts if rank in host.ranks)
    here = rank == job.rank
    return {
        "rank": rank,
        "group": 0,
        "pid": os.getpid() if here else None,
        "hostname": socket.gethostname() if here else host.address,
        "device": 0,
        "device_info": f"host {host.index} at {host.address}",
    }


def preamble(config: dict[str, Any], ranks: list[dict[str, Any]]) -> str:
    """The lines over the header. Those that nccl-tests has are in its form."""
    from ultima.cli.perf_table import PROGRAM
    from ultima.v1 import installed

    by = f"{config['step_factor']}(factor)" if "step_factor" in config else f"{config['step_bytes']}(bytes)"
    kept = ", with feedback" if config.get("feedback") else ""
    lines = [
        f"# ultima version {installed.version()}",
        f"# Collective test starting: {PROGRAM}",
        f"# nThread 1 nGpus 1 minBytes {config['minimum_bytes']} maxBytes {config['maximum_bytes']} step: {by} "
        f"warmup iters: {config['warmup_iters']} iters: {config['iterations']} agg iters: 1 "
        f"validation: {config['validation']} graph: 0",
        f"# mode {config['mode']}, deadline {config['deadline'] or 'by default'}{', agree' * config['agree']}, "
        + ("each op timed from a barrier to the slowest rank" if config["loss_columns"] else "ops timed back to back"),
        *(
            [f"# elements travel as {config['wire']}, results as {config['answer']}{kept}; a dense op before each"]
            if config.get("wire")
            else []
        ),
        "# " + ", ".join(f"{name} {word}" for name, word in config["options"].items()),
        *_authentication_lines(config.get("authentication", "")),
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank['rank']:2d} Group  0 on {rank['hostname']:>10} device  0 {rank['device_info']}"
            for rank in ranks
        ),
        "#",
    ]
    return "\n".join(lines)


def _authentication_lines(mode: str) -> list[str]:
    """Of a job on one host there is nothing to say."""
    if mode == "insecure":
        return ["# peers: INSECURE, not authenticated (--insecure)"]
    return [f"# peers: authenticated by {mode}"] if mode not in ("", "alone") else []


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all: a reader never sees half a file."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        with new_file(part, mode=0o666) as file:
            file.write(f"{json.dumps(content, indent=1)}\n".encode())
        part.replace(path)
    except OSError as error:
        raise InvalidArgument("-J", str(path), f"a file that can be written ({error.strerror})") from None


def options_of(said: dict[str, str | None]) -> ultima.Options:
    """The job's options out of flags. Raises InvalidArgument naming the flag."""
    from ultima.settings.options import BY_NAME, Options

    for name, text in said.items():
        if text is not None:
            BY_NAME[name].read(text, "--" + name.replace("_", "-"))
    return Options(**said)


def sizes_of(begin: str, end: str | None, step: str, factor: int) -> list[int]:
    """All sizes from -b to -e, by factor or by step. Raises InvalidArgument."""
    first = size_of("-b", begin)
    last = first if end is None else size_of("-e", end)
    if last < first:
        raise InvalidArgument("-e", end, f"at least {first}, which is -b")
    sizes = [first]
    by = size_of("-i", step)
    while (following := sizes[-1] * factor if factor > 1 else sizes[-1] + by) <= last:
        sizes.append(following)
    return sizes


def size_of(flag: str, text: str) -> int:
    """Bytes of a size as nccl-tests writes it; a fraction such as 1.5M is allowed. Raises InvalidArgument."""
    match = re.fullmatch(r"(\d+|\d*\.\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if not 1 <= size <= BUCKET_BYTES_MAX:
        raise InvalidArgument(flag, text, SIZE_ALLOWED)
    return size


def _check_wire(wire: str | None, answer: str | None, feedback: bool, types: list[str], ops: list[str]) -> None:
    """Raises InvalidArgument."""
    from ultima.quant import FORMS

    if wire is None:
        if answer is not None:
            raise InvalidArgument("--answer", answer, "none without --wire")
        if feedback:
            raise InvalidArgument("--feedback", "given", "none without --wire")
        return
    if wire not in FORMS:
        raise InvalidArgument("--wire", wire, ", ".join(FORMS))
    finer = FORMS[: FORMS.index(wire) + 1]
    if answer is not None and answer not in finer:
        raise InvalidArgument("--answer", answer, f"as fine as --wire, or finer: {', '.join(finer)}")
    if types != ["float"]:
        raise InvalidArgument("-d", ", ".join(types), "float with --wire")
    if not set(ops) <= {"sum", "avg"}:
        raise InvalidArgument("-o", ", ".join(ops), "sum or avg with --wire")


def _chosen(flag: str, named: str, known: tuple[str, ...]) -> list[str]:
    if named == "all":
        return list(known)
    if named not in known:
        raise InvalidArgument(flag, named, f"{', '.join(known)} or all")
    return [named]
