# SPDX-License-Identifier: Apache-2.0
"""What operators see of local SGD: the daemon knows each round that ranks on its host told it of."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ultima
from tests.e2e.hosts import everywhere, ranks, running
from ultima.admin.calls import get_status
from ultima.admin.past import get_events, get_metrics
from ultima.admin.round_view import get_rounds
from ultima.cli import main


@pytest.mark.filterwarnings("ignore:.* holds NaN or infinity")
def test_rounds__are_known_to_the_daemon_of_each_host_with_their_values() -> None:
    """Two hosts; rank 1 weighs three times as much. Round 3 is void: nobody gives anything finite."""
    with running(2) as hosts, ranks(hosts) as jobs:

        def one(rank: int, job: ultima.Job) -> Any:
            model = np.zeros(2000, np.float32)
            with ultima.Outer(job, {"w": model}, 2, weight=1.0 + 2 * rank, deadline="10s") as outer:
                for step in range(8):
                    model += np.nan if step == 5 else rank + 1
                    outer.step()
                return outer.last, job.name

        done = everywhere(jobs, one)
        for each in done:
            assert not isinstance(each, Exception), each
        name = done[0][1]
        for rank, host in enumerate(hosts):
            path = str(host.socket)
            newest = get_rounds(path, name)
            assert (newest.job, newest.world_size, newest.oldest, newest.newest) == (f"{name}/outer", 2, 1, 4)
            (told,) = newest.rounds
            last = done[rank][0]
            assert (told.rank, told.number, told.outcome, told.digest) == (rank, 4, "stepped", last.digest)
            assert [(each.rank, each.weight, each.partly) for each in told.members] == [(0, 1, False), (1, 3, False)]
            assert (told.weight, told.members_weight, told.op_seq) == (4, 4, last.receipt.op_seq)
            assert told.steps == 8 and told.ranges == last.ranges and not told.ranges_missed
            assert 0 < told.computed_share <= 1 and told.took_us > 0 and told.received_bytes > 0
            (void,) = get_rounds(path, f"{name}/outer", 3).rounds
            assert (void.outcome, void.why) == ("void", "0 of 1 ranks gave; ranks [0, 1] did not")
            with pytest.raises(ultima.InvalidArgument, match="rounds 1 to 4 are"):
                get_rounds(path, name, 5)
            with pytest.raises(ultima.InvalidArgument, match=f"rounds are kept of: {name}/outer"):
                get_rounds(path, "nobody")
            shown = CliRunner().invoke(main.build(), ["explain", "--round", "2", "--job", name, "--socket", path])
            assert shown.exit_code == 0, shown.output
            assert "Weights: rank 0 1, rank 1 3; in all 4." in shown.output
            facts = json.loads(
                CliRunner().invoke(main.build(), ["explain", "--round", "-1", "--json", "--socket", path]).output
            )
            assert facts["kept"] == {"oldest": 1, "newest": 4} and facts["rounds"][0]["outcome"] == "stepped"
            kinds = [event.kind for event in get_events(path, f"{name}/outer")]
            assert kinds.count("round_void") == 1
            assert f'ultima_rounds_total{{outcome="void",ultima_job="{name}/outer"}}' not in get_metrics(path)  # ended
        asked = CliRunner().invoke(main.build(), ["explain", "3", "--round", "2", "--socket", str(hosts[0].socket)])
        assert asked.exit_code == 2


LEFT_OPEN = """
import os, sys
import numpy as np
import ultima

job = ultima.connect("left-open", socket=sys.argv[1])
outer = ultima.Outer(job, {"w": np.zeros(300, np.float32)}, 1)
outer.step()
child = os.fork()
if child:
    print(outer.last.outcome, os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.timeout(60)
def test_a_program_that_closes_nothing__ends() -> None:
    """So does its forked child. gRPC waits for a thread where a channel is closed, and there that has ended."""
    with running(1) as hosts:
        command = [sys.executable, "-W", "ignore", "-c", LEFT_OPEN, str(hosts[0].socket)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (0, "stepped 0\n"), done.stderr


def test_status__shows_the_rounds_of_a_job_that_runs() -> None:
    with running(1) as hosts, ranks(hosts) as jobs:
        outer = ultima.Outer(jobs[0], {"w": np.zeros(300, np.float32)}, 1)
        for _ in range(3):
            outer.step()
        path, name = str(hosts[0].socket), f"{jobs[0].name}/outer"
        outer.job._connection.session.round_line.close()  # type: ignore[union-attr]  # what was told has come
        (status,) = get_status(path, name).jobs
        assert (status.rounds.stepped_count, status.rounds.newest.number) == (3, 3)
        shown = CliRunner().invoke(main.build(), ["jobs", "--socket", path])
        assert "rounds: 3 stepped; the newest, 3: stepped" in " ".join(shown.output.split())
        assert f'ultima_rounds_total{{outcome="stepped",ultima_job="{name}"}} 3.0' in get_metrics(path)
        outer.close()
