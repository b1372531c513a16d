# SPDX-License-Identifier: Apache-2.0
"""How many lanes a job has and whether large ops are split: by the CPUs that hosts tell of, and nothing else."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.process.test_memory_max import cgroups
from ultima.daemon.base.cpus import CPUS_MAX, cpus
from ultima.daemon.base.errors import InvalidArgument
from ultima.daemon.base.options import DEFAULTS, Options
from ultima.daemon.hosts import membership
from ultima.daemon.hosts.host import Host, Membership, State
from ultima.daemon.hosts.lanes import ALWAYS, AUTO, NEVER, lanes, portions
from ultima.v1 import types_pb2


def host(cpus: int, *ranks: int, lanes: int = 2) -> Host:
    return Host(0, "10.0.0.1", 1, tuple((2 * n, 2 * n + 1) for n in range(1, 1 + lanes)), 7, ranks, 1472, cpus=cpus)


def test_lanes__a_cpu_for_each_besides_those_of_the_ranks_on_every_host() -> None:
    words = (types_pb2.SPLIT_AUTO, types_pb2.SPLIT_NEVER, types_pb2.SPLIT_ALWAYS)
    assert words == (AUTO, NEVER, ALWAYS) and DEFAULTS.split == AUTO
    rows = [  # split, hosts, lanes, portions
        (AUTO, [host(3, 0), host(3, 1)], 2, 2),
        (AUTO, [host(3, 0), host(2, 1)], 1, 1),
        (AUTO, [host(64, 0), host(3, 1, 2)], 1, 1),
        (AUTO, [host(4, 0, 1), host(4, 2, 3)], 2, 2),
        (AUTO, [host(4, 0, lanes=4), host(4, 1, lanes=4)], 3, 3),
        (AUTO, [host(5, 0, lanes=4), host(5, 1, lanes=4)], 4, 4),
        (AUTO, [host(64, 0, lanes=4), host(64, 1)], 2, 2),
        (AUTO, [host(1, 0, 1, 2)], 1, 1),
        (AUTO, [host(0, 0), host(64, 1)], 2, 1),  # a daemon of before does not say
        (AUTO, [host(0, 0), host(2, 1)], 1, 1),
        (AUTO, [host(0, 0), host(0, 1)], 2, 1),
        (NEVER, [host(64, 0), host(64, 1)], 2, 1),
        (NEVER, [host(2, 0), host(64, 1)], 1, 1),
        (ALWAYS, [host(1, 0), host(1, 1)], 2, 2),
        (ALWAYS, [host(0, 0), host(1, 1)], 2, 1),
        (ALWAYS, [host(64, 0, lanes=1), host(64, 1)], 1, 1),
    ]
    for split, hosts, wanted, split_into in rows:
        options = Options(split=split)
        found = lanes(options, hosts)
        assert (found, portions(options, hosts, found)) == (wanted, split_into), (split, hosts)
    for split in (AUTO, ALWAYS):
        partial = Options(policy=2, split=split)
        assert lanes(partial, [host(64, 0)]) == portions(partial, [host(64, 0)], 1) == 1


def test_membership__carries_portions_and_believes_no_other_number() -> None:
    whole = Membership(7, 2, 100, (host(3, 0, 1),), (State.UP,), 12, True, lanes=2, portions=2)
    message = whole.to_proto()
    assert membership.membership(message, 2, "") == whole
    for said, meant in ((0, 1), (1, 1), (2, 2)):
        message.portions = said
        assert membership.membership(message, 2, "").portions == meant
    for said in (3, -1):
        message.portions = said
        with pytest.raises(InvalidArgument, match=rf"portions = {said}: allowed: 1, or 2: as many as lanes"):
            membership.membership(message, 2, "")
    for said in (-1, CPUS_MAX + 1):
        message = replace(whole, hosts=(host(said, 0, 1),)).to_proto()
        with pytest.raises(InvalidArgument, match=rf"cpus = {said}"):
            membership.membership(message, 2, "")


def test_cpus__by_affinity_and_by_the_time_that_control_groups_give(tmp_path: Path) -> None:
    here = len(os.sched_getaffinity(0))
    most = str(here * 100_000)
    rows = [
        ("0::/a/b\n", {"a_b": "max 100000"}, here),
        ("0::/a/b\n", {"a_b": f"{most} 100000", "a": "100000 100000"}, 1),
        ("0::/a/b\n", {"a_b": "50000 100000"}, 1),  # half of one is all there is
        ("0::/a/b\n", {"a": "9000000 1000"}, here),
        ("0::/a/b\n", {"a": "199999 100000"}, 1),
        ("0::/a/b\n", {"a": "7 0"}, here),
        ("", {}, here),
    ]
    for number, (own, levels, wanted) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert cpus(*cgroups(folder, own, "cpu.max", **levels)) == wanted, rows[number]
