# SPDX-License-Identifier: Apache-2.0
"""Arguments before environment before defaults, and every wrong value named."""

import math
import re
import warnings
from datetime import timedelta

import pytest

from ultima import InvalidArgument
from ultima.base.durations import deadline_s, duration_s
from ultima.base.warning import UltimaWarning
from ultima.settings import config
from ultima.settings.config import Settings, join_address, resolve, size_bytes, socket_path
from ultima.settings.options import TABLE


@pytest.mark.parametrize("value", [250, "250", " 250 "])
def test_deadline__a_large_number_without_a_unit_is_warned_of(value: object) -> None:
    with pytest.warns(UltimaWarning, match=r"deadline = 250 is 250 seconds, .* write '250ms' or '250s'"):
        assert deadline_s(value, "deadline") == 250


@pytest.mark.parametrize("value", [60, "60", 250.0, "250s", "5m", timedelta(seconds=250), "none"])
def test_deadline__one_that_is_clear_is_not(value: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deadline_s(value, "deadline")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1, 1.0),
        (0.25, 0.25),
        ("250ms", 0.25),
        ("500us", 0.0005),
        ("2s", 2.0),
        ("2", 2.0),
        (" 1.5 m ", 90.0),
        ("1e-3s", 0.001),
        (".5", 0.5),
        ("1h", 3600.0),
        (timedelta(milliseconds=40), 0.04),
        (86400, 86400.0),
    ],
)
def test_duration_s__what_it_means(value: object, seconds: float) -> None:
    assert duration_s(value, "deadline") == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -1,
        0,
        -0.0,
        86401,
        "nan",
        "inf",
        "-1s",
        "1 fortnight",
        "",
        "ms",
        True,
        None,
        [],
        timedelta(0),
        "1s2",
    ],
)
def test_duration_s__refused_and_named(value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        duration_s(value, "deadline")
    assert caught.value.field == "deadline"
    assert repr(value) in str(caught.value)
    assert "24 h" in caught.value.allowed


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        ("0ms", 0.0),
        (timedelta(0), 0.0),
        ("250ms", 0.25),
        ("87600h", 315_360_000.0),
        (timedelta(days=3652), 315_532_800.0),
        (" none ", math.inf),
    ],
)
def test_deadline_s__from_nothing_to_ten_years(value: object, seconds: float) -> None:
    assert deadline_s(value, "deadline") == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -1,
        -1e-9,
        "1e400s",
        3.2e8,
        pytest.param(10**400, id="huge"),
        timedelta(seconds=-1),
        "never",
        True,
        None,
    ],
)
def test_deadline_s__refused_and_named(value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        deadline_s(value, "ULTIMA_DEADLINE")
    assert caught.value.field == "ULTIMA_DEADLINE"
    assert repr(value)[:50] in str(caught.value)
    assert "0 to ten years" in caught.value.allowed and "'none'" in caught.value.allowed


@pytest.mark.parametrize(
    ("value", "size"),
    [(0, 0), (4096, 4096), ("64K", 65536), ("64M", 64 << 20), ("1G", 1 << 30), ("64MiB", 64 << 20), ("8 kb", 8192)],
)
def test_size_bytes__what_it_means(value: object, size: int) -> None:
    assert size_bytes(value, "arena", 0, 1 << 40) == size


@pytest.mark.parametrize("value", [-1, "1.5M", "M", "12X", 1.0, True, None, (1 << 40) + 1, "-4K"])
def test_size_bytes__refused_and_named(value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        size_bytes(value, "arena", 0, 1 << 40)
    assert caught.value.field == "arena"


def test_socket_path__path_or_url() -> None:
    assert socket_path("/run/a.sock", "socket") == "/run/a.sock"
    assert socket_path("unix:///run/a.sock", "socket") == "/run/a.sock"
    assert socket_path("unix:/run/a.sock", "socket") == "/run/a.sock"
    for wrong in ("", "tcp://host:1", "/" + "x" * 107, "a\0b", 7):
        with pytest.raises(InvalidArgument, match="socket"):
            socket_path(wrong, "socket")


def test_resolve__defaults_are_a_job_of_one() -> None:
    assert resolve({}) == Settings(
        job="default",
        rank=0,
        world_size=1,
        socket="/run/ultima/ultimad.sock",
        rendezvous="",
        rank_addresses=(),
        timeout_s=60.0,
        deadline_s=30.0,
        adaptive=True,
        arena_bytes=256 << 20,
        bucket_bytes_max=0,
        rate_bytes_per_s=0,
        reconnect=True,
    )


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_resolve__as_torchrun_sets_it() -> None:
    settings = resolve(TORCHRUN)
    assert (settings.rank, settings.world_size) == (3, 8)
    assert settings.rendezvous == "node0:29520"
    # Two trainings on the same hosts differ in MASTER_PORT, and so do their jobs.
    assert settings.job == "torchrun-node0-29500"


def test_resolve__environment() -> None:
    settings = resolve(
        {
            **TORCHRUN,
            "ULTIMA_SOCKET": "unix:///tmp/u/ultimad.sock",
            "ULTIMA_JOB": "lenet",
            "ULTIMA_TIMEOUT": "5s",
            "ULTIMA_DEADLINE": "250ms",
            "ULTIMA_PORT": "30000",
            "ULTIMA_ARENA": "64M",
            "ULTIMA_BUCKET_MAX": "32M",
            "ULTIMA_RATE": "1G",
            "ULTIMA_RECONNECT": "no",
        }
    )
    assert settings == Settings(
        "lenet", 3, 8, "/tmp/u/ultimad.sock", "node0:30000", (), 5.0, 0.25, 64 << 20, 32 << 20, 1 << 30, False
    )


def test_resolve__arguments_win_over_environment() -> None:
    settings = resolve({**TORCHRUN, "ULTIMA_JOB": "env"}, job="arg", rank=0, world_size=2, rendezvous="", deadline=1)
    assert (settings.job, settings.rank, settings.world_size) == ("arg", 0, 2)
    assert (settings.rendezvous, settings.deadline_s, settings.adaptive) == ("", 1.0, False)


def test_resolve__empty_variable_is_not_set() -> None:
    assert resolve({"ULTIMA_JOB": "", "RANK": "", "WORLD_SIZE": ""}).job == "default"


def test_resolve__addresses_of_ranks_replace_the_rendezvous() -> None:
    addresses = "10.0.0.1:29520,[fd00::2]:29520"
    settings = resolve({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "ULTIMA_RANK_ADDRESSES": addresses})
    assert settings.rank_addresses == ("10.0.0.1:29520", "[fd00::2]:29520")
    assert settings.rendezvous == ""


def test_join_address__brackets_around_ipv6() -> None:
    assert join_address("10.0.0.1", 1) == "10.0.0.1:1"
    assert join_address("fd00::1", 1) == "[fd00::1]:1"
    assert resolve({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "fd00::1"}).rendezvous == "[fd00::1]:29520"


@pytest.mark.parametrize(
    ("environment", "arguments", "field"),
    [
        ({"RANK": "1"}, {}, "world_size"),
        ({"WORLD_SIZE": "2"}, {}, "rank"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, {}, "RANK"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, {}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "1025"}, {}, "WORLD_SIZE"),
        ({}, {"rank": -1, "world_size": 2}, "rank"),
        ({}, {"rank": True, "world_size": 2}, "rank"),
        ({}, {"rank": 0.0, "world_size": 2}, "rank"),
        ({}, {"job": ""}, "job"),
        ({}, {"job": "a\nb"}, "job"),
        ({"ULTIMA_JOB": "x" * 129}, {}, "ULTIMA_JOB"),
        ({"ULTIMA_TIMEOUT": "soon"}, {}, "ULTIMA_TIMEOUT"),
        ({"ULTIMA_DEADLINE": "-1s"}, {}, "ULTIMA_DEADLINE"),
        ({"ULTIMA_PORT": "0"}, {}, "ULTIMA_PORT"),
        ({"ULTIMA_PORT": "65536", "MASTER_ADDR": "a"}, {}, "ULTIMA_PORT"),
        ({"ULTIMA_ARENA": "10"}, {}, "ULTIMA_ARENA"),
        ({}, {"bucket_bytes_max": 2**32}, "bucket_bytes_max"),
        ({"ULTIMA_RECONNECT": "maybe"}, {}, "ULTIMA_RECONNECT"),
        ({}, {"rendezvous": "no-port"}, "rendezvous"),
        ({}, {"rendezvous": "host:0"}, "rendezvous"),
        ({}, {"rendezvous": "fd00::1:29520"}, "rendezvous"),
        ({}, {"rank": 0, "world_size": 2, "rank_addresses": ["a:1"]}, "rank_addresses"),
        ({}, {"rank": 0, "world_size": 1, "rank_addresses": "a:1"}, "rank_addresses"),
        ({"RANK": "0", "WORLD_SIZE": "2", "ULTIMA_RANK_ADDRESSES": "a:1,b"}, {}, "ULTIMA_RANK_ADDRESSES"),
        ({"ULTIMA_SOCKET": "tcp://x"}, {}, "ULTIMA_SOCKET"),
    ],
)
def test_resolve__wrong_value_is_named(environment: dict[str, str], arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve(environment, **arguments)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is ")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ULTIMA_INCASTS", "ULTIMA_INCAST"),
        ("ULTIMA_TB", "ULTIMA_T_B"),
        ("ULTIMA_MODES", "ULTIMA_MODE"),
        ("ULTIMA_SOCKETS", "ULTIMA_SOCKET"),
    ],
)
def test_resolve__a_slip_in_a_variable_is_named_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve({name: "1"})
    assert str(caught.value) == f"{name} is '1'; allowed: no such variable; the nearest one is {near}"


def test_resolve__leaves_variables_of_others_alone() -> None:
    resolve({"ULTIMA_TEST_FOLDER": "x", "ULTIMATE": "x", "ULTIMAD_PORT": "x"})


def test_resolve__every_variable_of_the_table_is_known() -> None:
    """The table at the top of the module and `VARIABLES` say the same."""
    assert config.__doc__ is not None
    told = set(re.findall(r"ULTIMA_[A-Z_]+", config.__doc__)) - {"ULTIMA_INCASTS"}
    options = {option.variable for option in TABLE}
    assert told | options | {"ULTIMA_ON_INSUFFICIENT", "ULTIMA_WIRE"} == set(config.VARIABLES)


def test_resolve__mode() -> None:
    assert resolve({}).mode == "bounded"
    assert resolve({"ULTIMA_MODE": "reliable"}).mode == "reliable"
    with pytest.raises(InvalidArgument, match="ULTIMA_MODE is 'bogus'; allowed: "):
        resolve({"ULTIMA_MODE": "bogus"})
