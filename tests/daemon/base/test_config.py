# SPDX-License-Identifier: Apache-2.0
"""Options: which source wins, and that whatever is wrong is named in one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ultima.daemon.base.config import DaemonConfig, load
from ultima.daemon.base.errors import StartupError
from ultima.daemon.base.written import shown_bytes
from ultima.daemon.process.server import engine_configs

NO_FILE = Path("/nonexistent/ultimad.toml")
EXAMPLE = Path(__file__).resolve().parents[3] / "deploy/ultimad.toml"


def loaded(folder: Path, text: str, environment: Mapping[str, str] | None = None, **flags: object) -> DaemonConfig:
    file = folder / "c.toml"
    file.write_text(text)
    return load({"config": str(file), **flags}, environment or {}, NO_FILE)


def test_load__defaults() -> None:
    config = load({}, {}, NO_FILE)
    assert (str(config.runtime_dir), config.bind, config.port) == ("/run/ultima", "", 29520)
    assert config.socket == Path("/run/ultima/ultimad.sock")
    assert config.attach_socket == Path("/run/ultima/attach.sock")
    assert not config.insecure and config.address == ""
    assert [(e.data_port, e.feedback_port) for e in engine_configs(config)] == [(29521, 29522), (29523, 29524)]


def test_load__each_source_beats_the_one_before(tmp_path: Path) -> None:
    text = 'port = 1000\nlog_level = "error"\n[limits]\njobs = 3\nsessions = 5\n[engine]\ngso = false\n'
    environment = {"ULTIMAD_PORT": "2000", "ULTIMAD_LIMITS_JOBS": "4", "ULTIMAD_ALLOW_UIDS": "7,8", "PATH": "x"}
    config = loaded(tmp_path, text, environment, port="3000")
    assert config.port == 3000
    assert (config.limits.jobs, config.limits.sessions) == (4, 5)
    assert config.log_level == "error" and not config.engine.gso and config.engine.gro
    assert config.allow_uids == [7, 8]
    assert loaded(tmp_path, text, environment).port == 2000
    assert loaded(tmp_path, text).port == 1000


def test_load__file_named_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("port = 77\n")
    assert load({}, {"ULTIMAD_CONFIG": str(tmp_path / "e.toml")}, NO_FILE).port == 77
    assert load({}, {}, tmp_path / "e.toml").port == 77


def test_load__sizes(tmp_path: Path) -> None:
    rows = [('"64K"', 65536), ('"2m"', 2 << 20), ('"3GiB"', 3 << 30), ("70000", 70000), ('"5000 "', 5000)]
    for text, expected in rows:
        assert loaded(tmp_path, f"[limits]\narena_bytes = {text}\n").limits.arena_bytes == expected, text


def test_limits__what_one_user_may_have(tmp_path: Path) -> None:
    defaults = load({}, {}, NO_FILE).limits
    names = ("jobs", "sessions", "attaching", "memory_bytes")
    assert [defaults.share(name) for name in names] == [12, 48, 48, 24 << 30]
    text = "[limits]\njobs = 3\nsessions = 5\nsessions_per_uid = 2\nmemory_bytes = 1048577\n"
    small_config = loaded(tmp_path, text)
    small = small_config.limits
    assert [small.share(name) for name in names] == [3, 2, 48, 1048577 - 262144]
    shown = small_config.limits_in_force()
    assert (shown["limits.jobs_per_uid"], shown["limits.sessions_per_uid"]) == (3, 2)
    assert shown["limits.memory_bytes_per_job"] == shown["limits.memory_bytes_per_uid"] == 1048577 - 262144


def test_shown_bytes() -> None:
    rows = {0: "0", 16383: "16383", 16384: "16K", (1 << 30) - 1: "1023M", 40 << 30: "40G", 1 << 50: "1024T"}
    for value, text in rows.items():
        assert shown_bytes(value) == text


def test_load__ports_of_the_engine(tmp_path: Path) -> None:
    for text, ports in (
        ("port = 0", [(0, 0), (0, 0)]),
        ("port = 50\n[engine]\nfeedback_port = 9\n", [(51, 9), (53, 11)]),
        ("port = 50\n[engine]\nlanes = 1\n", [(51, 52)]),
        ("port = 50\n[engine]\nlanes = 3\ndata_port = 70\n", [(70, 52), (72, 54), (74, 56)]),
    ):
        assert [(e.data_port, e.feedback_port) for e in engine_configs(loaded(tmp_path, text))] == ports, text


BAD = [
    ("port = 99999", "port = 99999: allowed: at most 65533"),
    ("port = -1", "port = -1: allowed: at least 0"),
    ("port = 1.5", "port = 1.5: allowed: a whole number"),
    ('insecure = "perhaps"', "insecure = 'perhaps': allowed: true or false"),
    ("log_level = []", "log_level = []: allowed: 'debug'"),
    ("runtime_dir = 7", "runtime_dir = 7: allowed: a path"),
    ("port = true", "port = True: allowed: a number"),
    ('port = "x"', "port = 'x': allowed: a whole number"),
    ("prot = 1", "prot: unknown key; allowed: advertise,"),
    ("[limits]\njobs = 17", "limits.jobs = 17: allowed: at most 16"),
    ("[limits]\nnope = 1", "limits.nope: unknown key; allowed: arena_bytes,"),
    ("[nope]\nx = 1", "nope: unknown key"),
    ("limits = 3", "limits = 3: allowed: a table"),
    ('[limits]\narena_bytes = "lots"', "limits.arena_bytes = 'lots': allowed: bytes as a number"),
    ('log_level = "loud"', "log_level = 'loud': allowed: 'debug', 'info', 'warning' or 'error'"),
    ('bind = "localhost"', "bind = 'localhost': allowed: a numeric IPv4 or IPv6 address"),
    (
        'bind = "10.0.0.1"',
        "bind = '10.0.0.1': peers must be authenticated: set tls.certificate, tls.key and tls.authority",
    ),
    (
        'bind = "127.0.0.1"',
        "bind = '127.0.0.1': peers must be authenticated: set tls.certificate, tls.key and tls.authority",
    ),
    ('bind = "::"', "--insecure does without, on a network of your own"),
    ('tls.key = "k"\ntls.certificate = "c"', "tls.certificate = 'c': needs tls.authority as well"),
    ('insecure = true\n[tls]\nkey = "k"', "insecure = True: not together with tls.key: leave out one of the two"),
    ('[tls]\njob_secret = "s"\nkey = "k"', "tls.job_secret = 's': not together with tls.key"),
    ('[tls]\njob_secret = "s"\nnode = "A.b"', "tls.node = 'A.b': allowed: one label of small letters"),
    ('[tls]\nnode = "a"', "tls.node = 'a': allowed only with tls.job_secret"),
    ('advertise = "10.0.0.1"', "advertise = '10.0.0.1': allowed only with `bind`"),
    ('bind = "0.0.0.0"\ninsecure = true\nadvertise = "::1"', "advertise = '::1': allowed: a host's address"),
    ('allow_group = "no-such-group"', "allow_group = 'no-such-group': allowed: a group of this machine"),
    ("allow_uids = [true]", "allow_uids = [True]: allowed: a number"),
    ("[engine]\npacket_bytes = 1473", "engine.packet_bytes = 1473: allowed: 0, or 96 to 9216"),
    ("[engine]\ndscp = 'CS8'", "engine.dscp = 'CS8': allowed: CS0, CS1, "),
    ("[engine]\ndscp = 64", "engine.dscp = 64: allowed: CS0, CS1, "),
    ("[engine]\ndscp = true", "engine.dscp = True: allowed: CS0, CS1, "),
    (
        "[engine]\nrate_bytes_per_s = 80",
        "engine.rate_bytes_per_s = 80: allowed: 0, or 65536 or more: bytes per second, not Mbit/s",
    ),
    ("[engine]\nrate_bytes_per_s = -1", "engine.rate_bytes_per_s = -1: allowed: at least 0"),
    ('[engine]\nrate_bytes_per_s = "80 Mbit"', "engine.rate_bytes_per_s = '80 Mbit': allowed: bytes as a number"),
    ("[engine]\nlanes = 0", "engine.lanes = 0: allowed: at least 1"),
    ("[engine]\nlanes = 5", "engine.lanes = 5: allowed: at most 4"),
    ("[engine]\nlanes = 2\ndata_port = 40\nfeedback_port = 42", "engine.lanes = 2: needs UDP ports 40, 42, 42, 44"),
    ("port = 65533\n[engine]\nlanes = 2", "allowed: different ones, up to 65535"),
    ("port = ", "not TOML: Invalid value (at "),
    ("port = 1\nport = 2", "not TOML: Cannot overwrite a value"),
]


@pytest.mark.parametrize(
    ("said", "number"),
    [("''", 0), ("'CS0'", 0), ("'cs1'", 8), ("'AF11'", 10), ("'AF43'", 38), ("'EF'", 46), ("'LE'", 1), ("63", 63)],
)
def test_load__dscp_by_name_or_number(tmp_path: Path, said: str, number: int) -> None:
    config = loaded(tmp_path, f"[engine]\ndscp = {said}")
    assert config.engine.dscp_number == number
    assert [engine.dscp for engine in engine_configs(config)] == [number, number]


@pytest.mark.parametrize(("text", "names"), BAD, ids=range(len(BAD)))
def test_load__wrong_is_named_in_one_line(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(StartupError) as caught:
        loaded(tmp_path, text)
    assert names in str(caught.value) and str(tmp_path / "c.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load__everything_wrong_is_named_with_its_source(tmp_path: Path) -> None:
    environment = {"ULTIMAD_LIMITS_JOBS": "many", "ULTIMAD_PROT": "1"}
    with pytest.raises(StartupError) as caught:
        loaded(tmp_path, 'log_level = "loud"\n', environment, port="x")
    sentences = str(caught.value).split("; ")
    for start in (
        "ULTIMAD_PROT: unknown variable",
        "ULTIMAD_LIMITS_JOBS: limits.jobs = 'many'",
        "--port: port = 'x'",
        f"{tmp_path / 'c.toml'}: log_level = 'loud'",
    ):
        assert any(sentence.startswith(start) for sentence in sentences), (start, sentences)


def test_load__unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"none\.toml: No such file"):
        load({"config": str(tmp_path / "none.toml")}, {}, NO_FILE)
    with pytest.raises(StartupError, match="Is a directory"):
        load({"config": str(tmp_path)}, {}, NO_FILE)
    (tmp_path / "b.toml").write_bytes(b"\xff\xff")
    with pytest.raises(StartupError, match="not UTF-8"):
        load({"config": str(tmp_path / "b.toml")}, {}, NO_FILE)


def test_load__insecure_allows_any_address() -> None:
    config = load({"bind": "10.1.2.3", "insecure": True}, {}, NO_FILE)
    assert config.address == "10.1.2.3"
    assert load({"bind": "::", "insecure": True}, {}, NO_FILE).address == ""
    assert load({"bind": "::1", "insecure": True}, {}, NO_FILE).address == "::1"
    assert load({"bind": ""}, {}, NO_FILE).address == ""


def test_example__is_the_defaults_with_one_exception() -> None:
    """The shipped file shows every key, commented out at its default, and sets the group that the unit's user has."""
    shown = EXAMPLE.read_text()
    live = "\n".join(line.removeprefix("#: ") for line in shown.splitlines())
    live = live.replace('allow_group = "ultima"', 'allow_group = ""')
    file = EXAMPLE.parent / "ultimad.toml"
    assert file == EXAMPLE
    import tomllib

    tree = tomllib.loads(live)
    defaults = load({}, {}, NO_FILE)
    assert DaemonConfig.model_validate(tree) == defaults
    assert set(tree) == set(DaemonConfig.model_fields)
    assert set(tree["limits"]) == set(type(defaults.limits).model_fields)
    assert set(tree["tls"]) == set(type(defaults.tls).model_fields)
    assert set(tree["engine"]) == set(type(defaults.engine).model_fields)
