# SPDX-License-Identifier: Apache-2.0
"""Options of a job: words, numbers and variables, which mean the same here, in the messages and in the C core."""

import json
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from ultima import InvalidArgument, Options
from ultima.base.native import lib
from ultima.cli import main
from ultima.settings.options import FIXED, TABLE, changes, message, resolve, words
from ultima.testing import FakeDaemon
from ultima.v1 import admin_pb2, types_pb2
from ultima.v1.job_options import OFF

READ = [
    ("algorithm", "ring", 2),
    ("congestion", "none", 4),
    ("hadamard", "auto", 3),
    ("incast", "dynamic", 0),
    ("incast", "3", 3),
    ("incast", 15, 15),
    ("early_percent", "100", 100),
    ("t_b", "300ms", 300_000_000),
    ("t_b", "auto", 0),
    ("t_b", "off", OFF),
    ("t_c", timedelta(milliseconds=2), 2_000_000),
    ("t_c", 0.5, 500_000_000),
    ("timer_start", "local", 2),
    ("delay_target", "50us", 50_000),
    ("policy", "none", 1),
    ("policy", "solo", 3),
    ("policy", "seeded", 7),
    ("quorum", "auto", 0),
    ("quorum", "1", 1),
    ("probes", 2, 2),
    ("tau", "255", 255),
    ("eta", "4", 4),
    ("policy_seed", 2**64 - 1, 2**64 - 1),
    ("policy", "coded", 8),
    ("code", "groups", 1),
    ("exact", "yes", 1),
    ("exact", True, 1),
    ("deterministic", True, 2),
    ("deterministic", False, 1),
    ("deterministic", "yes", 2),
    ("deterministic", "1", 2),
    ("deterministic", "0", 1),
    ("stragglers", "none", 0),
    ("children", "star", 0),
]
REFUSED: list[tuple[str, object, str]] = [
    ("algorithm", "tree", "one of tar, ring, bcube, ps"),
    ("algorithm", 1, "one of tar, ring, bcube, ps"),
    ("congestion", "Swift", "swift, dctcp, timely, none"),
    ("hadamard", "maybe", "off, on, auto"),
    ("incast", "16", "1 to 15, or 0 or 'dynamic'"),
    ("incast", -1, "1 to 15"),
    ("incast", True, "1 to 15"),
    ("incast", "3.5", "1 to 15"),
    ("early_percent", 0, "1 to 100"),
    ("early_percent", "ten", "1 to 100"),
    ("t_b", "0ms", "auto, off, or a duration of at most 1 h"),
    ("t_b", "2h", "at most 1 h"),
    ("t_c", "-5ms", "auto, off, or a duration"),
    ("t_c", "soon", "auto, off, or a duration"),
    ("t_c", float("nan"), "auto, off, or a duration"),
    ("timer_start", "mine", "one of rendezvous, local"),
    ("delay_target", "off", "auto, or a duration"),
    ("policy", "first", "one of none, full, solo, majority, quorum, probe, seeded, coded"),
    ("policy", 3, "one of none, full"),
    ("quorum", 0, "a whole number from 1 to 1024, or 'auto'"),
    ("quorum", "0", "a whole number from 1 to 1024, or 'auto'"),
    ("quorum", -1, "a whole number from 1 to 1024, or 'auto'"),
    ("quorum", True, "a whole number from 1"),
    ("probes", 0, "a whole number from 1 to 1024, or 'auto'"),
    ("probes", 1.5, "a whole number from 1"),
    ("tau", 0, "a whole number from 1 to 255, or 'auto'"),
    ("tau", 256, "a whole number from 1 to 255, or 'auto'"),
    ("eta", "0", "a whole number from 1 to 255, or 'auto'"),
    ("eta", "none", "a whole number from 1 to 255, or 'auto'"),
    ("policy_seed", 2**64, "a whole number from 1 to 18446744073709551615, or 'auto'"),
    ("stragglers", 64, "a whole number from 1 to 63, or 0 or 'none'"),
    ("children", "tree", "a whole number from 1 to 63, or 0 or 'star'"),
    ("code", "random", "one of groups, linear"),
    ("exact", "maybe", "1 or 0, true or false, yes or no, on or off"),
    ("deterministic", 2, "1 or 0, true or false, yes or no, on or off"),
]
NOT_CODED = [("stragglers", 1, "none"), ("children", 3, "star"), ("code", "linear", "groups"), ("exact", "no", "yes")]


@pytest.mark.parametrize(("name", "value", "only"), NOT_CODED)
def test_resolve__what_coded_jobs_alone_have(name: str, value: Any, only: str) -> None:
    """It would change nothing in others, so whoever names it has forgotten the policy."""
    with pytest.raises(InvalidArgument, match=f"{only}, because the policy of the job is solo, not coded"):
        resolve(Options(policy="solo", **{name: value}), {})
    assert resolve(Options(policy="coded", **{name: value}), {})["policy"] == 8


@pytest.mark.parametrize(("name", "value", "number"), READ)
def test_resolve__what_a_value_means(name: str, value: Any, number: int) -> None:
    field = next(row.field for row in TABLE if row.name == name)
    assert resolve(Options(**{name: value}), {}) == {field: number}
    if isinstance(value, str):
        assert resolve(None, {f"ULTIMA_{name.upper()}": f" {value} "}) == {field: number}
        if name not in FIXED:
            assert changes([f"{name}={value}"]) == {field: number}


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED)
def test_resolve__refused_and_named(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve(Options(**{name: value}), {})
    assert caught.value.field == name and allowed in caught.value.allowed and repr(value) in str(caught.value)
    if isinstance(value, str):
        with pytest.raises(InvalidArgument, match=f"ULTIMA_{name.upper()}"):
            resolve(None, {f"ULTIMA_{name.upper()}": value})


def test_resolve__argument_before_environment_before_default() -> None:
    environment = {"ULTIMA_ALGORITHM": "ps", "ULTIMA_INCAST": "4", "ULTIMA_T_B": ""}
    assert resolve(Options(algorithm="ring"), environment) == {"algorithm": 2, "incast": 4}
    assert resolve(None, {}) == {}, "what nobody named is left to the daemon"
    with pytest.raises(InvalidArgument, match="options"):
        resolve({"incast": 4}, {})  # type: ignore[arg-type]


def test_resolve__more_than_there_are_ranks_is_named_with_their_number() -> None:
    assert resolve(Options(quorum=8, probes=8), {}, 8) == {"quorum": 8, "probes": 8}
    for name in ("quorum", "probes"):
        with pytest.raises(InvalidArgument) as caught:
            resolve(Options(**{name: 9}), {}, 8)
        assert str(caught.value) == f"{name} is 9; allowed: 1 to 8, the ranks of the job, or 'auto'"
        with pytest.raises(InvalidArgument, match=f"^ULTIMA_{name.upper()} is '9'; allowed: 1 to 8, the ranks"):
            resolve(None, {f"ULTIMA_{name.upper()}": "9"}, 8)
    with FakeDaemon(world_size=2) as daemon, pytest.raises(InvalidArgument, match="quorum is 3; allowed: 1 to 2"):
        daemon.connect(options=Options(policy="quorum", quorum=3))


def test_resolve__what_a_partial_job_cannot_be() -> None:
    assert resolve(Options(policy="none", algorithm="ring"), {}) == {"policy": 1, "algorithm": 2}
    assert resolve(Options(policy="solo", algorithm="tar", hadamard="off"), {})["policy"] == 3
    for name, value, only in (("algorithm", "ring", "tar"), ("hadamard", "auto", "off")):
        with pytest.raises(InvalidArgument) as caught:
            resolve(Options(policy="solo"), {f"ULTIMA_{name.upper()}": value})
        allowed = f"{only}, because the job is partial: its policy is solo"
        assert str(caught.value) == f"{name} is {value!r}; allowed: {allowed}"


def test_resolve__what_a_deterministic_job_cannot_be() -> None:
    assert resolve(Options(deterministic=True, algorithm="ring", hadamard="on"), {})["deterministic"] == 2
    assert resolve(None, {"ULTIMA_DETERMINISTIC": "1"}) == {"deterministic": 2}
    rows = (("algorithm", "bcube", "tar, ring, ps"), ("hadamard", "auto", "off, on"))
    for name, value, others in rows:
        assert resolve(Options(deterministic=False), {f"ULTIMA_{name.upper()}": value})["deterministic"] == 1
        with pytest.raises(InvalidArgument) as caught:
            resolve(Options(deterministic=True), {f"ULTIMA_{name.upper()}": value})
        assert str(caught.value) == f"{name} is {value!r}; allowed: {others}, because the job is deterministic"
    with pytest.raises(InvalidArgument, match=r"^deterministic is 'yes'; allowed: no, because the job is partial"):
        resolve(Options(policy="full", deterministic=True), {})


@pytest.mark.parametrize(
    "pair", ["deterministic=yes", "algorithm=ring", "policy_seed=3", "incast", "speed=3", "=3", "Incast=3"]
)
def test_changes__refused_and_named(pair: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        changes(["incast=2", pair])
    assert repr(pair) in str(caught.value) and "congestion, hadamard, incast" in caught.value.allowed
    name = pair.partition("=")[0]
    assert (f"{name} cannot be changed" in caught.value.allowed) == (name in FIXED)


@pytest.mark.parametrize("text", ["300", "0.3", "3e2"])
def test_changes__a_duration_needs_its_unit(text: str) -> None:
    """Else `t_b=300` is five minutes to us, and 300 ms to whoever typed it."""
    with pytest.raises(InvalidArgument) as caught:
        changes([f"t_b={text}"])
    assert str(caught.value) == f"t_b is {text!r}; allowed: a duration with its unit, such as '{text}ms' or '{text}s'"


def test_words__say_every_option_so_that_it_can_be_read_again() -> None:
    said = {"algorithm": 3, "congestion": 2, "hadamard": 2, "incast": 0, "early_percent": 7}
    said |= {"t_b_ns": OFF, "t_c_ns": 1_500_000, "delay_target_ns": 0, "timer_start": 2}
    said |= {"policy": 1, "quorum": 0, "probes": 3, "tau": 9, "eta": 0, "policy_seed": 2**63}
    said |= {"stragglers": 0, "children": 0, "code": 1, "exact": 1, "split": 3, "deterministic": 1}
    told = words(message(said))
    assert told["t_c"] == "1.5ms" and told["t_b"] == "off" and told["incast"] == "dynamic"
    assert told["quorum"] == told["eta"] == "auto" and told["probes"] == "3" and told["policy_seed"] == str(2**63)
    assert resolve(Options(**told), {}) == said
    unsaid = words(types_pb2.JobOptions())
    assert unsaid["policy"] == "none" and unsaid["early_percent"] == "10", "an older daemon says less"


def test_numbers__are_those_of_the_messages_and_of_the_core() -> None:
    enums = {"algorithm": types_pb2.Algorithm, "congestion": types_pb2.Congestion, "hadamard": types_pb2.Hadamard}
    enums |= {"policy": types_pb2.Policy, "timer_start": types_pb2.TimerStart}
    prefixes = {"algorithm": "", "congestion": "CC_", "hadamard": "HADAMARD_", "policy": "POLICY_"}
    prefixes["timer_start"] = "TIMER_"
    for row in TABLE:
        assert row.field in types_pb2.JobOptions.DESCRIPTOR.fields_by_name
        if row.name in enums:
            for name, number in enums[row.name].items():
                if number:
                    word = name.removeprefix(row.name.upper() + "_")
                    assert row.read(word.lower(), "") == number
                    assert getattr(lib, f"UT_{prefixes[row.name]}{word}") == number
    assert set(types_pb2.JobOptions.DESCRIPTOR.fields_by_name) == {row.field for row in TABLE}


def test_job__says_what_is_in_force() -> None:
    with FakeDaemon(4) as daemon, daemon.connect(options=Options(incast=3, hadamard="on")) as job:
        assert job.options["incast"] == "3" and job.options["hadamard"] == "on" and job.options["algorithm"] == "tar"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the daemon of a job "train" is told; it has a hadamard of off and an incast of 0 before."""
    told: list[Any] = []
    before = message({"algorithm": 1, "congestion": 1, "hadamard": 1, "incast": 0, "early_percent": 10})

    def tune(socket: str, job: str, said: dict[str, int]) -> types_pb2.JobOptions:
        told.append((socket, job, said))
        after = types_pb2.JobOptions()
        after.CopyFrom(before)
        after.MergeFrom(message(said))
        return after

    def get_status(socket: str, job: str) -> admin_pb2.GetStatusResponse:
        return admin_pb2.GetStatusResponse(jobs=[admin_pb2.JobStatus(job=job, options=before)])

    monkeypatch.setattr("ultima.admin.calls.tune", tune)
    monkeypatch.setattr("ultima.admin.calls.get_status", get_status)
    return told


def test_set__sends_only_what_was_named_and_tells_the_change(asked: list[Any]) -> None:
    words = ["set", "train", "incast=2", "hadamard=auto", "--socket", "/tmp/x.sock"]
    result = CliRunner().invoke(main.build(), words)
    assert result.exit_code == 0, result.output
    assert asked == [("/tmp/x.sock", "train", {"incast": 2, "hadamard": 3})]
    assert result.output == "train: hadamard is auto now, it was off\ntrain: incast is 2 now, it was dynamic\n"


def test_set__what_was_so_already(asked: list[Any]) -> None:
    result = CliRunner().invoke(main.build(), ["set", "train", "incast=dynamic", "--socket", "/tmp/x.sock"])
    assert result.output == "train: nothing changed: incast is dynamic already\n"


def test_set__json(asked: list[Any]) -> None:
    result = CliRunner().invoke(main.build(), ["set", "train", "incast=2", "--json", "--socket", "/tmp/x.sock"])
    told = json.loads(result.output)
    assert told["schema"] == 2 and told["changed"] == {"incast": {"before": "dynamic", "after": "2"}}
    assert told["job"] == "train" and told["options"]["algorithm"] == "tar"


@pytest.mark.parametrize("words", [["set", "train", "incast=99"], ["set", "train", "algorithm=ring"]])
def test_set__asked_wrongly_is_status_2(words: list[str]) -> None:
    result = CliRunner().invoke(main.build(), words)
    assert result.exit_code == main.EXIT_USAGE, result.output
    assert words[2] in result.output or "incast" in result.output


def test_set__no_daemon_is_status_3(tmp_path: Any) -> None:
    words = ["set", "train", "incast=2", "--socket", str(tmp_path / "none.sock")]
    assert CliRunner().invoke(main.build(), words).exit_code == main.EXIT_NO_DAEMON
