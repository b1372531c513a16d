# SPDX-License-Identifier: Apache-2.0
"""What to run on this host, and the variables of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIXED_WORLD = frozenset(
    "RANK WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT ULTIMA_RENDEZVOUS ULTIMA_RANK_ADDRESSES".split()
)
"""Variables that say which ranks there are: a job whose hosts come and go is not told them."""


@dataclass(frozen=True)
class Plan:
    """What to run on this host. |nodes| hosts have |per_node| ranks each; this one is |node_rank|, counted from 0."""

    command: Sequence[str]
    per_node: int = 1
    nodes: int = 1
    node_rank: int = 0
    master: str = "127.0.0.1"
    """Address of node 0, which the others reach."""
    port: int = 29500
    """Where rank 0 listens for torch's store; 0 for one that is free, where all ranks are on this host."""
    insecure: bool = False
    """Whether a private daemon may serve other hosts that it does not know; else they need a job secret."""
    max_restarts: int = 0
    """How many times ranks of this host are started again after one of them has failed."""
    alone: bool = False
    """Start again the rank alone that has failed; else all, as torch's process groups need. Those of other hosts do not
    hear of it, so a run of several hosts starts ranks alone."""
    name: str = ""
    """The job's; empty: what the environment says, else a name made of |master| and |port|, or of |meet|."""
    least: int = 0
    """Above 0: hosts come and go. Hosts that an op needs."""
    most: int = 0
    """Hosts that such a job can have."""
    meet: str = ""
    """Where such hosts meet: "host:port" of the daemons of some of them, with commas between."""

    @property
    def first_rank(self) -> int:
        """The number in the job of the first rank on this host."""
        return self.node_rank * self.per_node

    @property
    def elastic(self) -> bool:
        """Whether hosts come and go."""
        return self.least > 0

    @property
    def meets(self) -> list[tuple[str, str]]:
        """Host and port of each daemon where such hosts meet."""
        found = [each.rpartition(":") for each in self.meet.split(",")]
        return [(host.strip("[]"), port) for host, _, port in found]

    @property
    def towards(self) -> str:
        """A host that the daemons of other hosts run on, or by whose side they do; empty for a run of one host."""
        if self.elastic:
            return self.meets[0][0]
        return self.master if self.nodes > 1 else ""


def rank_environment(
    plan: Plan, local: int, socket: str, environment: Mapping[str, str], restart: int = 0
) -> dict[str, str]:
    """All variables of the rank that is |local| on this host: those of torchrun that scripts read, and the daemon's.

    |restart|: how many restarts there were before, 0 at the first start."""
    world = plan.nodes * plan.per_node
    variables = {
        **environment,
        "RANK": str(plan.first_rank + local),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(plan.per_node),
        "GROUP_RANK": str(plan.node_rank),
        "MASTER_ADDR": plan.master,
        "MASTER_PORT": str(plan.port),
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
        "ULTIMA_SOCKET": socket,
    }
    if plan.name:
        variables["ULTIMA_JOB"] = plan.name
    if plan.elastic:
        # Who is in, and as which rank, the job says while it runs.
        variables = {name: value for name, value in variables.items() if name not in FIXED_WORLD}
        variables |= {"ULTIMA_WORLD": "elastic", "ULTIMA_LEAST": str(plan.least), "ULTIMA_MOST": str(plan.most)}
        variables |= {"ULTIMA_LOCAL_WORLD_SIZE": str(plan.per_node), "ULTIMA_LOCAL_RANK": str(local)}
        variables["ULTIMA_MEET"] = plan.meet
        variables.setdefault("ULTIMA_JOB", f"elastic-{plan.meet}")
    # Else each try of torch's store to reach a wrong --master prints twenty frames of C++; the exception says it all.
    variables.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    if plan.per_node > 1:
        variables.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks would take each other's cores
    return variables
