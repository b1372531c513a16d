# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: what it copies from the engine, keeps of jobs that ended, and answers to GetReceipts."""

from typing import Any

import grpc
import pytest

from tests.daemon.helpers import House, eventually, local_channel, proof
from tests.daemon.jobs.test_jobs import CODE, engine
from ultima._native import ffi
from ultima.daemon.engine.engine import EventKind
from ultima.daemon.engine.records import to_proto
from ultima.daemon.observe.recorder import ENDED_MAX, Recorder, selected
from ultima.daemon.process.server import Daemon
from ultima.v1 import admin_pb2, admin_pb2_grpc, records_pb2


def raw_receipt(op_seq: int, hosts: int = 2) -> Any:
    """A struct ut_receipt: every field of the message, and 64 rows of which `hosts` are in use."""
    numbers = {field.name: number for number, field in enumerate(records_pb2.OpReceipt.DESCRIPTOR.fields, 1)}
    fields: dict[str, Any] = numbers | {"op_seq": op_seq, "hosts": hosts, "digest": 2**64 - 1, "portion": 0}
    fields |= {"stage_end": [1, 2], "stage_ns": [10, 20], "t_c_us": [3, 4]}
    row = {field.name: number for number, field in enumerate(records_pb2.OpReceiptPeer.DESCRIPTOR.fields, 1)}
    fields["peer"] = [row | {"expected": [host, 5], "missing": [6, 7]} for host in range(64)]
    return ffi.new("ut_receipt *", fields)


async def receipts(daemon: Daemon, job: str = "", op_seq: int | None = None) -> admin_pb2.GetReceiptsResponse:
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        who = await proof(daemon.config.attach_socket)
        request = admin_pb2.GetReceiptsRequest(job=job, op_seq=op_seq)
        return await stub.GetReceipts(request, timeout=20, metadata=who)


def test_to_proto__every_field() -> None:
    raw = raw_receipt(9)
    message = to_proto(raw)
    assert len(message.peer) == 2
    for field in message.DESCRIPTOR.fields:
        if field.name != "peer":
            value = getattr(raw, field.name)
            assert getattr(message, field.name) == (list(value) if field.is_repeated else value), field.name
    assert [list(row.expected) for row in message.peer] == [[0, 5], [1, 5]]
    assert list(message.peer[1].missing) == [6, 7] and message.peer[1].drops == raw.peer[1].drops


def test_ended__the_newest_jobs_are_kept() -> None:
    recorder = Recorder(engine=None)  # type: ignore[arg-type]
    assert recorder.ended("", 7) is None
    recorder.job_ends(admin_pb2.GetReceiptsResponse(job="nothing", receipts=[]), 7)
    for number in range(ENDED_MAX + 2):
        record = admin_pb2.GetReceiptsResponse(
            job=f"job-{number}", running=True, receipts=[to_proto(raw_receipt(number))]
        )
        recorder.job_ends(record, 7)
    assert recorder.ended("nothing", 7) is None and recorder.ended("job-1", 7) is None
    last, oldest = recorder.ended("", 7), recorder.ended("job-2", 7)
    assert last is not None and last.job == f"job-{ENDED_MAX + 1}" and not last.running
    assert oldest is not None and selected(oldest, 2).receipts[0].op_seq == 2


def test_ended__one_user_does_not_wash_away_what_others_have() -> None:
    recorder = Recorder(engine=None)  # type: ignore[arg-type]
    mine = [(7, "a"), (7, "b")]
    for uid, name in [*mine, *((8, f"flood-{number}") for number in range(3 * ENDED_MAX)), (8, "a")]:
        recorder.job_ends(admin_pb2.GetReceiptsResponse(job=name, receipts=[to_proto(raw_receipt(uid))]), uid)
    for uid, name in mine:
        record = recorder.ended(name, uid)
        assert record is not None and record.receipts[0].op_seq == uid
    theirs = recorder.ended("a", 8)
    assert theirs is not None and theirs.receipts[0].op_seq == 8, "each user has jobs of this name"
    assert recorder.ended("b", 8) is None and recorder.owners("b") == [7] and recorder.owners("a") == [8, 7]
    newest = recorder.ended("", 7)
    assert newest is not None and newest.job == "b"


async def test_get_receipts__running_and_ended(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    trainers = await house.job(daemons)
    fake = engine(daemons[0])
    for op_seq in range(5):
        fake.jobs[0].receipts.append(raw_receipt(op_seq))
    newest = await receipts(daemons[0])
    assert newest.running and newest.world_size == 2
    assert [list(host.ranks) for host in newest.hosts] == [[0], [1]]
    assert [receipt.op_seq for receipt in newest.receipts] == [4]
    assert [receipt.op_seq for receipt in (await receipts(daemons[0], newest.job, 2)).receipts] == [2]
    for job, op_seq in (("", 5), ("nope", None)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await receipts(daemons[0], job, op_seq)
        assert caught.value.code() is CODE.NOT_FOUND
    assert newest.job
    for trainer in trainers:
        await trainer.leave()
    await eventually(lambda: not fake.jobs, "the job has ended")
    ended = await receipts(daemons[0], newest.job, 3)
    assert not ended.running and [receipt.op_seq for receipt in ended.receipts] == [3]


async def test_status__replicas_that_differ(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    fake = engine(daemons[0])
    for op_seq in (7, 9):
        fake.emit(EventKind.DIVERGED, 0, op_seq=op_seq, a=2, b=2)
    await eventually(lambda: fake.events_waiting == 0, "events are drained")
    async with local_channel(daemons[0].config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        answer = await stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=20)
    assert (answer.jobs[0].ops_diverged_count, answer.jobs[0].last_diverged_op_seq) == (2, 9)
