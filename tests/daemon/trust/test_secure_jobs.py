# SPDX-License-Identifier: Apache-2.0
"""Daemons with certificates: jobs run, and who is not who he says is refused."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc.experimental import session_cache

from tests.daemon.helpers import House, eventually, peer, rendezvous, status, wired
from tests.daemon.trust.papers import Authority, Papers, papers
from tests.e2e.hosts import free_port
from ultima.daemon.base.errors import StartupError
from ultima.daemon.hosts import peers
from ultima.daemon.process.server import Daemon
from ultima.daemon.trust import job_secret
from ultima.daemon.trust import trust as trust_module
from ultima.daemon.trust.trust import Trust
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2
from ultima.v1.limits import WIRE_VERSION

SECRET = bytes(range(32))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def secure(house: House, authority: Authority, node: str, **flags: object) -> Daemon:
    """A daemon on a node of its own."""
    return await house.daemon(node, tls=papers(house.folder, node, authority).environment, **flags)


def refused(error: grpc.aio.AioRpcError, code: grpc.StatusCode, *words: str) -> bool:
    assert error.code() is code, error
    assert all(word in (error.details() or "") for word in words), error.details()
    return True


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
    await eventually(lambda: bool(daemons[0].jobs.all()), "rank 0 is on its way")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await other.join(1, 2, rendezvous=rendezvous(daemons[0]))
    refused(error.value, grpc.StatusCode.PERMISSION_DENIED, "belongs to uid 0", "is of uid 1001")
    one = await house.trainer(daemons[1])
    await asyncio.gather(waiting, one.join(1, 2, rendezvous=rendezvous(daemons[0])))


# ---- who is not who he says ----


def channel(daemon: Daemon, trust: Trust, called: str) -> grpc.aio.Channel:
    """As another daemon would open it."""
    options = (*peers.CLIENT_OPTIONS, *trust.channel_options(called))
    return grpc.aio.secure_channel(rendezvous(daemon), trust.channel_credentials(), options=options)


def trust_in(papers: Papers) -> Trust:
    from ultima.daemon.trust.files import from_files

    paths = papers.certificate, papers.key, papers.authority
    return Trust("certificates", lambda now: from_files(*paths, now), lambda now: 0)


def impersonations(job: Any, fellow: Any) -> Iterator[tuple[str, Any, str]]:
    """Every call of PeerService about a job, in the name of its host `fellow`."""
    told, generation = fellow.to_proto(), job.generation
    lives = dict(job=job.name, generation=generation)
    hosts = [host.to_proto(state) for host, state in job.hosts()]
    yield (
        "Register",
        peer_pb2.RegisterRequest(
            job=job.name, world_size=2, bucket_bytes_max=65536, host=_with(told, ranks=[1], index=0), uid=job.uid
        ),
        "PERMISSION_DENIED",
    )
    yield (
        "Restore",
        peer_pb2.RestoreRequest(
            job="other", world_size=2, bucket_bytes_max=1, lanes=1, generation=generation, hosts=hosts
        ),
        "PERMISSION_DENIED",
    )
    for ids, doubt in itertools.product(([], [77]), (False, True)):
        yield (
            "Connect",
            peer_pb2.ConnectRequest(**lives, caller=told, to_index=0, connection_ids=ids, offer=5, doubt=doubt),
            "PERMISSION_DENIED",
        )
    yield "ApplyOptions", peer_pb2.ApplyOptionsRequest(**lives, options=types_pb2.JobOptions(revision=9)), "PERMISSION"
    yield "Probe", peer_pb2.ProbeRequest(**lives, op_seq=0, rank=0), "PERMISSION_DENIED"
    yield "Activate", peer_pb2.ActivateRequest(**lives, op_seq=0), "PERMISSION_DENIED"
    yield "ReadOps", peer_pb2.ReadOpsRequest(**lives, until_ns=2**62), "PERMISSION_DENIED"


def _with(host: types_pb2.Host, **fields: Any) -> types_pb2.Host:
    fresh = types_pb2.Host()
    fresh.CopyFrom(host)
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(fresh, name)[:]
            getattr(fresh, name).extend(value)
        else:
            setattr(fresh, name, value)
    return fresh


@pytest.mark.parametrize("secret", [b"", SECRET])
@pytest.mark.parametrize("named", [True, False])
async def test_impersonation__every_call_by_a_wrong_node_is_refused(
    house: House, authority: Authority, secret: bytes, named: bool
) -> None:
    """A node of the cluster that is not in the job, in the name of one that is: whether it says whose name or not."""
    daemons = [await secure(house, authority, f"n{i}") for i in range(2)]
    await house.job(daemons, secret=secret)
    job, fellow = daemons[0].jobs.all()[0], daemons[1].jobs.all()[0].own
    assert fellow is not None
    wrong = trust_in(papers(house.folder, "evil", authority))
    before = job.in_force.options if job.in_force else None
    tried = set()
    async with channel(daemons[0], wrong, "n0") as open_channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(open_channel)
        for method, request, code in impersonations(job, fellow):
            for field in ("host", "caller"):
                if not named and field in request.DESCRIPTOR.fields_by_name:
                    getattr(request, field).node = ""
            with pytest.raises(grpc.aio.AioRpcError) as error:
                call = getattr(stub, method)(request, timeout=5)
                await (call.read() if method == "ReadOps" else call)
            assert error.value.code().name.startswith(code), (method, error.value)
            tried.add(method)
        # A watch in another's name stands, and tells nothing of the job: the place is another node's.
        stream = stub.Watch(peer_pb2.WatchRequest(incarnation=1, address=fellow.address, grpc_port=fellow.grpc_port))
        assert (await stream.read()).job == ""
        daemons[0].jobs._watchers.tell(job)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(stream.read())), 0.3)
        stream.cancel()
        tried.add("Watch")
    assert tried == {method.name for method in peer_pb2.DESCRIPTOR.services_by_name["PeerService"].methods}
    assert wired(daemons) and job.in_force is not None and job.in_force.options == before


async def test_impersonation__a_member_without_the_secret_and_one_in_anothers_place(
    house: House, authority: Authority
) -> None:
    """A node may be in a job and still not speak for another of its nodes; and it needs the secret each time."""
    daemons = [await secure(house, authority, f"n{i}") for i in range(3)]
    await house.job(daemons, secret=SECRET)
    job = daemons[0].jobs.all()[0]
    one, two = (daemon.jobs.all()[0].own for daemon in daemons[1:])
    assert one is not None and two is not None
    member = trust_in(papers(house.folder, "n2", authority))
    async with channel(daemons[0], member, "n0") as open_channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(open_channel)
        for caller, words in ((one, "the call comes from node 'n2'"), (two, "does not know its secret")):
            request = peer_pb2.ConnectRequest(
                job=job.name, generation=job.generation, caller=caller.to_proto(), to_index=0, connection_ids=[7]
            )
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.Connect(request, timeout=5)
            refused(error.value, grpc.StatusCode.PERMISSION_DENIED, words)
    assert wired(daemons)


async def test_call__to_a_place_where_another_node_answers(house: House, authority: Authority) -> None:
    """A daemon that took over the address of another one gets no call that is meant for that one."""
    daemon = await secure(house, authority, "n0")
    caller = trust_in(papers(house.folder, "n1", authority))
    async with channel(daemon, caller, "n9") as open_channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(open_channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Probe(peer_pb2.ProbeRequest(), timeout=5)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_gate__other_clusters_and_nameless_certificates_reach_no_handler(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authority may issue more than nodes of this cluster: those get through TLS and no further."""
    daemon = await secure(house, authority, "n0")
    reached: list[object] = []
    monkeypatch.setattr(daemon.health, "Check", lambda *arguments: reached.append(arguments))
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    pair = authority.issue("n1", cluster="elsewhere")
    credentials = grpc.ssl_channel_credentials(authority.pem, pair[1], pair[0])
    options = (("grpc.ssl_target_name_override", "n0.lab.ultima"),)
    async with grpc.aio.secure_channel(rendezvous(daemon), credentials, options=options) as open_channel:
        for call in (
            health_pb2_grpc.HealthStub(open_channel).Check(health_pb2.HealthCheckRequest(), timeout=5),
            peer_pb2_grpc.PeerServiceStub(open_channel).Activate(peer_pb2.ActivateRequest(job="x"), timeout=5),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            refused(error.value, grpc.StatusCode.PERMISSION_DENIED, "is of cluster 'elsewhere'")
    assert reached == []


async def test_gate__a_resumed_session_shows_no_certificate_and_is_refused(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node could go on for days with a certificate that has expired. The first connection is as good as any."""
    daemon = await secure(house, authority, "n0")
    trust = trust_in(papers(house.folder, "n1", authority))
    cache = session_cache.ssl_session_cache_lru(1)
    options = (*trust.channel_options("n0"), ("grpc.ssl_session_cache", cache), ("grpc.use_local_subchannel_pool", 1))
    codes = []
    for _ in range(2):
        async with grpc.aio.secure_channel(rendezvous(daemon), trust.channel_credentials(), options) as open_channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                stub: Any = peer_pb2_grpc.PeerServiceStub(open_channel)
                await stub.Activate(peer_pb2.ActivateRequest(job="x"), timeout=5)
            codes.append((error.value.code().name, "resumed" in (error.value.details() or "")))
    assert codes == [("NOT_FOUND", False), ("PERMISSION_DENIED", True)]


# ---- strangers, and daemons that are not secure ----


async def test_strangers__reach_no_handler(house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a certificate, with one that nobody believes, with one that has expired, and without TLS."""
    daemon = await secure(house, authority, "n0")
    reached: list[str] = []
    monkeypatch.setattr("ultima.daemon.trust.gate.caller_node", lambda *arguments: reached.append("gate"))
    foreign = Authority()
    for pair in (None, foreign.issue("n1"), authority.issue("n1", days=(-9, -1)), authority.issue("n1", days=(1, 2))):
        certificate, key = pair or (None, None)
        credentials = grpc.ssl_channel_credentials(authority.pem, key, certificate)
        options = (("grpc.ssl_target_name_override", "n0.lab.ultima"),)
        async with grpc.aio.secure_channel(rendezvous(daemon), credentials, options=options) as open_channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await peer_pb2_grpc.PeerServiceStub(open_channel).Activate(peer_pb2.ActivateRequest(), timeout=5)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    async with peer(daemon) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Activate(peer_pb2.ActivateRequest(), timeout=5)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE and reached == []


@pytest.mark.parametrize("secure_first", [True, False])
async def test_downgrade__secure_and_insecure_refuse_each_other_with_a_sentence(
    house: House, authority: Authority, secure_first: bool
) -> None:
    pair = [await secure(house, authority, "n0"), await house.daemon("plain")]
    first, second = pair if secure_first else pair[::-1]
    trainer = await house.trainer(second)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await trainer.join(1, 2, rendezvous=rendezvous(first))
    words = "demands certificates and this one runs with --insecure" if secure_first else "there runs with --insecure"
    refused(error.value, grpc.StatusCode.FAILED_PRECONDITION, words, "start both with --insecure")


@pytest.mark.parametrize(
    ("days", "foreign", "words"),
    [
        ((-9, -1), False, "has expired"),
        ((-1, 10), True, "is of none of our authorities"),
    ],
)
async def test_join__says_what_is_wrong_with_the_certificate_there(
    house: House, authority: Authority, days: tuple[float, float], foreign: bool, words: str, monkeypatch: Any
) -> None:
    """What the waiting rank hears when its time is up; the other daemon's certificate went bad while it ran."""
    there = Authority() if foreign else authority
    daemon = await secure(house, there, "n0")
    if not foreign:
        monkeypatch.setattr("ultima.daemon.trust.files._check_life", lambda *arguments: None)
        papers(house.folder, "n0", there, days=days)
        assert daemon.trust is not None
        daemon.trust.look(time.time())
    trainer = await house.trainer(await secure(house, authority, "n1"))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await trainer.join(1, 2, rendezvous=rendezvous(daemon), timeout=1.5)
    refused(error.value, grpc.StatusCode.DEADLINE_EXCEEDED, "cannot be reached", words)


async def test_join__says_that_the_other_side_does_not_believe_us(house: House, authority: Authority) -> None:
    other = Authority()
    one = papers(house.folder, "n0", authority)
    daemon = await house.daemon("n0", tls=one.environment)
    # This daemon believes both authorities, the other one only its own.
    ours = Papers(house.folder / "two").write(other.issue("n1"), (other, authority))
    trainer = await house.trainer(await house.daemon("n1", tls=ours.environment))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await trainer.join(1, 2, rendezvous=rendezvous(daemon), timeout=1.5)
    refused(error.value, grpc.StatusCode.DEADLINE_EXCEEDED, "it refuses the certificate of this node, 'n1'")


# ---- new certificates while jobs run ----


async def test_rotation__of_leaf_and_authority_breaks_no_path(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new authority side by side, then new leaves, then the new one alone; watches move, nothing is lost."""
    monkeypatch.setattr(peers, "LOOK_SECONDS", 0.05)
    believed = [authority]
    files = [papers(house.folder, f"n{i}", authority) for i in range(2)]
    daemons = [await house.daemon(f"n{i}", tls=one.environment) for i, one in enumerate(files)]
    trainers = await house.job(daemons)
    lost: list[object] = []
    for daemon in daemons:
        monkeypatch.setattr(daemon._peers, "_on_lost", lambda *arguments: lost.append(arguments))
    await eventually(lambda: all(len(daemon._watchers) == 1 for daemon in daemons), "each watches the other")

    async def rotate(signer: Authority) -> None:
        for i, (one, daemon) in enumerate(zip(files, daemons, strict=True)):
            one.write(signer.issue(f"n{i}"), believed)
            assert daemon.trust is not None
            daemon.trust.look(time.time())
        versions = [daemon.trust.version for daemon in daemons if daemon.trust is not None]
        # The streams of the former certificates are given up once those of the new ones stand.
        await eventually(lambda: all(_renewed(daemon) for daemon in daemons), f"watches renewed, {versions}")

    fresh = Authority()
    for signers, now_believed in ((authority, [authority, fresh]), (fresh, [authority, fresh]), (fresh, [fresh])):
        believed[:] = now_believed
        await rotate(signers)
    assert lost == [] and wired(daemons)
    # A rank that comes now is let in by the new authority alone.
    await trainers[1].leave()
    again = await house.trainer(daemons[1])
    await trainers[0].leave()
    zero = await house.trainer(daemons[0])
    place = rendezvous(daemons[0])
    await asyncio.gather(zero.join(0, 2, rendezvous=place), again.join(1, 2, rendezvous=place))


def _renewed(daemon: Daemon) -> bool:
    return daemon.trust is not None and all(
        version == daemon.trust.version for version in daemon._peers.watch_versions()
    )


async def test_rotation__bad_new_files_are_told_and_not_used(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = papers(house.folder, "n0", authority)
    daemon = await house.daemon("n0", tls=files.environment)
    trust, good = daemon.trust, files.certificate.read_bytes()
    assert trust is not None
    files.certificate.write_bytes(b"nonsense")
    trust.look(time.time())
    assert trust.version == 0 and trust.warning(time.time()) == "", "somebody may be copying them"
    later = time.time() + trust_module.SETTLE_SECONDS + 1
    trust.look(later)
    assert "holds no certificate that can be read" in trust.warning(later)
    assert "new certificates are not used: tls.certificate = " in caplog.text
    monkeypatch.setattr(time, "time", lambda: later)
    assert "new certificates are not used" in (await status(daemon)).security.warning
    files.certificate.write_bytes(good)
    trust.look(later)
    assert trust.warning(later) == ""


async def test_expiry__is_told_a_quarter_of_the_life_ahead(
    house: House, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = papers(house.folder, "n0", authority, days=(-1, 7))
    daemon = await house.daemon("n0", tls=files.environment)
    trust = daemon.trust
    assert trust is not None
    assert trust.warning(time.time() + 4.9 * 86400) == ""
    soon = time.time() + 5.1 * 86400
    trust.look(soon)
    trust.look(soon + 1)
    assert caplog.text.count("the certificate of node 'n0' expires on") == 1, "once, not every two seconds"
    assert trust.status(soon).warning.startswith("the certificate of node 'n0' expires on")


# ---- daemons of one job's secret ----


async def by_secret(house: House, node: str, secret: bytes, **flags: object) -> Daemon:
    file = house.folder / f"{node}.secret"
    file.write_text(secret.hex())
    file.chmod(0o600)
    tls = {"ULTIMAD_TLS_JOB_SECRET": str(file), "ULTIMAD_TLS_NODE": node}
    return await house.daemon(node, tls=tls, **flags)


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


# ---- a coordinator that has forgotten its jobs ----


@pytest.mark.parametrize("secret", [b"", SECRET])
async def test_restore__by_the_nodes_of_a_job_brings_it_back(house: House, authority: Authority, secret: bytes) -> None:
    port = free_port()
    daemons = [await secure(house, authority, "n0", port=str(port)), await secure(house, authority, "n1")]
    trainers = await house.job(daemons, secret=secret)
    generation = daemons[1].jobs.all()[0].generation
    trainers[0].hang_up()
    daemons[0] = await house.restart(daemons[0])
    await eventually(lambda: daemons[0]._coordinator.record("job") is not None, "the other host tells of the job")
    back = await house.trainer(daemons[0])
    await back.join(0, 2, rendezvous=rendezvous(daemons[0]), secret=secret)
    assert daemons[0].jobs.all()[0].generation == generation
    await eventually(lambda: wired(daemons), "they have found each other")


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
