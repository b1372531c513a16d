# SPDX-License-Identifier: Apache-2.0
"""Who is not who he says, strangers, and daemons that are not secure: none of them is let in."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc.experimental import session_cache

from tests.daemon.helpers import House, eventually, peer, rendezvous, wired
from tests.daemon.trust.papers import Authority, Papers, papers
from tests.daemon.trust.secure import SECRET, channel, refused, secure, trust_in
from ultima.daemon.hosts import coordinator as coordinators
from ultima.daemon.jobs import watchers
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2
from ultima.v1.limits import WIRE_VERSION


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


NO_PLACE = {"Forming", "Reach", "Report"}
"""These speak for no host of a job: any node of the cluster may ask who waits for a job, whether datagrams come through
to itself, and how the jobs fare that it is in, which are none for who is in none (rpc/test_cluster.py)."""


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
    seal = types_pb2.SealOffer(suite=b"aes-128-gcm", secret=bytes(32))
    renews = dict(to_index=0, connection_ids=[77], seal=seal, renew=True)
    yield "Connect", peer_pb2.ConnectRequest(**lives, caller=told, **renews), "PERMISSION_DENIED"
    yield "Probe", peer_pb2.ProbeRequest(**lives, op_seq=0, rank=0), "PERMISSION_DENIED"
    yield "Activate", peer_pb2.ActivateRequest(**lives, op_seq=0), "PERMISSION_DENIED"
    yield "Hear", peer_pb2.HearRequest(**lives, host_index=1), "PERMISSION_DENIED"
    for ids in ([], [77]):
        relayed = dict(host_index=1, to_index=0, connection_ids=ids)
        yield "Relay", peer_pb2.RelayRequest(**lives, **relayed), "PERMISSION_DENIED"
    yield "ReadOps", peer_pb2.ReadOpsRequest(**lives, until_ns=2**62), "PERMISSION_DENIED"
    for node in (told.node, ""):
        to = types_pb2.PlaceOfHost(address=told.address, grpc_port=told.grpc_port, node=node)
        yield "Carry", peer_pb2.CarryRequest(to=to), "PERMISSION_DENIED"
    yield "Carry", peer_pb2.CarryRequest(ticket=bytes(16)), "NOT_FOUND"
    yield "ReadState", peer_pb2.ReadStateRequest(**lives, root=bytes(32)), "PERMISSION_DENIED"


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
    tried, called = set(), daemons[0]._peers.watched()
    async with channel(daemons[0], wrong, "n0") as open_channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(open_channel)
        for method, request, code in impersonations(job, fellow):
            for field in ("host", "caller"):
                if not named and field in request.DESCRIPTOR.fields_by_name:
                    getattr(request, field).node = ""
            with pytest.raises(grpc.aio.AioRpcError) as error:
                call = getattr(stub, method)(iter([request]) if method == "Carry" else request, timeout=5)
                await (call.read() if method in ("ReadOps", "ReadState", "Carry") else call)
            assert error.value.code().name.startswith(code), (method, error.value)
            tried.add(method)
        # Who attends where a host of another node listens is at another place, and that host is called as before.
        attends = stub.Attend(peer_pb2.AttendRequest(grpc_port=fellow.grpc_port, stays=True))
        assert (await attends.read()).source == fellow.address and not daemons[0].lines.leads_to(fellow.place)
        attends.cancel()
        tried.add("Attend")
        # A watch in another's name stands, and tells nothing of the job: the place is another node's.
        stream = stub.Watch(peer_pb2.WatchRequest(incarnation=1, address=fellow.address, grpc_port=fellow.grpc_port))
        assert (await stream.read()).job == ""
        daemons[0].jobs._watchers.tell(job)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(stream.read())), 0.3)
        stream.cancel()
        # Whatever place a caller names, nobody is called there because of it.
        aimed = stub.Watch(peer_pb2.WatchRequest(incarnation=1, address="127.0.0.9", grpc_port=9))
        assert (await aimed.read()).job == "" and daemons[0]._peers.watched() == called
        aimed.cancel()
        tried.add("Watch")
    methods = {method.name for method in peer_pb2.DESCRIPTOR.services_by_name["PeerService"].methods}
    assert tried == methods - NO_PLACE
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
        hears = peer_pb2.HearRequest(job=job.name, generation=job.generation, host_index=one.index)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Hear(hears, timeout=5)
        refused(error.value, grpc.StatusCode.PERMISSION_DENIED, "host_index = 1: is the place of another node")
        hears.host_index = two.index
        assert len((await stub.Hear(hears, timeout=5)).lanes) == 1
    assert wired(daemons)


async def test_quota__is_each_nodes_own(house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes of the test share an address; one that has all its calls open takes none of another's."""
    monkeypatch.setattr("ultima.daemon.process.server.CALLS_MAX", 16)  # one for each
    daemon = await secure(house, authority, "n0")
    greedy, modest = (trust_in(papers(house.folder, node, authority)) for node in ("greedy", "modest"))
    host = types_pb2.Host(grpc_port=1, lanes=[types_pb2.Lane(data_port=1, feedback_port=1)], incarnation=1, ranks=[0],
                          packet_bytes=1472, wire_version=WIRE_VERSION)  # fmt: skip
    waits = peer_pb2.RegisterRequest(job="long", world_size=2, bucket_bytes_max=1, host=host)
    async with channel(daemon, greedy, "n0") as one, channel(daemon, modest, "n0") as other:
        stubs: list[Any] = [peer_pb2_grpc.PeerServiceStub(each) for each in (one, other)]
        held = asyncio.ensure_future(stubs[0].Register(waits, timeout=60))
        await eventually(lambda: ("long", b"") in daemon._coordinator._forming, "its one call is open")
        for stub, code in zip(stubs, ("RESOURCE_EXHAUSTED", "NOT_FOUND"), strict=True):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.Activate(peer_pb2.ActivateRequest(job="x"), timeout=5)
            assert error.value.code().name == code, error.value
        held.cancel()


async def test_quota__of_watches_and_forming_jobs_is_each_nodes_own(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above: all nodes have one address, and the shares of what they may have open are theirs."""
    monkeypatch.setattr(watchers, "WATCHERS_MAX", 8)  # one for each
    monkeypatch.setattr(coordinators, "FORMING_MAX", 8)
    daemon = await secure(house, authority, "n0")
    host = types_pb2.Host(grpc_port=1, lanes=[types_pb2.Lane(data_port=1, feedback_port=1)], incarnation=1, ranks=[0],
                          packet_bytes=1472, wire_version=WIRE_VERSION)  # fmt: skip

    async def watch(stub: Any) -> Any:
        stream = stub.Watch(peer_pb2.WatchRequest(grpc_port=5))
        await stream.read()
        return stream

    async def form(stub: Any, name: str) -> None:
        await stub.Register(peer_pb2.RegisterRequest(job=name, world_size=2, bucket_bytes_max=1, host=host), timeout=9)

    trusts = [trust_in(papers(house.folder, node, authority)) for node in ("greedy", "modest")]
    async with channel(daemon, trusts[0], "n0") as one, channel(daemon, trusts[1], "n0") as other:
        greedy, modest = (peer_pb2_grpc.PeerServiceStub(each) for each in (one, other))
        held = [await watch(greedy)]
        forming = [asyncio.ensure_future(form(greedy, "g"))]
        await eventually(lambda: ("g", b"") in daemon._coordinator._forming, "its one job forms")
        for more in (watch(greedy), form(greedy, "more")):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await more
            refused(error.value, grpc.StatusCode.RESOURCE_EXHAUSTED, "greedy has 1 already: allowed: 1 each")
        held.append(await watch(modest))
        forming.append(asyncio.ensure_future(form(modest, "m")))
        await eventually(lambda: ("m", b"") in daemon._coordinator._forming, "the other one's job forms")
        for task in forming:
            task.cancel()
        for stream in held:
            stream.cancel()
        await asyncio.gather(*forming, return_exceptions=True)


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
        ((-1, 10), True, "none of our authorities issued the certificate there"),
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
