# SPDX-License-Identifier: Apache-2.0
"""`ultima run`: starts a training script on this host without torchrun."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ultima.base.errors import InvalidArgument
from ultima.cli.common import say
from ultima.settings.config import DEFAULT_PORT, join_address
from ultima.v1.limits import HOSTS_MAX, LOCAL_RANKS_MAX, MEET_MAX

MASTER_PORT = 29500
_MASTER = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>[0-9]{1,9}))?|(?=.*:.*:)[0-9a-fA-F:.]+"
)


class Restart(StrEnum):
    ALL = "all"
    ONE = "one"


def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments: -- python train.py ...")],
    nproc_per_node: Annotated[int, typer.Option(min=1, max=LOCAL_RANKS_MAX, help="Ranks on each host.")] = 1,
    nnodes: Annotated[int, typer.Option(min=1, max=HOSTS_MAX, help="Hosts; start this once on each.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Which of the hosts this is, from 0.")] = 0,
    master: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Address of host 0, for all others; default port 29500."),
    ] = None,
    job_secret: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The secret that hosts authenticate with: `ultima ca secret FILE`."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No authentication; only on a network of your own.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option(min=0, metavar="N", help="Start ranks again up to N times after one has failed.")
    ] = 0,
    restart: Annotated[
        Restart,
        typer.Option(
            help="Which ranks start again: all, as torch needs, or the failed one alone, which comes back into its job "
            "if it uses ultima.connect."
        ),
    ] = Restart.ALL,
    elastic: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="Hosts come and go: hosts that an op needs, and hosts that the job can have.",
        ),
    ] = None,
    meet: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT],...",
            help="With --elastic: the daemons where hosts meet, of which any may be down; default port 29520.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="JOB", help="Name of the job, as ULTIMA_JOB; the same on all hosts.")
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also keep what ranks print, in DIR/rank0.out.log, DIR/rank0.err.log, ..."),
    ] = None,
    prefix: Annotated[
        bool | None,
        typer.Option(
            "--prefix/--no-prefix",
            show_default="on a terminal, with several ranks",
            help="Put [rank 0] before each line that a rank prints.",
        ),
    ] = None,
    stdin: Annotated[
        int | None, typer.Option(metavar="RANK", help="The rank that reads standard input; else no rank does.")
    ] = None,
) -> None:
    from ultima.base.foreign import first_folders, hidden_by, intruder
    from ultima.launch.launcher import launch
    from ultima.launch.output import Wanted
    from ultima.launch.run_plan import Plan
    from ultima.settings.config import job_name

    if node_rank >= nnodes:
        raise InvalidArgument("--node-rank", node_rank, f"0 to {nnodes - 1}, as --nnodes is {nnodes}")
    if master is None and nnodes > 1:
        raise InvalidArgument("--master", master, "HOST or HOST:PORT, as --nnodes is more than 1")
    if max_restarts and nnodes > 1 and restart is Restart.ALL:
        raise InvalidArgument(
            "--max-restarts",
            max_restarts,
            f"0 with --nnodes {nnodes}, as the ranks of other hosts would not start again; `--restart one` for a "
            "program that uses ultima.connect; or give torchrun with its own --max-restarts after `--`",
        )
    least, most, where = _elastic(elastic, meet)
    if least and nnodes != 1:
        raise InvalidArgument("--nnodes", nnodes, "1 with --elastic: each host starts this by itself")
    if least and nproc_per_node > 1 and restart is Restart.ONE:
        raise InvalidArgument("--restart", "one", "all with --elastic and several ranks: those of a host go together")
    if least and master is not None:
        raise InvalidArgument("--master", master, "none with --elastic: --meet says where hosts meet")
    if name is not None:
        job_name(name, "--name")
    host, port = ("127.0.0.1", 0) if master is None else _master(master)
    plan = Plan(
        command=command,
        per_node=nproc_per_node,
        nodes=nnodes,
        node_rank=node_rank,
        master=host,
        port=port,
        insecure=insecure,
        max_restarts=max_restarts,
        alone=restart is Restart.ONE or (least > 0 and nproc_per_node == 1),
        name=name or "",
        least=least,
        most=most,
        meet=where,
    )
    wanted = Wanted(prefix, log_dir, stdin)
    environment = dict(os.environ)
    for clash in (intruder(), hidden_by(first_folders(command, environment))):
        if clash is not None:
            say(f"ultima: {clash}", err=True)
    if job_secret is not None:
        environment.pop("ULTIMA_JOB_SECRET", None)
        environment["ULTIMA_JOB_SECRET_FILE"] = str(job_secret.absolute())
    # Of this process alone: gRPC's fork handlers can abort the child that is about to become a rank.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    raise typer.Exit(launch(plan, environment, lambda line: say(f"ultima: {line}", err=True), wanted))


def _elastic(elastic: str | None, meet: str | None) -> tuple[int, int, str]:
    """The least and the most hosts, and where hosts meet as "host:port"; zeros and nothing without --elastic."""
    if elastic is None:
        if meet is not None:
            raise InvalidArgument("--meet", meet, "none without --elastic MIN:MAX")
        return 0, 0, ""
    found = re.fullmatch(r"([0-9]{1,3}):([0-9]{1,3})", elastic)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) <= HOSTS_MAX:
        raise InvalidArgument("--elastic", elastic, f"MIN:MAX, 1 to {HOSTS_MAX}, the first not above the second")
    if meet is None:
        raise InvalidArgument("--meet", None, "HOST or HOST:PORT of the daemon where hosts meet, as --elastic is given")
    places = [join_address(*_host_port(each, "--meet", DEFAULT_PORT)) for each in meet.split(",")]
    if len(places) > MEET_MAX:
        raise InvalidArgument("--meet", meet, f"up to {MEET_MAX} daemons")
    return int(found[1]), int(found[2]), ",".join(places)


def _master(text: str) -> tuple[str, int]:
    return _host_port(text, "--master", MASTER_PORT)


def _host_port(text: str, option: str, default: int) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT, [v6] or [v6]:PORT, or a bare IPv6 address."""
    found = _MASTER.fullmatch(text)
    if found is None:
        raise InvalidArgument(option, text, "HOST or HOST:PORT, or [v6]:PORT")
    port = int(found["port"] or default)
    if not 1 <= port <= 65535:
        raise InvalidArgument(option, text, "a port from 1 to 65535")
    return found["v6"] or found["host"] or text, port
