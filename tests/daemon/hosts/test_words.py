# SPDX-License-Identifier: Apache-2.0
"""What other daemons say reaches no terminal and no log as it is: every text of every answer, and of every error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, eventually
from ultima.daemon.base.errors import Refused
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.peers import Peers
from ultima.v1 import peer_pb2, peer_pb2_grpc
from ultima.v1.words import WORDS_MAX, clean, printable

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\r\n\u2028red\x7f"
SERVICE = peer_pb2.DESCRIPTOR.services_by_name["PeerService"]


def filled(kind: Any) -> Any:
    """A message of that kind with EVIL in each of its texts, however deep."""
    message = kind._concrete_class()
    for field in kind.fields:
        if field.type == field.TYPE_STRING:
            if field.is_repeated:
                getattr(message, field.name).extend([EVIL, EVIL])
            else:
                setattr(message, field.name, EVIL * 100)
        elif field.type == field.TYPE_MESSAGE:
            inner = filled(field.message_type)
            if field.is_repeated:
                getattr(message, field.name).extend([inner, inner])
            else:
                getattr(message, field.name).CopyFrom(inner)
    return message


def texts(message: Any) -> list[str]:
    """All of a message, those of the messages in it too."""
    found: list[str] = []
    for field, value in message.ListFields():
        for each in value if field.is_repeated else [value]:
            if field.type == field.TYPE_MESSAGE:
                found += texts(each)
            elif field.type == field.TYPE_STRING:
                found.append(each)
    return found


def calls(peers: Peers, place: Place) -> dict[str, Callable[[], Awaitable[Any]]]:
    """How this daemon makes each call of another one."""
    return {
        "Register": lambda: peers.register(
            [place], peer_pb2.RegisterRequest(job="j", world_size=2), b"", asyncio.get_running_loop().time() + 5
        ),
        "Connect": lambda: peers.connect(place, peer_pb2.ConnectRequest(), 5),
        "Probe": lambda: peers.probe(place, peer_pb2.ProbeRequest(), 5),
        "Activate": lambda: peers.activate(place, peer_pb2.ActivateRequest(), 5),
        "Hear": lambda: peers.hear(place, peer_pb2.HearRequest(), 5),
        "Relay": lambda: peers.relay(place, peer_pb2.RelayRequest(), 5),
        "Forming": lambda: peers.forming(place, "j", 5, "uid 0"),
        "Reach": lambda: peers.reach(place, peer_pb2.ReachRequest(), 5),
        "Report": lambda: peers.report(place, 5),
        "ReadOps": lambda: peers.read_ops(place, peer_pb2.ReadOpsRequest(), 5),
        "ReadState": lambda: state_parts(peers, place),
    }


async def state_parts(peers: Peers, place: Place) -> peer_pb2.ReadStateResponse:
    """The last part that comes."""
    told = peer_pb2.ReadStateResponse()
    async for part, data in peers.read_state(place, peer_pb2.ReadStateRequest()):
        told = peer_pb2.ReadStateResponse(part=part, data=data)
    return told


APART = {"Restore", "Watch", "Attend", "Carry"}
"""Nobody waits for their answers: the log has what they say. Of Attend only addresses are believed, and Carry has
bytes."""


class Evil(peer_pb2_grpc.PeerServiceServicer):
    """Answers each call with EVIL, in its answer or in an error."""

    def __init__(self, fails: bool) -> None:
        def answering(method: Any) -> Any:
            async def unary(request: Any, context: Any) -> Any:
                if fails:
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, EVIL)
                return filled(method.output_type)

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                yield filled(method.output_type)
                if fails:
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, EVIL)

            return stream if method.server_streaming else unary

        for method in SERVICE.methods:
            setattr(self, method.name, answering(method))


@pytest.mark.parametrize("fails", [False, True])
async def test_answers__of_every_call_are_printable(
    house: House, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    daemon, heard = await house.daemon(), list[Any]()
    server = grpc.aio.server()
    peer_pb2_grpc.add_PeerServiceServicer_to_server(Evil(fails), server)  # type: ignore[no-untyped-call]
    place, peers = Place("127.0.0.1", server.add_insecure_port("127.0.0.1:0")), daemon._peers
    await server.start()
    assert peers is not None
    made = calls(peers, place)
    assert made.keys() | APART == {method.name for method in SERVICE.methods}, "a call that this test does not know"
    peers._told = peers._told._replace(on_news=lambda place, news: heard.append(news))
    try:
        for name, call in made.items():
            try:
                answer = await call()
                said = texts(answer)
                assert not fails or name == "ReadOps", name
            except Refused as error:
                said = [str(error)]
            assert all(text.isprintable() and len(text) <= WORDS_MAX + 100 for text in said), (name, said)
        peers.watch([place])
        await eventually(lambda: bool(heard) and "peer daemon lost" in caplog.text, "the watch was told")
        peers.restore(place, peer_pb2.RestoreRequest(job="j"))
        await eventually(lambda: not fails or "restore failed" in caplog.text, "the word of a job was refused")
        assert all(text.isprintable() for news in heard for text in texts(news))
        assert all(record.getMessage().isprintable() for record in caplog.records), caplog.text
    finally:
        peers.watch([])
        await server.stop(0)


def test_clean__each_text_of_each_message_of_peers() -> None:
    for kind in peer_pb2.DESCRIPTOR.message_types_by_name.values():
        message = filled(kind)
        dirty = texts(message)
        clean(message)
        assert len(texts(message)) == len(dirty) and all(text.isprintable() for text in texts(message)), kind.name


def test_printable__what_stays_and_what_does_not() -> None:
    rows = [
        ("", ""),
        ("job 'x': größer — 5 µs ▇", "job 'x': größer — 5 µs ▇"),
        ("\x1b[2J\x9b\x00\n", "?[2J???"),
        ("x" * 513, "x" * 510 + ".."),
        ("x" * 512, "x" * 512),
    ]
    for given, shown in rows:
        assert printable(given) == shown
    assert printable("a\tb\nc\x1b", keep="\n\t") == "a\tb\nc?"
