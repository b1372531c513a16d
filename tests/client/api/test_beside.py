# SPDX-License-Identifier: Apache-2.0
"""Where a further job meets: its name, its ranks and their daemons, and how much memory it asks for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.client.fake_jobs import FakeJobs, on_all
from ultima import InvalidArgument, Options
from ultima.api.beside import ARENA_SPARE_BYTES, settings_beside
from ultima.base.receipt import Host
from ultima.settings import config
from ultima.settings.config import Settings

HOSTS = (Host(0, "10.0.0.1", (0, 2), 29520), Host(1, "10.0.0.2", (1,), 29521), Host(2, "fd00::3", (3,), 29522))


def running(**changes: Any) -> Settings:
    said = {"job": "train", "rank": 2, "world_size": 4, "rendezvous": "10.0.0.1:29520", "arena": "1M"}
    return replace(config.resolve({}, **said, options=Options(incast=2)), **changes)


def beside(ranks: list[int] | None = None, needs: int = 0, hosts: tuple[Host, ...] = HOSTS, **changes: Any) -> Settings:
    said = Options(policy="solo")
    return settings_beside(running(**changes), hosts, "groups", said, ranks=ranks, arena_bytes=needs, bucket_bytes=4096)


def test_settings__all_ranks_keep_their_numbers_and_meet_at_the_daemons_they_have() -> None:
    made = beside()
    assert (made.job, made.rank, made.world_size) == ("train/groups", 2, 4)
    assert made.rendezvous == "" and made.bucket_bytes_max == 4096
    assert made.rank_addresses == ("10.0.0.1:29520", "10.0.0.2:29521", "10.0.0.1:29520", "[fd00::3]:29522")
    assert made.options == {"incast": 2, "policy": 3}, "its own options come on top"


def test_settings__some_ranks_are_numbered_anew() -> None:
    made = beside([1, 2])
    assert (made.rank, made.world_size) == (1, 2)
    assert made.rank_addresses == ("10.0.0.2:29521", "10.0.0.1:29520")


def test_settings__on_one_host_there_is_no_place() -> None:
    alone = (Host(0, "", (0, 1)),)
    assert beside(hosts=alone, rank=1, world_size=2).rank_addresses == ()


def test_settings__memory_is_what_is_needed_and_no_less_than_before() -> None:
    assert running().arena_bytes == 1 << 20 == ARENA_SPARE_BYTES
    assert beside().arena_bytes == 1 << 20
    assert beside(needs=100).arena_bytes == 100 + ARENA_SPARE_BYTES
    assert beside(needs=100, arena_bytes=8 << 20).arena_bytes == 8 << 20


@pytest.mark.parametrize("ranks", [[], [0, 1], [2, 1], [2, 2], [2, 4], [-1, 2]], ids=str)
def test_settings__ranks_that_cannot_be(ranks: list[int]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        beside(ranks)
    assert caught.value.field == "ranks" and "2 among them" in str(caught.value)


def test_settings__a_name_that_grows_too_long() -> None:
    assert beside(job="j" * 121).job == "j" * 121 + "/groups"
    with pytest.raises(InvalidArgument, match="leaves room for 'groups'"):
        beside(job="j" * 122)


def test_job__those_beside_it_average_by_themselves() -> None:
    with FakeJobs(3) as jobs:

        def act(rank: int) -> float | None:
            with jobs.base(rank) as job:
                if rank == 1:
                    return None
                with job.beside("pair", Options(), ranks=[0, 2]) as pair:
                    assert (pair.name, pair.rank, pair.world_size) == ("base/pair", rank // 2, 2)
                    mine = np.full(3, float(rank))
                    assert pair.allreduce(mine).complete
                    return float(mine[0])

        assert on_all(3, act) == [1.0, None, 1.0]
