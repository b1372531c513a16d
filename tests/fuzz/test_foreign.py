# SPDX-License-Identifier: Apache-2.0
"""Random and randomly damaged words of other processes: each is understood, or refused with an error that has a name.

An error that nobody foresaw takes a whole RPC, a trainer's `connect` or `ultima explain` with it; and a value that is
taken here although the engine refuses it takes the job on all hosts. Replay one: ULTIMA_SEED=N pytest tests/fuzz
"""

from __future__ import annotations

import json
import os
import random
import string
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message

from ultima.admin.flight import chrome_trace, flight_records, life_facts
from ultima.admin.sentences import explain
from ultima.admin.sound import leave_out
from ultima.base.errors import UltimaError
from ultima.cli.explain import decoded
from ultima.cli.status import to_dict
from ultima.daemon.base.errors import InvalidArgument, Refused
from ultima.daemon.base.options import Options, check_job, from_proto
from ultima.daemon.engine.engine import EngineConfig, NativeEngine
from ultima.daemon.hosts.host import Host, Membership, State, split_target
from ultima.daemon.hosts.membership import membership as checked
from ultima.daemon.jobs.job import engine_config
from ultima.daemon.trainers.attach import parse_hello
from ultima.session.attach import _checked_reply, _TryAgain
from ultima.session.caller import _token
from ultima.v1 import admin_pb2, peer_pb2, records_pb2, types_pb2

FIRST = [int(os.environ["ULTIMA_SEED"])] if "ULTIMA_SEED" in os.environ else list(range(8))
MORE = [] if "ULTIMA_SEED" in os.environ else [pytest.param(seed, marks=pytest.mark.check) for seed in range(8, 20)]
ROUNDS = 150
NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    8,
    63,
    64,
    65,
    255,
    256,
    1023,
    1024,
    1472,
    9216,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
]


@pytest.fixture(params=[*FIRST, *MORE])
def rng(request: pytest.FixtureRequest) -> random.Random:
    print(f"replay: ULTIMA_SEED={request.param} pytest {request.node.nodeid.partition('[')[0]}")
    return random.Random(request.param)


# ---- JSON of the attach socket ----


def some_json(rng: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice([None, True, False, 2, -1, 0, 1e300, "", "v", "ultima", 10**30]),
        lambda: rng.choice(NUMBERS) * rng.choice([1, -1]),
        lambda: "".join(rng.choices(string.printable + "\u00e9\u4e16", k=rng.randrange(20))),
    ]
    if depth < 3:
        kinds.append(lambda: [some_json(rng, depth + 1) for _ in range(rng.randrange(4))])
        names = ("v", "who", "arena_bytes", "lanes", "ticket", "error", "message", "submission_bytes", "token")
        kinds.append(lambda: {rng.choice(names): some_json(rng, depth + 1) for _ in range(rng.randrange(6))})
    return rng.choice(kinds)()


def damaged(rng: random.Random, data: bytes) -> bytes:
    """With a few bytes changed, cut out or doubled; or something else altogether."""
    match rng.randrange(8):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            return json.dumps(some_json(rng)).encode()
        case 2:
            return rng.choice([b"[", b'{"v":']) * rng.choice([10, 2000, 8000])
    held = bytearray(data)
    for _ in range(rng.randrange(5)):
        if held:
            at = rng.randrange(len(held))
            held[at : at + rng.randrange(3)] = rng.choice([b"", bytes([rng.randrange(256)]), held[at : at + 9]])
    return bytes(held)


def replaced(rng: random.Random, said: dict[str, Any]) -> bytes:
    """The message with some of its values replaced, or left out."""
    for name in rng.sample(sorted(said), rng.randrange(3)):
        if rng.random() < 0.3:
            del said[name]
        else:
            said[name] = some_json(rng)
    return json.dumps(said).encode()


def test_hello__a_daemon_takes_or_refuses(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        data = replaced(rng, {"v": 4, "arena_bytes": 4096, "pid": 12})
        data = damaged(rng, data) if rng.random() < 0.5 else data
        try:
            size = parse_hello(data, 1 << 30)
        except Refused as error:
            assert str(error) and "\n" not in str(error)
        else:
            assert size is None or (0 < size <= 1 << 30 and size % 4096 == 0), data


def test_reply__a_trainer_takes_or_refuses(rng: random.Random) -> None:
    whole = {"v": 4, "ticket": "ab" * 16, "lanes": 2, "arena_bytes": 4096, "submission_bytes": 9, "completion_bytes": 9}
    for _ in range(ROUNDS):
        data = replaced(rng, dict(whole))
        data = damaged(rng, data) if rng.random() < 0.5 else data
        fds = list(range(rng.choice([0, 5, 8, 11])))
        try:
            reply = _checked_reply(data, fds, "/run/x")
        except (UltimaError, _TryAgain):
            continue
        assert len(fds) == 2 + 3 * reply["lanes"] and isinstance(reply["ticket"], str), data


def test_token__a_client_takes_or_refuses(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        data = replaced(rng, {"v": 4, "token": "cd" * 16})
        data = damaged(rng, data) if rng.random() < 0.5 else data
        try:
            token = _token(data, "/run/x")
        except UltimaError:
            continue
        assert isinstance(token, str)


# ---- messages of other daemons ----


def shaken(rng: random.Random, message: Message, most: int = 4) -> None:
    """Changes some fields of a message, at any depth, to numbers that are allowed by their type."""
    places: list[tuple[Message, Any]] = []

    def walk(inner: Message) -> None:
        for field in inner.DESCRIPTOR.fields:
            if field.message_type is None:
                places.append((inner, field))
            elif field.is_repeated:
                if field.message_type.GetOptions().map_entry:
                    continue
                places.append((inner, field))
                for one in getattr(inner, field.name):
                    walk(one)
            elif inner.HasField(field.name):
                walk(getattr(inner, field.name))

    walk(message)
    for holder, field in rng.sample(places, min(len(places), rng.randrange(most))):
        values = getattr(holder, field.name)
        if field.message_type is not None:
            if values and rng.random() < 0.5:
                del values[rng.randrange(len(values))]
            else:
                values.add()
        elif field.is_repeated:
            kept = list(values)
            kept[rng.randrange(len(kept) + 1) :] = [some_value(rng, field) for _ in range(rng.randrange(3))]
            del values[:]
            values.extend(kept)
        else:
            setattr(holder, field.name, some_value(rng, field))


def some_value(rng: random.Random, field: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        texts = ["", "127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "fe80::1%lo", "host", "\0", "x" * 300, "10.0.0.2"]
        return rng.choice(texts)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.cpp_type == field.CPPTYPE_DOUBLE:
        return rng.choice([0.0, 1.5, -1e300])
    bits = (
        64
        if "64" in next(name for name in dir(field) if getattr(field, name) == field.cpp_type and "CPP" in name)
        else 32
    )
    signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_ENUM)
    number = rng.choice(NUMBERS) % 2 ** (bits - signed)
    return -number if signed and rng.random() < 0.2 else number


def a_membership() -> peer_pb2.RegisterResponse:
    ranks = ((0, 1), (2,), (3, 4, 5))
    hosts = tuple(Host(i, f"10.0.0.{i + 1}", 29520, ((2, 3),), 77 + i, ranks[i], 1472) for i in range(3))
    return Membership(5, 6, 1 << 20, hosts, (State.UP,) * 3, 9, True, Options(incast=2)).to_proto()


def test_membership__what_is_taken_the_engine_takes_too(rng: random.Random) -> None:
    """The engine is what a number goes to in the end, on every host of the job."""
    engine = NativeEngine(EngineConfig(""))
    taken = 0
    try:
        for _ in range(ROUNDS):
            message = a_membership()
            shaken(rng, message)
            try:
                told = checked(message, rng.choice([6, 6, 6, rng.choice(NUMBERS) % 2**31]), "10.9.9.9")
            except Refused as error:
                assert str(error) and "\n" not in str(error)
                continue
            taken += 1
            # More at once than there are others is what a user may ask for: the engine's own refusal tells him.
            fits = told.options.incast < max(len(told.hosts), 2)
            for own in told.hosts:
                if own.packet_bytes <= engine.info.packet_bytes and fits:
                    assert engine.job_bytes(engine_config(told, own, 0, 0)) > 0, told
    finally:
        engine.close()
    assert taken > ROUNDS // 20, "else nothing was tried"


def test_options__what_is_taken_fits_its_job(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        message = Options().to_proto()
        shaken(rng, message, 3)
        try:
            options = from_proto(message)
            check_job(options, 6)
        except InvalidArgument:
            continue
        assert from_proto(options.to_proto()) == options and options.words()


@pytest.mark.parametrize("kind", [peer_pb2.ConnectRequest, peer_pb2.WatchResponse, types_pb2.JobOptions], ids=str)
def test_bytes__on_their_way_to_a_message(kind: type[Message], rng: random.Random) -> None:
    """gRPC answers by itself what is no message; of what is one, each text that status prints can be printed."""
    for _ in range(ROUNDS):
        message = kind()
        try:
            message.ParseFromString(damaged(rng, a_membership().SerializeToString()))
        except DecodeError:
            continue
        json.dumps(to_dict(message), default=bytes.hex)  # secrets and proofs are bytes, which nothing prints


def test_targets__are_two_parts_or_refused(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        text = damaged(rng, rng.choice([b"10.0.0.1:29520", b"[::1]:29520", b"host.example:1"])).decode("latin-1")
        try:
            address, port = split_target(text)
        except ValueError:
            continue
        assert address and 0 < port < 65536


# ---- receipts of a daemon ----


def an_answer() -> admin_pb2.GetReceiptsResponse:
    answer = admin_pb2.GetReceiptsResponse(job="resnet", running=True, world_size=3)
    for index in range(3):
        answer.hosts.add(index=index, address=f"10.0.0.{index + 1}", ranks=[index])
    raw = answer.receipts.add(op_seq=7, status=2, culprit=2, trouble=2, hosts=3, full_mask=3, any_mask=7, policy=3)
    raw.bytes_expected, raw.bytes_missing, raw.bytes_used = 800, 100, 700
    raw.stage_end.extend([2, 1])
    raw.stage_ns.extend([2, 5])
    raw.t_c_us.extend([0, 9])
    for _ in range(3):
        row = raw.peer.add(weight=1, why=3, fresh=1)
        row.expected.extend([200, 200])
        row.missing.extend([100, 0])
    return answer


def test_receipt__is_told_or_refused(rng: random.Random) -> None:
    """Also of a daemon of another release, which has other fields and numbers."""
    told = 0
    for _ in range(ROUNDS):
        answer = an_answer()
        shaken(rng, answer)
        try:
            receipt, hosts, here = decoded(answer)
        except UltimaError:
            continue
        told += 1
        assert all(explain(receipt, hosts, here)) and str(receipt)
        json.dumps(receipt.as_dict())
    assert told > ROUNDS // 20, "else nothing was tried"


# ---- what other hosts recorded ----


def a_life(host_index: int) -> records_pb2.JobLife:
    told = an_answer()
    life = records_pb2.JobLife(job="resnet", generation=5, world_size=3, host_index=host_index, lanes=2)
    life.hosts.extend(told.hosts)
    life.receipts.extend(told.receipts)
    for op_seq in (7, 8):
        life.ops.add(op_seq=op_seq, ended_ns=10**18, elapsed_ns=5, status=2, culprit=2, trouble=2, bucket_bytes=800)
    return life


def test_lives__are_written_or_left_out(rng: random.Random) -> None:
    """`ultima dump --all-hosts` writes what the honest hosts recorded, whatever one of them answers."""
    left = 0
    for _ in range(ROUNDS):
        answer = admin_pb2.GetOpsResponse(lives=[a_life(0), a_life(1), a_life(2)])
        shaken(rng, answer.lives[1])
        told = leave_out(answer)
        assert all(text.startswith("left out: ") and "\n" not in text for text in told) and len(told) <= 1
        assert {0, 2} <= {life.host_index for life in answer.lives}
        left += len(told)
        facts = [life_facts(life) for life in answer.lives]
        assert [len(each["receipts"]) for each in facts if each["host"] in (0, 2)][-1] == 1
        json.dumps([facts, chrome_trace(answer.lives), list(flight_records(answer.lives))])
    assert ROUNDS // 20 < left < ROUNDS, "else nothing was tried"
