# SPDX-License-Identifier: Apache-2.0
"""The verbs of `ultima`, in one table, and what their endings mean.

Exit status: 0 done, 1 it failed, 2 it was asked wrongly (a job, path, host, time or format that cannot be), 3 no daemon
could be reached, 130 interrupted. A failure is one sentence on standard error, never a trace. `--json` prints one
object, whose "schema" counts its form (common.py). When you add a verb: write its file, add its row here with a line
that can be typed, test it in `tests/client/cli/test_cli.py`, and name it in the README.

Verbs import what is slow (gRPC, torch) when they run, not when this table is built: `ultima version` answers at once.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Container, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from ultima.base.errors import DaemonUnavailable, InvalidArgument, UltimaError
from ultima.cli import (
    bench_cluster,
    bugreport,
    ca,
    completion,
    daemon_verbs,
    demo,
    doctor,
    drain,
    dump,
    events,
    explain,
    history,
    metrics,
    perf,
    ping,
    rows,
    run,
    set_options,
    simulate,
    status,
    top,
    version,
    web,
)
from ultima.cli.common import say
from ultima.cli.help import GROUPS, InGroups, WithExample
from ultima.v1 import installed

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_DAEMON = 3


class Verb(NamedTuple):
    name: str
    function: Callable[..., None]
    help: str
    group: str
    example: str
    context: Mapping[str, bool] = {}
    """Settings of its parser."""


# The first word that is no option starts a command, and what follows is its own.
WRAPS = {"allow_interspersed_args": False}
TRAIN, SEE, OPERATE, SET_UP = GROUPS

VERBS = (
    Verb(
        "run", run.run, "Start a training script on this host, and a daemon if none runs.", TRAIN,
        "ultima run --nproc-per-node 2 -- python train.py", WRAPS,
    ),
    Verb(
        "demo", demo.demo, "Train LeNet-5 with four daemons and four ranks on this machine.", TRAIN,
        "ultima demo --loss 1% --rate 200Mbit",
    ),
    Verb(
        "perf", perf.perf, "Time AllReduce, as nccl-tests does; one per rank.", TRAIN,
        "ultima run --nproc-per-node 2 -- ultima perf -b 64K -e 64M -f 4",
    ),
    Verb(
        "bench-cluster", bench_cluster.bench_cluster, "Time ops between every two hosts, and name the worst link.",
        TRAIN, "ultima bench-cluster 10.0.0.1 10.0.0.2 10.0.0.3",
    ),
    Verb(
        "simulate", simulate.simulate, "Predict the times of ops on a cluster of your own, in virtual time.", TRAIN,
        "ultima simulate --hosts 16 --rate 10Gbit --loss 0.1%",
    ),
    Verb(
        "status", status.status, "Show what the daemon on this host is doing, or those on all hosts of its jobs.", SEE,
        "ultima status --all",
    ),
    Verb("top", top.top, "Show jobs, peers, lanes and events, live.", SEE, "ultima top --interval 2s"),
    Verb("jobs", rows.jobs, "Show a row for each job on this host.", SEE, "ultima jobs --json"),
    Verb("peers", rows.peers, "Show a row for each other host that jobs here talk to.", SEE, "ultima peers --job bert"),
    Verb(
        "doctor", doctor.doctor, "Diagnose this host, its jobs and the links to peers, and suggest fixes.", SEE,
        "ultima doctor --peer 10.0.0.2",
    ),
    Verb(
        "ping", ping.ping, "Try the way to another host without a job: round trip, loss, MTU, clock, version.", SEE,
        "ultima ping 10.0.0.2",
    ),
    Verb(
        "explain", explain.explain, "Explain an op in plain words: its result, and which host held it up.", SEE,
        "ultima explain --job bert --at 03:12",
    ),
    Verb("events", events.events, "Show what has happened on this host.", SEE, "ultima events --since 2h --follow"),
    Verb("history", history.history, "Show a summary of each job, minute by minute.", SEE, "ultima history --since 1d"),
    Verb(
        "metrics", metrics.metrics, "Print the daemon's metrics for Prometheus, or write them to a file.", SEE,
        "ultima metrics write /var/lib/node_exporter/ultima.prom",
    ),
    Verb("web", web.web, "Print an address that opens the daemon's status page once.", SEE, "ultima web"),
    Verb(
        "dump", dump.dump, "Write a job's flight record for torchfrtrace and Perfetto.", SEE,
        "ultima dump --job bert --format chrome record",
    ),
    Verb(
        "bugreport", bugreport.bugreport, "Pack what a bug report needs into one archive.", SEE,
        "ultima bugreport report.tar.gz",
    ),
    Verb(
        "set", set_options.set_options, "Change options of a job while it runs, on all its hosts.", OPERATE,
        "ultima set bert incast=2 t_b=300ms",
    ),
    Verb(
        "config", daemon_verbs.config, "Show the daemon's options, and where each comes from.", OPERATE,
        "ultima config --origin",
    ),
    Verb(
        "log-level", daemon_verbs.log_level, "Change the daemon's log level, for a limited time if you want.", OPERATE,
        "ultima log-level debug --for 10m",
    ),
    Verb(
        "drain", drain.drain, "Stop the daemon for an upgrade; jobs go on when it is started again.", OPERATE,
        "ultima drain",
    ),
    Verb("wait", daemon_verbs.wait, "Wait until the daemon is healthy.", OPERATE, "ultima wait --timeout 30s"),
    Verb(
        "completion", completion.completion, "Print the completion script for bash, zsh or fish.", SET_UP,
        "ultima completion bash > /etc/bash_completion.d/ultima",
    ),
    Verb("version", version.version, "Show what is installed.", SET_UP, "ultima version --json"),
)  # fmt: skip


def build(words: Container[str] | None = None) -> typer.Typer:
    """The command-line application made from the table. With the words of a command line, options are read off those
    verbs alone that are among them: the others are only named, and that all takes a third of the time.
    """
    app = typer.Typer(
        name="ultima",
        cls=InGroups,
        help="Gradient averaging for training clusters on plain Ethernet, bounded in time.",
        epilog="`ultima VERB --help` explains a verb, with an example.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for verb in VERBS:
        called = ends_well(verb.function if words is None or verb.name in words else _named)
        called.ultima_group = verb.group  # type: ignore[attr-defined]
        app.command(
            verb.name, cls=WithExample, help=verb.help, epilog=verb.example, context_settings=dict(verb.context)
        )(called)
    app.add_typer(
        ca.group(ends_well if words is None or "ca" in words else lambda _: ends_well(_named)),
        name="ca",
        help="Make the certificates and secrets that daemons authenticate with.",
    )
    return app


def _named() -> None:
    """In the place of a verb that is not called."""


def _show_version(asked: bool) -> None:
    if asked:
        say(f"ultima {installed.version()}")
        raise typer.Exit


def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What `ultima` takes before a verb."""


def ends_well(function: Callable[..., None]) -> Callable[..., None]:
    """Turns what a verb raises into one sentence and an exit status."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except UltimaError as error:
            say(f"ultima: {error}", err=True)
            raise typer.Exit(exit_status(error)) from None
        except ModuleNotFoundError as error:
            if not (said := installed.missing(error, "this command")):
                raise
            say(f"ultima: {said}", err=True)
            raise typer.Exit(EXIT_FAILED) from None
        except BrokenPipeError:
            # The reader went away (`ultima status | head`): keep the interpreter from flushing into the pipe again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_FAILED) from None
        except KeyboardInterrupt:
            say("ultima: interrupted", err=True)
            raise typer.Exit(130) from None

    return run


def exit_status(error: UltimaError) -> int:
    if isinstance(error, DaemonUnavailable):
        return EXIT_NO_DAEMON
    return EXIT_USAGE if isinstance(error, InvalidArgument) else EXIT_FAILED


def main() -> None:
    """The console script. Exits with the status that the module's first lines explain."""
    words = set(sys.argv[1:])
    if completion.VARIABLE in os.environ:
        completion.prepare()
        words.update(completion.words())
    build(words)()


if __name__ == "__main__":
    main()
