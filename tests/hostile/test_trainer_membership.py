# SPDX-License-Identifier: Apache-2.0
"""A trainer names its own coordinator, whose membership makes two ranks of one host a job of two hosts (A1)."""

from __future__ import annotations

import threading

import grpc
import pytest

from tests.e2e.hosts import DaemonProcess, new_job_name
from tests.hostile.bystander import Bystander
from tests.hostile.coordinator import INCARNATION, Coordinator, membership, own_host
from tests.hostile.trainer import HostileTrainer, join_all, refused
from ultima._native import lib
from ultima.v1 import peer_pb2, peer_pb2_grpc

ARENA = 1 << 20


@pytest.mark.parametrize("collective", ["UT_BROADCAST", "UT_ALL_GATHER", "UT_REDUCE_SCATTER", "UT_ALL_TO_ALL"])
def test_membership__two_ranks_here_and_none_elsewhere(host: DaemonProcess, collective: str) -> None:
    """Hosts with ranks [0, 1] and []: as many ranks as hosts, so that collectives of one rank a host are called by two.

    A broadcast or all-gather that is combined from two callers ended the daemon, or read beyond their arenas.
    """
    with Coordinator(lambda request: ours(request)) as fake, Bystander(host):

        def ours(request: peer_pb2.RegisterRequest) -> peer_pb2.RegisterResponse:
            return membership([own_host(request, 0, [0, 1]), fake.invented(1, [], request.host)])

        with HostileTrainer(host.socket, ARENA) as first, HostileTrainer(host.socket, ARENA) as second:
            joined = join_all([first, second], new_job_name(), fake.rendezvous)
            if not refused(joined):
                bucket, end = ARENA // 2, ARENA - ARENA // 4  # the whole bucket does not fit where a shard does
                places = {"UT_BROADCAST": (0, 0), "UT_ALL_GATHER": (end, 0), "UT_REDUCE_SCATTER": (0, end)}
                src, dst = places.get(collective, (0, bucket))
                call = {
                    "collective": getattr(lib, collective),
                    "redop": lib.UT_SUM if collective == "UT_REDUCE_SCATTER" else 0,
                    "mode": lib.UT_RELIABLE,
                    "count": bucket // 4,
                    "src": src,
                    "dst": dst,
                }
                for each in (first, second):
                    each.lanes[0].submit(op_seq=0, **call)
                answers = [each.lanes[0].wait(1, 5.0) for each in (first, second)]
                assert all(receipt.status == lib.UT_FAILED for got in answers for receipt in got)


@pytest.mark.check
def test_membership__reduce_scatter_stays_in_its_arena(host: DaemonProcess) -> None:
    """The same with a real path: another job of the same daemon plays the host without ranks, so that the op completes
    and its result is handed out: a whole bucket, to where each caller has room for a shard.
    """
    here, there = new_job_name(), new_job_name()

    def answer(request: peer_pb2.RegisterRequest) -> peer_pb2.RegisterResponse:
        if request.job == here:
            return membership([own_host(request, 0, [0, 1]), fake.invented(1, [], request.host)])
        return membership([fake.invented(0, [0], request.host), own_host(request, 1, [1])])

    def over(request: peer_pb2.ConnectRequest) -> peer_pb2.ConnectResponse:
        """The offer of host 0 of `here`, as one of host 0 of `there`."""
        offer = peer_pb2.ConnectRequest()
        offer.CopyFrom(request)
        offer.job, offer.to_incarnation = there, 0
        offer.caller.CopyFrom(fake.invented(0, [0], request.caller))
        with grpc.insecure_channel(host.rendezvous) as channel:
            got = peer_pb2_grpc.PeerServiceStub(channel).Connect(offer, timeout=10)
        got.incarnation = INCARNATION
        return got

    with Coordinator(answer) as fake, Bystander(host):
        fake.ways[here] = over
        trainers = [HostileTrainer(host.socket, ARENA) for _ in range(3)]
        first, second, other = trainers
        joined: dict[str, list[object]] = {}
        thread = threading.Thread(target=lambda: joined.update(there=join_there(other, there, fake.rendezvous)))
        thread.start()
        joined["here"] = join_all([first, second], here, fake.rendezvous)
        thread.join()
        if not refused([*joined["here"], *joined["there"]]):
            bucket, end = ARENA // 2, ARENA - ARENA // 4  # a shard before the end
            call = {"collective": lib.UT_REDUCE_SCATTER, "mode": lib.UT_RELIABLE, "count": bucket // 4, "dst": end}
            for each in (first, second):
                each.arena[:] = b"\x11" * ARENA
                each.lanes[0].submit(op_seq=0, **call)
            other.lanes[0].submit(op_seq=0, **call)
            for each in (first, second):
                (receipt,) = each.lanes[0].wait(1, 10.0)
                assert receipt.status == lib.UT_FAILED
        for each in trainers:
            each.hang_up()


def join_there(other: HostileTrainer, job: str, rendezvous: str) -> list[object]:
    try:
        return [other.join(job, 1, 2, rendezvous)]
    except grpc.RpcError as error:
        return [error]
