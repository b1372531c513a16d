# SPDX-License-Identifier: Apache-2.0
"""ULTIMA_TRACE: what stands in a rank's timeline, while it runs and afterwards."""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.fake_jobs import FakeJobs, on_all
from ultima.base.errors import InvalidArgument
from ultima.session import timeline
from ultima.settings import config
from ultima.testing import FakeDaemon


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No test leaves a timeline to the next one."""
    yield
    if timeline.active is not None:
        timeline.active.close()


def events(path: Path) -> list[dict[str, Any]]:
    """As Perfetto reads the file: its last bracket may be missing."""
    text = path.read_text().rstrip()
    found: list[dict[str, Any]] = json.loads(text if text.endswith("]") else text.removesuffix(",") + "]")
    return found


def run(act: Any) -> None:
    """|act| in each of two ranks; both are of this process, so they share its timeline."""
    with FakeJobs(2) as jobs:
        made = on_all(2, jobs.base)
        on_all(2, lambda rank: act(made[rank]))
        on_all(2, lambda rank: made[rank].close())


def test_file__has_each_op_with_its_stages_and_receipt(tmp_path: Path) -> None:
    def act(job: ultima.Job) -> None:
        receipt = job.allreduce(np.full(1000, job.rank + 1, np.float32), "sum")
        job.barrier()
        told[job.rank] = receipt

    told: dict[int, ultima.Receipt] = {}
    timeline.begin(str(tmp_path / "trace.json"), 3)
    run(act)
    assert timeline.active is not None
    timeline.active.close()
    found = events(tmp_path / "trace.rank3.json")
    assert {event["pid"] for event in found} == {3}
    rows = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    begun = [event for event in found if event["ph"] == "b" and "args" in event]
    assert sorted(event["name"] for event in begun) == ["allreduce 3.906 KiB"] * 2 + ["barrier"] * 2
    assert len({event["id2"]["local"] for event in begun}) == 4
    for event in begun:
        assert rows[event["tid"]] == event["name"].partition(" ")[0]
        of_it = [each for each in found if each.get("id2") == event["id2"]]
        assert [each["ph"] for each in of_it] == list("bbebee"), "two stages within the op"
        times = [each["ts"] for each in of_it]
        assert min(times) == times[0] and max(times) == times[-1]
        if "allreduce" in event["name"]:
            args = event["args"]
            assert (args["status"], args["contributors"], args["bytes_missing"]) == ("COMPLETE", [0, 1], 0)
            ends = {timeline.wall_us(receipt.ended_ns) for receipt in told.values()}
            assert times[-1] in ends


def test_file__can_be_read_while_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "FLUSH_NS", 0)
    timeline.begin(str(tmp_path / "t"), 0)
    run(lambda job: job.allreduce(np.ones(10, np.float32)))
    assert not (tmp_path / "t.rank0.json").read_text().rstrip().endswith("]")
    assert sum("args" in event and event["ph"] == "b" for event in events(tmp_path / "t.rank0.json")) == 2


def test_file__names_what_failed(tmp_path: Path) -> None:
    def act(job: ultima.Job) -> None:
        with pytest.raises(ultima.Desync):
            job.allreduce(np.ones(10 + job.rank, np.float32))

    timeline.begin(str(tmp_path / "t.json"), 0)
    run(act)
    assert timeline.active is not None
    timeline.active.close()
    failed = [event for event in events(tmp_path / "t.rank0.json") if "error" in event.get("args", {})]
    assert len(failed) == 2 and all(event["args"]["error"].startswith("Desync: op 0: count") for event in failed)
    assert {event["name"] for event in failed} == {"allreduce 40 B failed", "allreduce 44 B failed"}


@pytest.mark.parametrize("how", ["full disk", "size"])
def test_trouble__ends_the_file_with_a_warning_and_no_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(timeline, "FLUSH_NS", 0)
    if how == "size":
        monkeypatch.setattr(timeline, "FILE_BYTES_MAX", 1500)
    else:
        (tmp_path / "t.rank0.json").symlink_to("/dev/full")
    timeline.begin(str(tmp_path / "t.json"), 0)
    run(lambda job: [job.allreduce(np.ones(10, np.float32)) for _ in range(5)])
    assert timeline.active is not None
    told = "ends early: No space left on device" if how == "full disk" else "ends early: it has 1.465 KiB"
    with pytest.warns(ultima.UltimaWarning, match=told):
        timeline.active.close()
    if how == "size":
        assert (tmp_path / "t.rank0.json").stat().st_size <= 1500 and events(tmp_path / "t.rank0.json")


def test_fork__the_child_writes_nothing(tmp_path: Path) -> None:
    timeline.begin(str(tmp_path / "t.json"), 0)
    here = timeline.active
    assert here is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        here.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "t.rank0.json").read_text() == ""
    here.close()
    assert len(events(tmp_path / "t.rank0.json")) == 2


def test_settings__the_variable_is_read_and_a_bad_file_refused(tmp_path: Path) -> None:
    assert config.resolve({"ULTIMA_TRACE": "x.json"}).trace == "x.json" and config.resolve({}).trace == ""
    for file, said in ((f"{tmp_path}/none/x.json", "No such file or directory"), (str(tmp_path), "such as trace.json")):
        with pytest.raises(InvalidArgument, match=f"ULTIMA_TRACE is '.*'; allowed: a file.*{said}"):
            timeline.begin(file, 0)
    assert timeline.active is None


def test_off__nothing_is_opened(tmp_path: Path) -> None:
    timeline.begin("", 0)
    run(lambda job: job.allreduce(np.ones(10, np.float32)))
    assert timeline.active is None and list(tmp_path.iterdir()) == []


def test_daemon__that_dies_or_is_stopped_leaves_its_ops_in_the_file(tmp_path: Path) -> None:
    """One op fails as the daemon dies under it; one goes on with own values, as the daemon does not answer in time."""
    timeline.begin(str(tmp_path / "t.json"), 0)
    with FakeDaemon(1) as daemon:
        job = daemon.connect(reconnect=False)
        daemon.freeze()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ultima.UltimaWarning)
            receipt = job.allreduce(np.ones(10, np.float32), deadline=0.05)
        assert receipt.trouble is ultima.Trouble.DAEMON
        handle = job.allreduce_async(np.ones(10, np.float32), deadline=20)
        daemon.kill()
        with pytest.raises(ultima.DaemonLost):
            handle.wait()
    assert timeline.active is not None
    timeline.active.close()
    told = [event["args"] for event in events(tmp_path / "t.rank0.json") if event["ph"] == "b" and "args" in event]
    assert told[0]["status"] == "INSUFFICIENT" and told[0]["culprit"] == [0]
    assert told[1]["error"].startswith("DaemonLost") and len(told) == 2
