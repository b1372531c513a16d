# SPDX-License-Identifier: Apache-2.0
"""Sites of several ranks: one of each takes part in rounds, and all hold the same parameters. What they do is in
site_cases.py."""

from __future__ import annotations

import pytest

from tests.e2e.hosts import running
from tests.torch.ranks import run_ranks

pytestmark = [pytest.mark.timeout(120), pytest.mark.check]


def test_site__one_rank_speaks_and_all_have_what_comes() -> None:
    """A step moves site 0 by 1.5 and site 1 by 3.5, of weights 16 and 32: together by 17/6. Fails if tokens are not
    added up, if a follower keeps its own, or if the others wait for a first rank that failed."""
    with running(2) as hosts:
        environment = {"SITE_JOB": "sites", "SITE_MEETS": hosts[0].rendezvous}
        sockets = [hosts[rank // 2].socket for rank in range(4)]
        found = run_ranks("run", 4, sockets, 90, environment, "tests.torch.site_cases")
    for rank, outcome in enumerate(found):
        assert outcome.status == 0, f"rank {rank}: {outcome.errors}"
        told = outcome.result
        step, mean = (1.5, 3.5)[rank // 2], (1.5 + 2 * 3.5) / 3
        assert told["first"] == 0.0, "the model of the first rank of all"
        expected = [step, 2 * mean, 2 * mean + step, 4 * mean, 4 * mean + step, 5 * mean]
        assert [*told["seen"], told["last"]] == pytest.approx(expected, rel=1e-6)
        if rank % 2 == 0:
            assert told["weights"] == [48.0, 48.0] and told["tokens"] == 5 * 16 * (1 + rank // 2)
            assert told["theta"] == told["state_dict"] == "given"
            assert told["failed"].startswith("Nonfinite: 'weight'")
        else:
            assert (
                "first rank of inner_group has it" in told["theta"] == told["state_dict"].replace("state_dict", "theta")
            )
            assert (
                told["failed"] == "UltimaError: the first rank of this site failed in a round: its own error says why"
            )


def test_cut_model__each_rank_averages_its_shard_with_the_same_one_of_other_sites() -> None:
    """As above, under FSDP2. Fails if a rank takes part with the whole model, with another one's shard, or with its own
    tokens alone."""
    with running(2) as hosts:
        environment = {"SITE_JOB": "cut", "SITE_MEETS": hosts[0].rendezvous}
        sockets = [hosts[rank // 2].socket for rank in range(4)]
        found = run_ranks("run", 4, sockets, 90, environment, "tests.torch.cut_cases")
    for rank, outcome in enumerate(found):
        assert outcome.status == 0, f"rank {rank}: {outcome.errors}"
        told, place = outcome.result, rank % 2
        step, mean = (1.5, 3.5)[rank // 2], (1.5 + 2 * 3.5) / 3
        assert told["first"] == 0.0, "that of site 0"
        expected = [step, 2 * mean, 2 * mean + step, 4 * mean, 4 * mean + step, 5 * mean]
        assert [*told["seen"], told["last"]] == pytest.approx(expected, rel=1e-5)
        assert told["names"] == [f"weight part {place} of 2"] and told["weights"] == [48.0, 48.0]
        rows = [row for row in range(5 * place, 5 * place + 5) for _ in range(40)]
        assert told["theta"] == pytest.approx([row + 5 * mean for row in rows], rel=1e-5)
        assert told["theta"] == found[(rank + 2) % 4].result["theta"], "to the bit at both sites"
        assert told["refused"][:2] == ["job", "job"]
        assert "extra" in told["refused"][2] and "whole on each rank" in told["refused"][2]
