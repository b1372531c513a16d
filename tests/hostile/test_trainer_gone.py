# SPDX-License-Identifier: Apache-2.0
"""A trainer dies and leaves a call behind that points into memory which the next one gets (A2)."""

from __future__ import annotations

import pytest

from tests.e2e.hosts import DaemonProcess, new_job_name
from tests.hostile.bystander import Bystander
from tests.hostile.trainer import HostileTrainer, join_all, refused
from ultima._native import lib

ARENA = 1 << 20
SECRET = b"\x42\x28\x00\x00"  # a float32 that is not 0


@pytest.mark.parametrize("skipped", [1, 4, 8, 40])
def test_call__does_not_outlive_its_trainer(host: DaemonProcess, skipped: int) -> None:
    """The first rank submits ops that are refused, then a good one, which waits for the second rank; it dies, and a
    victim attaches with an arena of the same size. Then the second rank calls the same op, and looks at the sum.
    """
    with Bystander(host), HostileTrainer(host.socket, ARENA) as second:
        first = HostileTrainer(host.socket, ARENA)
        joined = join_all([first, second], new_job_name())
        assert not refused(joined), joined
        refusal = {"dtype": 99, "count": 16}
        for op_seq in range(skipped):
            first.lanes[0].write(op_seq=op_seq, **refusal)
        first.lanes[0].submit(op_seq=skipped, count=ARENA // 4, mode=lib.UT_RELIABLE)
        assert len(first.lanes[0].wait(skipped)) == skipped
        first.hang_up()
        with HostileTrainer(host.socket, ARENA) as victim:
            victim.arena[:] = SECRET * (ARENA // 4)
            second.arena[:] = bytes(ARENA)
            for op_seq in range(skipped):
                second.lanes[0].write(op_seq=op_seq, **refusal)
            second.lanes[0].submit(op_seq=skipped, count=ARENA // 4, mode=lib.UT_RELIABLE)
            answers = second.lanes[0].wait(skipped + 1, 10.0)
            assert len(answers) == skipped + 1
            assert second.arena[:] == bytes(ARENA), "bytes of another trainer came back"
            assert victim.arena[:] == SECRET * (ARENA // 4)
