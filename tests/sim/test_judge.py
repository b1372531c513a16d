# SPDX-License-Identifier: Apache-2.0
"""The simulator as the judge of the transport: worlds by hand, held against what the wire needs."""

import json
import subprocess
from typing import Any

import pytest

from tests.making import BUILD, make

pytestmark = pytest.mark.timeout(600)


def study(*knobs: str) -> dict[str, Any]:
    make("sim")
    command = [str(BUILD / "sim"), "--study", *knobs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_light__takes_the_same_times_as_a_world_whose_bytes_are_checked() -> None:
    knobs = ["hosts=5", "bytes=400000", "ops=4", "loss_ppm=10000", "queue_bytes=100000", "apart_us=500"]
    whole, light = study(*knobs), study("--light", *knobs, "rows=1")
    assert whole == light
    assert whole["judged"]["lost_own"] > 0
    assert whole["judged"]["lost"] > whole["judged"]["lost_own"] + 0.005


def test_judged__an_undisturbed_op_is_near_the_bound_and_never_below() -> None:
    judged = study("--light", "hosts=4", "bytes=6553600", "ops=3")["judged"]
    assert judged["bound_us"] == pytest.approx(2 * 3 / 4 * 6553600 * 8 * 1514 / 1440 / 1000, rel=1e-4)
    assert 1 - 2 * judged["round_trip_us"] / judged["bound_us"] < judged["ratio"] < 1.35
    assert judged["again"] == pytest.approx(1, abs=0.02)
    assert judged["lost"] == judged["missing"] == 0


def test_host_cost__a_host_that_cannot_keep_up_is_what_the_link_waits_for() -> None:
    knobs = ["--light", "hosts=4", "bytes=2621440", "ops=3", "rate_mbit=10000", "delay_us=5"]
    quick, packets, batches = (
        study(*knobs, "packet_ns=0"),
        study(*knobs, "packet_ns=4000"),
        study(*knobs, "batch_ns=60000"),
    )
    assert packets["judged"]["op_us"] > 2 * quick["judged"]["op_us"]
    assert batches["judged"]["op_us"] > 2 * quick["judged"]["op_us"]
    assert packets["judged"]["idle_us"]["cpu"] > quick["judged"]["idle_us"]["cpu"]


def test_slow_link__has_a_bound_of_its_own() -> None:
    judged = study("--light", "hosts=4", "bytes=1310720", "ops=3", "slow_part=4")["judged"]
    assert judged["bound_us"] == pytest.approx(4 * 2 * 3 / 4 * 1310720 * 8 * 1514 / 1440 / 1000, rel=1e-4)
    assert 0.95 < judged["ratio"] < 1.35


@pytest.mark.parametrize("knob", ["light=2", "--heavy", "send_us=-1", "slow_part=0"])
def test_study__wrong_use_names_the_knobs(knob: str) -> None:
    make("sim")
    done = subprocess.run([BUILD / "sim", "--study", knob], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"study: {knob} is neither" in done.stderr
    assert "send_us" in done.stderr
