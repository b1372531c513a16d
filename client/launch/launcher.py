# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of one host, and a private daemon where none runs, and sees to their end.

What torchrun does for people who have it. Each rank gets torchrun's variables. A Ctrl-C at the terminal reaches this
program alone, which passes it on. The first rank that fails ends the others, or starts ranks again where that is
wanted. Nothing is left behind: should this program be killed outright, the kernel ends the ranks and the daemon
(PR_SET_PDEATHSIG).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ultima.base.errors import DaemonUnavailable, InvalidArgument
from ultima.launch.output import Output, Wanted
from ultima.launch.private_daemon import PrivateDaemon
from ultima.launch.processes import answers, free_port
from ultima.launch.ranks import Ranks
from ultima.launch.run_plan import Plan, rank_environment
from ultima.launch.signals import Ended, Signals
from ultima.settings.config import DEFAULT_SOCKET, socket_path


def launch(plan: Plan, environment: Mapping[str, str], say: Callable[[str], None], wanted: Wanted | None = None) -> int:
    """Runs |plan| to its end and returns the exit status: 0, that of the first rank that failed for good, 128 and the
    number of a signal that ended a rank or was sent to this program.

    |environment| is what ranks get beside their own variables; ULTIMA_SOCKET in it names a daemon that runs. |say| is
    told what a person should know, a line each. |wanted|: what to do with the ranks' streams. Raises InvalidArgument,
    DaemonUnavailable and LaunchFailed.
    """
    wanted = wanted or Wanted()
    here = range(plan.first_rank, plan.first_rank + plan.per_node)
    if wanted.stdin is not None and wanted.stdin not in here:
        allowed = f"a rank of this host, {here[0]} to {here[-1]}" if here[1:] else f"{here[0]}, the rank of this host"
        raise InvalidArgument("--stdin", wanted.stdin, allowed)
    with Signals() as signals, ExitStack() as stack:
        output = Output(wanted, plan.per_node > 1, signals, say)
        try:
            daemon, found = None, _running_daemon(environment)
            if found is None:
                daemon = stack.enter_context(PrivateDaemon(plan, environment, signals))
                found = daemon.socket
                where = f" on {daemon.bind}" if daemon.bind else ""
                say(f"no daemon runs on this host: a private one serves this run{where}")
            if plan.nodes == 1 and not plan.elastic and not environment.get("ULTIMA_RENDEZVOUS"):
                # The daemon of rank 0 is the one here, whatever port it has.
                from ultima.launch.reach import daemon_reach

                environment = {**environment, "ULTIMA_RENDEZVOUS": daemon_reach(found).address}
            if output.carries(1):
                # Python keeps lines back where it writes into a pipe; the ranks' owner wants to see them.
                environment = {"PYTHONUNBUFFERED": "1", **environment}
            variables = Variables(plan, found, environment)
            ranks = stack.enter_context(Ranks(plan, signals, output, variables.of, say))
            ranks.start()
            return ranks.watch(daemon)
        except Ended as ended:
            return 128 + ended.number


class Variables:
    """The variables of the ranks at each start."""

    def __init__(self, plan: Plan, socket: str, environment: Mapping[str, str]) -> None:
        self._plan, self._socket, self._environment = plan, socket, environment
        self._port, self._port_of = plan.port or free_port(), 0

    def of(self, local: int, restart: int) -> dict[str, str]:
        """Those of the rank that is |local| here, after |restart| restarts.

        Where nobody named a port, all ranks that are started again together get one that no former rank has used.
        """
        plan = self._plan
        if restart != self._port_of and not plan.port and not plan.alone:
            self._port, self._port_of = free_port(), restart
        return rank_environment(replace(plan, port=self._port), local, self._socket, self._environment, restart)


def _running_daemon(environment: Mapping[str, str]) -> str | None:
    """Socket of the daemon of this host; None where none runs. One that was named must be there."""
    named = environment.get("ULTIMA_SOCKET")
    path = socket_path(named or DEFAULT_SOCKET, "ULTIMA_SOCKET")
    if answers(Path(path)):
        return path
    if named:
        raise DaemonUnavailable(f"no daemon answers on {path}, which ULTIMA_SOCKET names; unset it for a private one")
    return None
