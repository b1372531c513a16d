# SPDX-License-Identifier: Apache-2.0
"""Options over real daemons: they reach the engines, bad ones are refused by name, and they change while a job runs."""

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import DaemonProcess, Hosts, everywhere, new_job_name, ranks
from ultima.admin.calls import get_status, tune
from ultima.settings.options import words


def test_options__are_in_force_on_all_hosts_and_change_while_the_job_runs(four: Hosts) -> None:
    hosts = four[:3]
    with ranks(hosts, options=ultima.Options(incast=2, t_b="5s")) as jobs:
        assert all(job.options["incast"] == "2" and job.options["t_b"] == "5s" for job in jobs), jobs[0].options
        for step in range(3):
            arrays = [np.full(5000, rank + 1.0, np.float32) for rank in range(3)]
            handles = [job.allreduce_async(array, "sum") for job, array in zip(jobs, arrays, strict=True)]
            if step == 0:
                tune(str(hosts[1].socket), jobs[0].name, {"incast": 1, "early_percent": 30})
            for handle, array in zip(handles, arrays, strict=True):
                assert handle.wait().complete and (array == 6.0).all()
        for host in hosts:
            (status,) = get_status(str(host.socket), jobs[0].name).jobs
            told = words(status.options)
            assert (told["incast"], told["early_percent"], told["t_b"]) == ("1", "30", "5s")
        with pytest.raises(ultima.InvalidArgument, match="incast 3: must be 0"):
            tune(str(hosts[0].socket), jobs[0].name, {"incast": 3})


def test_options__the_engine_refuses_by_name(four: Hosts) -> None:
    with (
        pytest.raises(ultima.InvalidArgument, match="incast 3: must be 0"),
        ranks(four[:2], options=ultima.Options(incast=3)),
    ):
        pass


@pytest.mark.parametrize(("field", "values"), [("hadamard", ("off", "on")), ("deterministic", ("no", "yes"))])
def test_options__ranks_that_differ_are_told_in_what(four: Hosts, field: str, values: tuple[str, str]) -> None:
    name = new_job_name()

    def join(rank: int, host: DaemonProcess) -> None:
        options = ultima.Options(**{field: values[rank]})  # type: ignore[arg-type]
        ultima.connect(name, rank, 2, host.socket, four[0].rendezvous, timeout=20, options=options)

    for rank, outcome in enumerate(everywhere(four[:2], join)):
        assert isinstance(outcome, ultima.Desync), (rank, outcome)
        assert outcome.field == field and all(f"says {value}" in str(outcome) for value in values)
