# SPDX-License-Identifier: Apache-2.0
"""Daemons with certificates, or with a job's secret: jobs run, and belong to somebody."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, eventually, rendezvous, status, wired
from tests.daemon.trust.papers import Authority, papers
from tests.daemon.trust.secure import SECRET, by_secret, channel, refused, secure, trust_in
from tests.e2e.hosts import free_port
from ultima.daemon.base.errors import StartupError
from ultima.daemon.hosts.host import Place
from ultima.daemon.trust import job_secret
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2
from ultima.v1.limits import WIRE_VERSION


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def test_job__forms_and_ends_among_daemons_with_certificates(house: House, authority: Authority) -> None:
    daemons = [await secure(house, authority, f"n{i}") for i in range(3)]
    await house.job(daemons)
    await eventually(lambda: wired(daemons), "paths between all")
    told = await status(daemons[1])
    assert [row.host.node for row in told.jobs[0].hosts] == ["n0", "n1", "n2"]
    assert (told.security.mode, told.security.cluster, told.security.node) == ("certificates", "lab", "n1")
    assert told.security.certificate_not_after_s > time.time() and told.security.warning == ""
    assert not told.insecure


async def test_job__with_a_secret(house: House, authority: Authority) -> None:
    """The right secret lets ranks in; each wrong one is refused, on whatever host it comes."""
    daemons = [await secure(house, authority, f"n{i}") for i in range(2)]
    await house.job(daemons, secret=SECRET)
    assert wired(daemons)
    for at, secret, words in ((0, b"", "has no secret"), (0, secrets.token_bytes(32), "has another secret")):
        trainer = await house.trainer(daemons[at])
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.join(1, 2, rendezvous=rendezvous(daemons[0]), secret=secret)
        refused(error.value, grpc.StatusCode.PERMISSION_DENIED, words)


@pytest.mark.parametrize("wrong", [b"", bytes(32)])
@pytest.mark.parametrize("first", [True, False])
async def test_job__rank_without_its_secret_is_kept_out(
    house: House, authority: Authority, wrong: bytes, first: bool
) -> None:
    """A stranger who claims rank 1 does not keep the real rank 1 out, whether he comes before rank 0 or after it."""
    daemons = [await secure(house, authority, f"n{i}") for i in range(3)]
    place = rendezvous(daemons[0])
    zero, one, stranger = [await house.trainer(daemon) for daemon in daemons]

    async def strange() -> str:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stranger.join(1, 2, rendezvous=place, secret=wrong)
        return f"{error.value.code().name}: {error.value.details()}"

    if first:
        refusal = asyncio.create_task(strange())
        await asyncio.sleep(0.3)
    ranks = asyncio.create_task(zero.join(0, 2, rendezvous=place, secret=SECRET))
    if not first:
        await eventually(lambda: bool(daemons[0].jobs.all()), "rank 0 is on its way")
        refusal = asyncio.create_task(strange())
    said = await refusal
    assert "secret" in said and ("PERMISSION_DENIED" in said or "FAILED_PRECONDITION" in said), said
    await asyncio.gather(ranks, one.join(1, 2, rendezvous=place, secret=SECRET))
    assert wired(daemons[:2])


async def test_secret__of_another_length_and_for_an_insecure_daemon(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await trainer.join(secret=b"short")
    refused(error.value, grpc.StatusCode.INVALID_ARGUMENT, "secret: 5 bytes: allowed: 32, or none")
    trainer = await house.trainer(daemon)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await trainer.join(secret=SECRET)
    refused(error.value, grpc.StatusCode.FAILED_PRECONDITION, "runs with --insecure and would not use it")


async def test_job__belongs_to_one_user_on_all_hosts(house: House, authority: Authority) -> None:
    """Among nodes that know each other a user who came later cannot slip a rank into another one's job."""
    daemons = [await secure(house, authority, f"n{i}", allow_uids=[1001]) for i in range(2)]
    config = daemons[1].config
    for path, mode in ((house.folder, 0o755), (config.runtime_dir, 0o755), (config.attach_socket, 0o666)):
        path.chmod(mode)  # everybody comes as far as the daemon's own checks
    zero, other = await house.trainer(daemons[0]), await house.trainer(daemons[1], uid=1001)
    waiting = asyncio.create_task(zero.join(0, 2, rendezvous=rendezvous(daemons[0])))
    await eventually(lambda: bool(daemons[0]._coordinator._forming), "rank 0 has registered first")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await other.join(1, 2, rendezvous=rendezvous(daemons[0]))
    refused(error.value, grpc.StatusCode.PERMISSION_DENIED, "belongs to uid 0", "is of uid 1001")
    one = await house.trainer(daemons[1])
    await asyncio.gather(waiting, one.join(1, 2, rendezvous=rendezvous(daemons[0])))


async def test_job_secret__is_all_that_daemons_need(house: House) -> None:
    daemons = [await by_secret(house, f"node-{i}", SECRET) for i in range(2)]
    await house.job(daemons, secret=SECRET)
    assert wired(daemons)
    told = (await status(daemons[0])).security
    assert (told.mode, told.node) == ("job secret", "node-0") and told.cluster.startswith("job-")
    assert SECRET.hex()[:16] not in told.cluster
    stranger = await house.trainer(await by_secret(house, "node-7", secrets.token_bytes(32)))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stranger.join(1, 2, rendezvous=rendezvous(daemons[0]), timeout=1.5)
    refused(error.value, grpc.StatusCode.DEADLINE_EXCEEDED, "give both hosts the same authorities", "job secret")


async def test_job_secret__its_own_certificate_is_renewed_long_before_it_ends(house: House) -> None:
    daemon = await by_secret(house, "node-0", SECRET)
    trust = daemon.trust
    assert trust is not None
    first = trust.identity
    trust.look(time.time() + 4 * 86400)
    assert trust.version == 1 and trust.identity.life.end > first.life.end
    assert trust.identity.authorities != b"" and trust.identity.cluster == first.cluster


@pytest.mark.parametrize("wrong", ["", "ab" * 31, "zz" * 32])
async def test_job_secret__that_is_none_keeps_the_daemon_from_starting(house: House, wrong: str) -> None:
    file: Path = house.folder / "secret"
    file.write_text(wrong)
    file.chmod(0o600)
    with pytest.raises(StartupError, match=r"tls.job_secret = '.*secret': holds no secret: allowed: 64 hexadecimal"):
        await house.daemon("d", tls={"ULTIMAD_TLS_JOB_SECRET": str(file)})


@pytest.mark.parametrize("secret", [b"", SECRET])
async def test_restore__by_the_nodes_of_a_job_brings_it_back(house: House, authority: Authority, secret: bytes) -> None:
    port = free_port()
    daemons = [await secure(house, authority, "n0", port=str(port)), await secure(house, authority, "n1")]
    trainers = await house.job(daemons, secret=secret)
    generation = daemons[1].jobs.all()[0].generation
    trainers[0].hang_up()
    daemons[0] = await house.restart(daemons[0])
    # A connection that met the port between two lives of the daemon is given up by gRPC after 20 s.
    told = lambda: daemons[0]._coordinator.record("job") is not None  # noqa: E731
    await eventually(told, "the other host tells of the job", 30.0)
    back = await house.trainer(daemons[0])
    await back.join(0, 2, rendezvous=rendezvous(daemons[0]), secret=secret)
    assert daemons[0].jobs.all()[0].generation == generation
    await eventually(lambda: wired(daemons), "they have found each other")


async def test_restore__of_a_coordinator_that_died_before_it_was_watched(house: House, authority: Authority) -> None:
    """The first watch may stand only when the coordinator lives again: then no break tells that it forgot the job."""
    port = free_port()
    daemons = [await secure(house, authority, "n0", port=str(port)), await secure(house, authority, "n1")]
    peers, begins = daemons[1]._peers, asyncio.Event()
    assert peers is not None
    watch_once = peers._watch_once

    async def late(place: Place, seconds: float) -> tuple[bool, str]:
        await begins.wait()
        return await watch_once(place, seconds)

    peers._watch_once = late  # type: ignore[method-assign]
    trainers = await house.job(daemons)
    trainers[0].hang_up()
    daemons[0] = await house.restart(daemons[0])
    assert daemons[0]._coordinator.record("job") is None
    begins.set()
    await eventually(lambda: daemons[0]._coordinator.record("job") is not None, "the other host tells of the job")


async def test_restore__by_one_who_does_not_know_the_secret_is_void(house: House, authority: Authority) -> None:
    """A node may tell of a job of its own with any name. The first rank that shows the job's secret ends that."""
    daemons = [await secure(house, authority, f"n{i}") for i in range(2)]
    zero, own = await house.trainer(daemons[0]), daemons[0]
    lanes = [types_pb2.Lane(data_port=7, feedback_port=8)]
    life = dict(grpc_port=own.grpc_port, address="127.0.0.1", lanes=lanes, packet_bytes=1472, wire_version=WIRE_VERSION)
    hosts = [
        types_pb2.Host(**life | fields, incarnation=5, state=types_pb2.HOST_STATE_UP)
        for fields in (dict(index=0, node="n0", ranks=[0]), dict(index=1, node="evil", ranks=[1], grpc_port=9))
    ]
    told = peer_pb2.RestoreRequest(
        job="job", world_size=2, bucket_bytes_max=1, lanes=1, generation=7, hosts=hosts, uid=0,
        proof=job_secret.prove(bytes(32), "job", 7, "evil", "n0"),
    )  # fmt: skip
    evil = trust_in(papers(house.folder, "evil", authority))
    async with channel(own, evil, "n0") as open_channel:
        await peer_pb2_grpc.PeerServiceStub(open_channel).Restore(told, timeout=5)  # type: ignore[no-untyped-call]
    assert own._coordinator.record("job") is not None
    one, place = await house.trainer(daemons[1]), rendezvous(own)
    joins = (zero.join(0, 2, rendezvous=place, secret=SECRET), one.join(1, 2, rendezvous=place, secret=SECRET))
    await asyncio.gather(*joins)
    assert wired(daemons) and own.jobs.all()[0].generation != 7


def test_proofs__are_for_one_call_of_one_pair_about_one_life() -> None:
    """Whatever is exchanged in one of them, it proves nothing."""
    right = (SECRET, "job", 7, "a", "b")
    proof = job_secret.prove(*right)
    assert job_secret.proves(SECRET, proof, *right[1:])
    back = job_secret.answer(SECRET, proof, *right[1:])
    assert job_secret.answers(SECRET, back, proof, *right[1:])
    assert not job_secret.proves(SECRET, back, *right[1:]), "an answer is no proof"
    assert not job_secret.answers(SECRET, proof, proof, *right[1:]), "a proof is no answer"
    for wrong in (("jo", 7, "a", "b"), ("job", 8, "a", "b"), ("job", 7, "b", "a"), ("job", 7, "a", "c")):
        assert not job_secret.proves(SECRET, proof, *wrong)
        assert not job_secret.answers(SECRET, back, proof, *wrong)
    # Fields do not run into each other.
    assert not job_secret.proves(SECRET, job_secret.prove(SECRET, "job", 7, "ab", "c"), "job", 7, "a", "bc")
    assert not job_secret.proves(bytes(32), proof, *right[1:])
    other = job_secret.prove(*right)
    assert other.nonce != proof.nonce and not job_secret.answers(SECRET, back, other, *right[1:])
    short = types_pb2.JobProof(nonce=b"", mac=proof.mac)
    assert not job_secret.proves(SECRET, short, *right[1:])
    assert not job_secret.proves(SECRET, types_pb2.JobProof(), *right[1:])
