# SPDX-License-Identifier: Apache-2.0
"""Worlds of more hosts than a 32-bit mask has room for, up to the core's 64."""

import pytest

from tests.sim.test_sim import built, run, told

SEEDS = 6
# Whichever test comes first builds the simulator.
pytestmark = pytest.mark.timeout(600)


def test_hosts__a_world_of_64_with_faults_holds() -> None:
    (program,) = built("sim")
    result = run(program, "--hosts", 64, "--seed", 3)
    assert result.returncode == 0, told(result)


@pytest.mark.check
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["", "--partial", "--hostile"])
@pytest.mark.parametrize("hosts", [33, 64])
def test_hosts__worlds_of_many_hosts_hold(which: str, hosts: int) -> None:
    """Losses, deaths, partial jobs and a liar among more hosts than a 32-bit mask has room for."""
    (program,) = built("sim")
    count = SEEDS // 2 if which == "--partial" and hosts == 64 else SEEDS  # half a minute each
    result = run(program, *which.split(), "--hosts", hosts, "--from", 1, "--count", count, "--jobs", 2, seconds=800)
    assert result.returncode == 0, told(result)
    assert f"{count} seeds, 0 failed, " in result.stdout
