# SPDX-License-Identifier: Apache-2.0
"""One user against the jobs of another on the same host: joins them, changes them, reads what they did."""

from __future__ import annotations

import asyncio
import os
import platform
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.conftest import folder, house  # noqa: F401
from tests.daemon.helpers import HOSTS_SECONDS, House, attach, engine, eventually, local_channel, proof, status
from tests.daemon.observe.test_recorder import raw_receipt
from ultima.daemon.process.server import Daemon
from ultima.daemon.trainers.users import TOKENS_PER_UID_MAX, UNTRUSTED_ROOT
from ultima.v1 import admin_pb2, admin_pb2_grpc, types_pb2

CODE = grpc.StatusCode
OWNER, OTHER = 65533, 65534
Metadata = tuple[tuple[str, str], ...]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() != "x86_64", reason="needs root, to act as two other users, on x86_64"
)


@pytest.fixture
async def daemon(house: House, folder: Path) -> Daemon:  # noqa: F811
    """Lets both users in, as a daemon does whose group they are members of."""
    daemon = await house.daemon(allow_uids=[OWNER, OTHER])
    open_to_all(daemon, folder)
    return daemon


def open_to_all(daemon: Daemon, folder: Path) -> None:  # noqa: F811
    """The sockets' permissions let everybody come as far as the daemon's own checks."""
    for path, mode in ((folder, 0o755), (daemon.config.runtime_dir, 0o755), (daemon.config.attach_socket, 0o666)):
        path.chmod(mode)


async def tune(daemon: Daemon, who: Metadata, job: str = "job") -> Any:
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.TuneRequest(job=job, options=types_pb2.JobOptions(incast=1))
        return await stub.Tune(request, timeout=HOSTS_SECONDS, metadata=who)


async def receipts(daemon: Daemon, who: Metadata, job: str = "job") -> Any:
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.GetReceiptsRequest(job=job)
        return await stub.GetReceipts(request, timeout=HOSTS_SECONDS, metadata=who)


async def refused(call: Any, code: grpc.StatusCode, *words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code, caught.value.details()
    for word in words:
        assert word in str(caught.value.details())


async def streams_of(stub: Any, name: str, daemon: Daemon, uid: int | None, count: int) -> list[Any]:
    """So many open streams of a user, each of which has told something."""
    opened = []
    for _ in range(count):
        who = await proof(daemon.config.attach_socket, uid)
        if name == "Watch":
            call = stub.Watch(admin_pb2.AdminServiceWatchRequest(interval_ms=200), metadata=who)
        else:
            call = stub.GetEvents(admin_pb2.GetEventsRequest(follow=True), metadata=who)
        await asyncio.wait_for(call.read(), HOSTS_SECONDS)
        opened.append(call)
    return opened


@pytest.mark.parametrize(("name", "most"), [("Watch", 4), ("GetEvents", 8)])
async def test_streams__one_user_leaves_room(daemon: Daemon, name: str, most: int) -> None:
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        opened = await streams_of(stub, name, daemon, OWNER, most)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await streams_of(stub, name, daemon, OWNER, 1)
        assert caught.value.code() is CODE.RESOURCE_EXHAUSTED and f"uid {OWNER} has {most}" in str(caught.value)
        opened += await streams_of(stub, name, daemon, OTHER, 1)
        opened.pop(0).cancel()
        for _ in range(100):  # what was taken is given back, as soon as the daemon hears of the hang-up
            try:
                opened += await streams_of(stub, name, daemon, OWNER, 1)
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)
        assert len(opened) == most + 1
        for call in opened:
            call.cancel()


FOREIGN = (f"job 'job' belongs to uid {OWNER}", f"this is uid {OTHER}", "use that user, or root")


async def test_join__of_another_users_job(house: House, daemon: Daemon) -> None:  # noqa: F811
    owner = await house.trainer(daemon, uid=OWNER)
    await owner.join()
    for rank in (0, 1):
        other = await house.trainer(daemon, uid=OTHER)
        await refused(other.join(rank, 2), CODE.PERMISSION_DENIED, *FOREIGN)
    assert [job.uid for job in daemon.jobs.all()] == [OWNER]
    assert list(daemon.jobs.all()[0].sessions) == [0]


async def test_join__of_another_users_job_that_forms(house: House, daemon: Daemon) -> None:  # noqa: F811
    first, second = await house.trainer(daemon, uid=OWNER), await house.trainer(daemon, uid=OWNER)
    joining = asyncio.ensure_future(first.join(0, 2))
    await eventually(lambda: bool(daemon.jobs.all()), "the job forms")
    other = await house.trainer(daemon, uid=OTHER)
    await refused(other.join(1, 2), CODE.PERMISSION_DENIED, *FOREIGN)
    await second.join(1, 2)
    await joining
    assert set(daemon.jobs.all()[0].sessions) == {0, 1}


async def test_join__root_may(house: House, daemon: Daemon) -> None:  # noqa: F811
    trainers = [await house.trainer(daemon, uid=OWNER), await house.trainer(daemon)]
    joins = [asyncio.ensure_future(trainers[0].join(0, 2))]
    await eventually(lambda: bool(daemon.jobs.all()), "the job forms")
    await asyncio.gather(*joins, trainers[1].join(1, 2))
    assert daemon.jobs.all()[0].uid == OWNER


async def test_join__the_name_is_free_when_its_owner_has_gone(house: House, daemon: Daemon) -> None:  # noqa: F811
    owner = await house.trainer(daemon, uid=OWNER)
    await owner.join()
    await owner.leave()
    other = await house.trainer(daemon, uid=OTHER)
    await other.join()
    assert [job.uid for job in daemon.jobs.all()] == [OTHER]


async def test_tune__of_another_users_job(house: House, daemon: Daemon) -> None:  # noqa: F811
    await (await house.trainer(daemon, uid=OWNER)).join()
    path = daemon.config.attach_socket
    await refused(tune(daemon, await proof(path, OTHER)), CODE.PERMISSION_DENIED, *FOREIGN)
    assert engine(daemon).jobs[0].tuned == []
    for uid in (OWNER, None):
        assert (await tune(daemon, await proof(path, uid))).options.incast == 1
    await refused(tune(daemon, await proof(path, OTHER), "nope"), CODE.NOT_FOUND, "'nope'")


async def test_receipts__of_another_users_job(house: House, daemon: Daemon) -> None:  # noqa: F811
    owner = await house.trainer(daemon, uid=OWNER)
    await owner.join()
    path, fake = daemon.config.attach_socket, engine(daemon)
    fake.jobs[0].receipts.append(raw_receipt(3))

    async def who_reads() -> None:
        await refused(receipts(daemon, await proof(path, OTHER)), CODE.PERMISSION_DENIED, *FOREIGN)
        await refused(receipts(daemon, await proof(path, OTHER), ""), CODE.NOT_FOUND)
        for uid in (OWNER, None):
            for job in ("job", ""):
                assert (await receipts(daemon, await proof(path, uid), job)).receipts[0].op_seq == 3

    await who_reads()
    await owner.leave()
    await eventually(lambda: not fake.jobs, "the job has ended")
    await who_reads()


async def test_token__is_needed_and_is_good_for_one_call(house: House, daemon: Daemon) -> None:  # noqa: F811
    await (await house.trainer(daemon, uid=OWNER)).join()
    for call in (tune, receipts):
        await refused(call(daemon, ()), CODE.UNAUTHENTICATED, "ultima-token: not in the metadata", '"who": true')
        for text in ("", "0" * 32, "é" * 9):
            await refused(call(daemon, (("ultima-token", text.encode().hex()),)), CODE.UNAUTHENTICATED, "unknown")
    who = await proof(daemon.config.attach_socket, OWNER)
    await tune(daemon, who)
    await refused(tune(daemon, who), CODE.UNAUTHENTICATED, "used")
    assert (await status(daemon)).jobs[0].job == "job", "the status is open to whoever may connect"


async def test_token__of_one_user_are_bounded(house: House, daemon: Daemon) -> None:  # noqa: F811
    path = daemon.config.attach_socket
    for _ in range(TOKENS_PER_UID_MAX):
        await proof(path, OTHER)
    connection, answer = await attach(path, {"v": 4, "who": True}, OTHER)
    connection.close()
    assert answer.reply["error"] == "RESOURCE_EXHAUSTED" and f"uid {OTHER}" in answer.reply["message"]
    assert len(daemon.tokens) == TOKENS_PER_UID_MAX
    await proof(path, OWNER)
    assert daemon.attach.trainers == 0, "who only asks for a token holds no memory"


async def test_token__is_not_for_who_may_not_attach(house: House, folder: Path) -> None:  # noqa: F811
    daemon = await house.daemon(allow_uids=[OWNER])
    open_to_all(daemon, folder)
    connection, answer = await attach(daemon.config.attach_socket, {"v": 4, "who": True}, OTHER)
    connection.close()
    assert answer.reply["error"] == "PERMISSION_DENIED" and len(daemon.tokens) == 0


async def test_root__of_a_container_is_a_user_like_any_other(house: House, folder: Path) -> None:  # noqa: F811
    """Without user namespaces it is uid 0 to the kernel; it still has jobs of its own."""
    daemon = await house.daemon(allow_uids=[OWNER], root_is_trusted=False)
    open_to_all(daemon, folder)
    await (await house.trainer(daemon, uid=OWNER)).join()
    path = daemon.config.attach_socket
    foreign = (f"job 'job' belongs to uid {OWNER}", f"this is uid {UNTRUSTED_ROOT}")
    for call in (tune, receipts):
        await refused(call(daemon, await proof(path)), CODE.PERMISSION_DENIED, *foreign)
    root = await house.trainer(daemon)
    await refused(root.join(), CODE.PERMISSION_DENIED, *foreign)
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.SetLogLevelRequest(level="error")
        await refused(stub.SetLogLevel(request, metadata=await proof(path)), CODE.PERMISSION_DENIED, "the log is")
    root.hang_up()
    await (await house.trainer(daemon)).join(job="roots")
    assert {job.name: job.uid for job in daemon.jobs.all()} == {"job": OWNER, "roots": UNTRUSTED_ROOT}
