# SPDX-License-Identifier: Apache-2.0
"""How `ultima history` shows the views of jobs."""

import re
from datetime import datetime

import pytest

from ultima.cli import history, width
from ultima.v1 import records_pb2


def change(second: int, job: str, number: int, why: str, hosts: int, left_out: int = 0) -> records_pb2.ViewChange:
    at_ns = int(datetime(2026, 3, 1, 12, 0, second).timestamp()) * 10**9
    return records_pb2.ViewChange(
        at_ns=at_ns, job=job, number=number, from_op_seq=7 * number, why=why, hosts=hosts, seats=8, left_out=left_out
    )


def test_views__a_line_each_under_a_head_for_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(width, "columns", lambda: 80)
    found = history.views(
        [
            change(1, "train", 1, "the job began", 2),
            change(2, "train", 2, "host 2 comes in, host 3 comes in, host 1 is gone, host 2 owns a shard", 3, 4),
            change(3, "other", 9, "host 1 leaves", 64),
        ]
    )
    assert found == [
        "2026-03-01, views of job train",
        "           view   from op  hosts     why",
        "12:00:01      1         7  2 of 8    the job began",
        "12:00:02      2        14  3 of 8    host 2 comes in, host 3 comes in, host 1 is",
        "                                     gone, host 2 owns a shard (4 changes before",
        "                                     are not recorded)",
        "2026-03-01, views of job other",
        "           view   from op  hosts     why",
        "12:00:03      9        63  64 of 8   host 1 leaves",
    ]
    assert all(re.fullmatch(r".{0,80}", line) for line in found)
    assert history.views([]) == []
