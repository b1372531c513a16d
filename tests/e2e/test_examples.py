# SPDX-License-Identifier: Apache-2.0
"""The numpy scripts of `examples/`, one process beside each daemon: they learn, whatever starts the ops."""

import re

import pytest

from tests.e2e.hosts import Hosts, new_job_name
from tests.e2e.scripts import run_example
from tests.nursery import COMMANDS


def run_all(hosts: Hosts, script: str, *arguments: str) -> list[str]:
    """What each rank printed; rank r on host r."""
    shared = {"WORLD_SIZE": str(len(hosts)), "ULTIMA_JOB": new_job_name(), "ULTIMA_RENDEZVOUS": hosts[0].rendezvous}
    return run_example(
        script, COMMANDS, [(host, arguments, shared | {"RANK": str(rank)}) for rank, host in enumerate(hosts)]
    )


def error_of(said: str) -> float:
    found = re.search(r"error ([0-9.]+)", said)
    assert found is not None, said
    return float(found[1])


def test_average(four: Hosts) -> None:
    said = run_all(four[:2], "average")
    for rank, text in enumerate(said):
        assert text.startswith(f"rank {rank} of 2: mean 0.50; op 0: COMPLETE"), said


@pytest.mark.parametrize(
    "policy,fewest,most", [("none", 3, 3), ("majority", 1, 3), pytest.param("quorum", 2, 3, marks=pytest.mark.check)]
)
def test_eager_sgd(four: Hosts, policy: str, fewest: float, most: float) -> None:
    said = run_all(four[:3], "eager_sgd", "--policy", policy, "--steps", "60", "--slow", "0.02")[0]
    assert said.startswith(f"{policy}: 60 steps") and error_of(said) < 0.1
    ranks = re.search(r"^([0-9.]+) of 3 ranks", said, re.MULTILINE)
    assert ranks is not None and fewest <= float(ranks[1]) <= most


@pytest.mark.parametrize("policy", [pytest.param("seeded", marks=pytest.mark.check), "probe"])
def test_rna(four: Hosts, policy: str) -> None:
    said = run_all(four[:3], "rna", "--policy", policy, "--seconds", "2")
    assert all(error_of(each) < 0.5 for each in said), said
    assert len({error_of(each) for each in said}) == 1, "levelled in the end"
    steps = [int(each.split(": ")[1].split(" steps")[0]) for each in said]
    assert steps[0] < min(steps[1:]), "nobody waits for rank 0"
