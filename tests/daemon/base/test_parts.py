# SPDX-License-Identifier: Apache-2.0
"""The small parts of the daemon, each alone."""

from __future__ import annotations

import ast
import os
import socket
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from ultima.daemon.base import errors
from ultima.daemon.base.config import Limits
from ultima.daemon.engine.engine import NEVER, Event, EventKind, Status
from ultima.daemon.hosts import membership
from ultima.daemon.hosts.host import Host, Membership, State, address_of_peer, order, split_target, target
from ultima.daemon.observe.progress import GRACE_NS, judge
from ultima.daemon.observe.stats import RECENT_OPS, OpStats
from ultima.daemon.process import sdnotify
from ultima.daemon.trainers.budget import Budget, check_share

DAEMON = Path(errors.__file__).parents[1]


# ---- who may import what ----


def test_imports__only_engine_touches_the_extension() -> None:
    """C memory is touched in one file, so that the rest of the daemon can be wrong only in ways that Python shows."""
    guilty = {path.name for path in DAEMON.rglob("*.py") if "_native" in imported(path)}
    assert guilty == {"engine.py"}


def test_imports__nothing_of_the_client_nor_heavy() -> None:
    """The daemon is to stay small while idle, and the client is for trainers' processes."""
    for path in DAEMON.rglob("*.py"):
        for name in imported(path):
            assert not name.startswith(("numpy", "torch", "typer", "rich", "pydantic_settings")), (path, name)
        for module in modules(path):
            assert not module.startswith("ultima.") or module.startswith(
                ("ultima.daemon", "ultima.v1", "ultima._native")
            )


def modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def imported(path: Path) -> set[str]:
    return {module.removeprefix("ultima.") for module in modules(path)}


# ---- errors ----


def test_errors__every_kind_has_a_status() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Refused)}
    assert kinds - {errors.Refused} == set(errors.STATUS)
    assert len(set(errors.STATUS.values())) == len(errors.STATUS)


def test_errors__from_engine() -> None:
    rows = [("ARGUMENT", errors.InvalidArgument), ("FULL", errors.ResourceExhausted), ("", errors.Internal)]
    for name, kind in rows:
        error = errors.from_engine(name, "job_add", "because")
        assert type(error) is kind and str(error) == "job_add: because"


def test_errors__from_rpc_keeps_the_kind() -> None:
    for kind, status in errors.STATUS.items():
        rpc = grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), details="rank 3 says 4")
        error = errors.from_rpc(rpc, "rendezvous a:1")
        assert type(error) is kind and str(error) == "rendezvous a:1: rank 3 says 4"
    odd = grpc.aio.AioRpcError(grpc.StatusCode.DATA_LOSS, grpc.aio.Metadata(), grpc.aio.Metadata())
    assert type(errors.from_rpc(odd, "x")) is errors.Internal


# ---- progress ----


@pytest.mark.parametrize(
    ("opened", "deadline", "well"),
    [
        (NEVER, NEVER, True),
        (5 * GRACE_NS, NEVER, True),
        (5 * GRACE_NS, 20 * GRACE_NS, True),
        (5 * GRACE_NS, 9 * GRACE_NS, True),
        (5 * GRACE_NS, 9 * GRACE_NS - 1, False),
        (0, 0, False),
    ],
)
def test_judge(opened: int, deadline: int, well: bool) -> None:
    verdict = judge(10 * GRACE_NS, {"oldest_open_ns": opened, "oldest_deadline_ns": deadline})
    assert verdict.well is well and verdict.reason


# ---- stats ----


def done(status: int = Status.COMPLETE, elapsed_us: int = 0, missing: int = 0) -> Event:
    return Event(int(EventKind.OP_DONE), 0, 0, 0, 0, status, elapsed_us * 1000, missing)


def test_op_stats__percentiles_of_the_recent_ops() -> None:
    stats = OpStats()
    assert stats.percentile_us(50) == stats.percentile_us(99) == 0
    stats.op_done(done(elapsed_us=7))
    assert stats.percentile_us(50) == stats.percentile_us(99) == 7
    for elapsed in range(1, RECENT_OPS + 1):
        stats.op_done(done(elapsed_us=elapsed))
    assert (stats.percentile_us(50), stats.percentile_us(99)) == (512, 1014)
    assert stats.count[Status.COMPLETE] == RECENT_OPS + 1


def test_op_stats__status_from_a_newer_engine_is_not_counted() -> None:
    stats = OpStats()
    stats.op_done(done(status=9))
    stats.op_done(done(status=Status.PARTIAL, missing=5))
    assert stats.count == {1: 0, 2: 1, 3: 0, 4: 0} and stats.missing_bytes == 5


# ---- budget ----


def test_budget__refuses_without_debiting() -> None:
    limits = Limits.model_validate(
        {"memory_bytes": 4 << 20, "memory_bytes_per_uid": 3 << 20, "memory_bytes_per_job": 2 << 20}
    )
    budget = Budget(limits)
    budget.take(1, 3 << 20)
    for uid, size, names in ((1, 1, "memory_bytes_per_uid = 3145728"), (2, (1 << 20) + 1, "memory_bytes = 4194304")):
        with pytest.raises(errors.ResourceExhausted, match=names):
            budget.take(uid, size)
    budget.take(2, 1 << 20)
    budget.take_job("j", 2 << 20)
    text = r"per_job = 2097152: 1 bytes asked for job 'j', which holds 2097152; 0 are left: allowed: a smaller arena"
    with pytest.raises(errors.ResourceExhausted, match=text):
        budget.take_job("j", 1)
    budget.give_back_job("j", 2 << 20)
    budget.give_back(1, 3 << 20)
    budget.give_back(2, 1 << 20)
    assert (budget.used, dict(budget.used_by_uid), dict(budget.used_by_job)) == (0, {}, {})


def test_budget__engine_memory_is_its_owners() -> None:
    limits = Limits.model_validate({"memory_bytes": 4 << 20, "memory_bytes_per_job": 2 << 20})
    budget = Budget(limits)
    budget.take(7, 1 << 20)
    budget.take_engine(7, "j", 2 << 20, 1000)
    assert (budget.used, budget.used_by_uid[7], budget.used_by_job["j"]) == (3 << 20, 3 << 20, 2 << 20)
    way_out = r"1 bytes asked for {}, .*; 0 are left: allowed: a smaller bucket_bytes_max \(ULTIMA_BUCKET_MAX\) than 9"
    for uid, job, whose in ((7, "k", "uid 7"), (8, "j", "job 'j'")):
        with pytest.raises(errors.ResourceExhausted, match=way_out.format(whose)):
            budget.take_engine(uid, job, 1, 9)
    budget.take(8, 1 << 20)
    with pytest.raises(errors.ResourceExhausted, match=r"^limits.memory_bytes = 4194304: .* for this daemon"):
        budget.take_engine(9, "k", 1, 9)
    budget.give_back_engine(7, "j", 2 << 20)
    for uid in (7, 8):
        budget.give_back(uid, 1 << 20)
    assert (budget.used, dict(budget.used_by_uid), dict(budget.used_by_job)) == (0, {}, {})


def test_check_share__of_all_and_of_one_user() -> None:
    limits = Limits.model_validate({"jobs": 8})
    check_share("jobs", limits, [1] * 5 + [2], 1, "jobs are here")
    with pytest.raises(
        errors.ResourceExhausted, match=r"^limits.jobs_per_uid = 6: of uid 1, that many jobs are here already"
    ):
        check_share("jobs", limits, [1] * 6 + [2], 1, "jobs are here")
    check_share("jobs", limits, [1] * 6 + [2], 2, "jobs are here")
    with pytest.raises(errors.ResourceExhausted, match=r"^limits.jobs = 8: that many jobs are here already"):
        check_share("jobs", limits, [1] * 6 + [2] * 2, 2, "jobs are here")


# ---- hosts ----


def test_split_target__table() -> None:
    good = {
        "a:1": ("a", 1),
        "10.0.0.1:65535": ("10.0.0.1", 65535),
        "[::1]:29520": ("::1", 29520),
        "node-1.x_y:5": ("node-1.x_y", 5),
    }
    for text, expected in good.items():
        assert split_target(text) == expected
        assert target(*expected) == text
    for text in (
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "::1:5",
        "[::1]",
        "[a]:1",
        "[zz::]:1",
        "a b:1",
        "a:1 ",
        "unix:/x",
    ):
        with pytest.raises(ValueError):
            split_target(text)


def test_address_of_peer__table() -> None:
    rows = {
        "ipv4:10.1.2.3:555": "10.1.2.3",
        "ipv6:%5B::1%5D:555": "::1",
        "ipv6:[fe80::1]:555": "fe80::1",
        "unix:": "",
        "nonsense": "",
    }
    for peer, expected in rows.items():
        assert address_of_peer(peer) == expected, peer


def test_host__survives_the_wire() -> None:
    host = Host(3, "10.0.0.1", 1, ((2, 3), (4, 5)), 2**62, (1, 5), 1472)
    message = host.to_proto(State.ABSENT)
    assert Host.from_proto(message) == host and message.state == State.ABSENT
    message.address = ""
    assert Host.from_proto(message, "10.9.9.9").address == "10.9.9.9"
    only = replace(host, index=0, ranks=(0, 1))
    whole = Membership(7, 2, 100, (only,), (State.UP,), 12, True)
    assert membership.membership(whole.to_proto(), 2, "") == whole


def test_order__by_lowest_rank() -> None:
    hosts = [Host(0, "a", 1, ((2, 3),), 4, ranks, 1472) for ranks in ((2, 9), (1, 3), (0,))]
    assert [(h.index, h.ranks) for h in order(hosts)] == [(0, (0,)), (1, (1, 3)), (2, (2, 9))]


# ---- systemd ----


def test_notify__without_a_socket_is_silent(tmp_path: Path) -> None:
    assert not sdnotify.notify("READY=1", {})
    assert not sdnotify.notify("READY=1", {"NOTIFY_SOCKET": "relative"})
    assert not sdnotify.notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "none")})


@pytest.mark.parametrize("prefix", ["/", "@"])
def test_notify__arrives(folder: Path, prefix: str) -> None:
    name = str(folder / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name if prefix == "/" else "\0" + name)
        assert sdnotify.notify("READY=1\nSTATUS=x", {"NOTIFY_SOCKET": name if prefix == "/" else "@" + name})
        assert listener.recv(100) == b"READY=1\nSTATUS=x"


def test_watchdog_period__table() -> None:
    rows = [
        ({}, None),
        ({"WATCHDOG_USEC": "10000000"}, 5.0),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 1.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
    ]
    for environment, expected in rows:
        assert sdnotify.watchdog_period(environment) == expected, environment
