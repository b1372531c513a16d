# SPDX-License-Identifier: Apache-2.0
"""The dissector against the golden packets, and against core/wire/packets.c packet by packet."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.dissector.golden import PACKETS, ULTIMA_HEADERS, Golden
from tests.dissector.ultima_scapy import (
    UltimaData,
    UltimaFeedback,
    UltimaGrant,
    UltimaParity,
    UltimaPath,
    UltimaPiece,
    UltimaRecord,
    UltimaUnknown,
    crc32c,
    dissect,
    problems,
)
from tests.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
DATA_ORDER = "flags sent_us connection number stage coverage view bucket offset timeout last incast".split()
FEEDBACK_ORDER = (
    "record_count incast connection number grant received receive_floor send_floor highest marked drops echo_us "
    "hold_us word_count missed state state_seen"
).split()
RECORD_ORDER = (
    "op_seq count dtype reduction mode flags weight algorithm collective agree left_us digest full_mask any_mask fresh "
    "stale oldest_step initiator policy submitted attached view group form hint portion epoch"
).split()
PIECE_ORDER = "index whole connection number".split()
GRANT_ORDER = "connection number grant".split()
PATH_ORDER = "what connection number token".split()


def test_crc32c__check_value_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720 B.4, 32 bytes of zeros


@pytest.mark.parametrize("golden", PACKETS, ids=lambda golden: golden.name)
def test_dissect__golden(golden: Golden) -> None:
    packet = dissect(golden.bytes())
    assert {name: int(packet.getfieldval(name)) for name in golden.fields} == golden.fields
    if golden.fields["kind"] != 2:
        assert bytes(packet.payload) == bytes.fromhex(golden.payload)
    else:
        records = [{name: int(one.getfieldval(name)) for name in golden.records[0]} for one in packet.records]
        assert records == list(golden.records)
        assert packet.words == list(golden.words)
    assert problems(golden.bytes()) == []


@pytest.mark.parametrize("golden", PACKETS, ids=lambda golden: golden.name)
def test_build__golden(golden: Golden) -> None:
    """From the fields alone, checksum and counts left to the builder, come the same octets."""
    left_out = {"checksum", "record_count", "word_count"}
    fields = {name: value for name, value in golden.fields.items() if name not in left_out}
    if golden.fields["kind"] == 1:
        packet = UltimaData(**fields) / bytes.fromhex(golden.payload)
    elif golden.fields["kind"] == 6:
        packet = UltimaParity(**fields) / bytes.fromhex(golden.payload)
    elif golden.fields["kind"] == 3:
        packet = UltimaPiece(**fields) / bytes.fromhex(golden.payload)
    elif golden.fields["kind"] == 4:
        packet = UltimaGrant(**fields)
    elif golden.fields["kind"] == 5:
        packet = UltimaPath(**fields)
    else:
        records = [UltimaRecord(**one) for one in golden.records]
        packet = UltimaFeedback(**fields, records=records, words=list(golden.words))
    assert bytes(packet).hex() == golden.bytes().hex()


@pytest.mark.parametrize(("values", "octets"), ULTIMA_HEADERS)
def test_ultima_header__spec_vectors(values: tuple[int, ...], octets: str) -> None:
    fields = dict(zip(("bucket", "offset", "timeout", "last", "incast"), values, strict=True))
    whole = bytes(UltimaData(**fields) / b"x")
    assert whole[23:32].hex() == octets
    packet = dissect(whole)
    assert {name: packet.getfieldval(name) for name in fields} == fields


def test_acknowledged__words_count_back_from_the_highest() -> None:
    packet = dissect(next(golden for golden in PACKETS if golden.words).bytes())
    # 65 and 64 from the first word's lowest bits, 2 from its highest, 1 from the lowest bit of the second.
    assert packet.acknowledged() == [65, 64, 2, 1]


@pytest.mark.parametrize("golden", PACKETS, ids=lambda golden: golden.name)
def test_problems__every_flipped_bit_is_noticed(golden: Golden) -> None:
    """CRC32C finds each single error; a bit outside it would be one that nobody protects."""
    whole = golden.bytes()
    for bit in range(8 * len(whole)):
        spoiled = bytearray(whole)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert problems(bytes(spoiled)), f"bit {bit} of {golden.name} may change unseen"


def _again(packet: UltimaData | UltimaFeedback, **changes: int) -> bytes:
    changed = packet.copy()
    changed.checksum = None
    for name, value in changes.items():
        setattr(changed, name, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("data__scatter_of_two_floats", {"coverage": 0}, "coverage"),
        ("data__scatter_of_two_floats", {"last": 7}, "last%ile"),
        ("data__scatter_of_two_floats", {"version": 1}, "unknown"),
        ("data__scatter_of_two_floats", {"kind": 7}, "unknown"),
        ("piece__second_of_a_full_packet", {"index": 8}, "piece 8"),
        ("piece__second_of_a_full_packet", {"whole": 32}, "of 32 bytes"),
        ("feedback__two_ops_and_two_words", {"record_count": 1}, "bytes"),
        ("feedback__two_ops_and_two_words", {"word_count": 17}, "acknowledgement words"),
        ("feedback__two_ops_and_two_words", {"echo_us": 1 << 24}, "echoed time"),
        ("feedback__two_ops_and_two_words", {"nothing_yet": 3}, "offset 68"),
        ("feedback__two_ops_and_two_words", {"missed": 2**15 + 1}, "loss"),
        ("grant__five_gigabytes_in_all", {"reserved": 1}, "reserved"),
        ("path__challenge", {"reserved": 1}, "reserved"),
        ("path__challenge", {"what": 3}, "what 3"),
    ],
)
def test_problems__names_what_the_page_forbids(name: str, changes: dict[str, int], word: str) -> None:
    packet = dissect(next(golden for golden in PACKETS if golden.name == name).bytes())
    assert any(word in problem for problem in problems(_again(packet, **changes)))


@pytest.mark.parametrize(
    "data", [b"", b"\x41", bytes(72), b"\x41" + bytes(31), b"\x42" + bytes(78), b"\x44" + bytes(24), b"\xff" * 1472]
)
def test_dissect__garbage_is_unknown(data: bytes) -> None:
    assert isinstance(dissect(data), UltimaUnknown)
    assert problems(data)


def _random_data(rng: random.Random) -> bytes:
    packet = rng.choice((UltimaData, UltimaParity))(
        flags=rng.randrange(4), stage=rng.randrange(2), coverage=rng.randint(1, 2**11 - 1),
        connection=rng.getrandbits(32), number=rng.getrandbits(32), op_high=rng.getrandbits(28),
        view=rng.getrandbits(16), sent_us=rng.getrandbits(22), bucket=rng.getrandbits(16),
        offset=rng.getrandbits(29) * 8, timeout=rng.getrandbits(16),
        last=rng.choice((0, 1, 15)), incast=rng.randrange(16),
    )  # fmt: skip
    return bytes(packet / rng.randbytes(8 * rng.randint(1, 180)))


def _random_piece(rng: random.Random) -> bytes:
    packet = UltimaPiece(
        index=rng.randrange(8), whole=rng.randint(33, 9216), connection=rng.getrandbits(32), number=rng.getrandbits(32)
    )
    return bytes(packet / rng.randbytes(rng.randint(1, 1216)))


def _random_grant(rng: random.Random) -> bytes:
    return bytes(UltimaGrant(connection=rng.getrandbits(32), number=rng.getrandbits(32), grant=rng.getrandbits(64)))


def _random_path(rng: random.Random) -> bytes:
    fields = dict(connection=rng.getrandbits(32), number=rng.getrandbits(32), token=rng.getrandbits(64))
    return bytes(UltimaPath(what=rng.randint(1, 2), **fields))


def _random_request(rng: random.Random) -> dict[str, int]:
    """What a rank may ask for."""
    collective = rng.randrange(6)
    if collective == 0:
        return dict(
            collective=0, reduction=rng.randint(1, 5), dtype=rng.randint(1, 6), mode=rng.randint(1, 3),
            agree=rng.getrandbits(1),
        )  # fmt: skip
    if collective == 1:
        return dict(collective=1, reduction=rng.randint(1, 5), dtype=rng.randint(1, 6), mode=3)
    root = rng.randrange(64) if collective == 3 else 0
    return dict(collective=collective, reduction=root, dtype=rng.randint(1, 7), mode=3)


def _random_partial(rng: random.Random) -> UltimaRecord:
    """What is said of an op of a partial job: it runs, or ranks are ready for it."""
    fresh = rng.getrandbits(16)
    policy = rng.randint(2, 8)
    common = dict(
        op_seq=rng.getrandbits(64), fresh=fresh, stale=rng.getrandbits(16) & ~fresh, policy=policy,
        attached=rng.getrandbits(16), weight=fresh.bit_count(),
        algorithm=rng.choice((1, 5)) if policy == 8 else 1,
    )  # fmt: skip
    if rng.getrandbits(1):
        return UltimaRecord(**{**common, "stale": 0}, dtype=0, reduction=0, mode=0, initiator=0xFFFF)
    mode = rng.randint(1, 3)
    ways = (0, 2, 0x40, 0x42, 8, 0x4A) if policy == 8 else (0, 2, 0x40, 0x42)
    return UltimaRecord(
        **{**common, "weight": (fresh | common["stale"]).bit_count()}, flags=rng.choice((0x40, 0x42, 0x7A, 0xFA)),
        count=rng.getrandbits(32), dtype=rng.randint(1, 6), reduction=rng.randint(1, 2), mode=mode,
        view=0 if mode == 3 else rng.getrandbits(16), oldest_step=rng.getrandbits(32),
        epoch=0 if mode == 3 else rng.getrandbits(64),
        initiator=rng.choice((rng.randrange(64), 0xFFFF)), submitted=rng.choice(ways),
    )  # fmt: skip


def _random_feedback(rng: random.Random) -> bytes:
    full = rng.getrandbits(64)
    records = [
        UltimaRecord(
            **_random_request(rng), op_seq=rng.getrandbits(64), count=rng.getrandbits(32), flags=rng.randrange(32, 64),
            weight=rng.randint(1, 16), algorithm=rng.randint(1, 4), left_us=rng.getrandbits(32),
            digest=rng.getrandbits(32), full_mask=full, any_mask=full | rng.getrandbits(64),
        )
        if rng.random() < 0.7
        else _random_partial(rng)
        for _ in range(rng.randint(0, 4))
    ]  # fmt: skip
    packet = UltimaFeedback(
        incast=rng.randrange(64), connection=rng.getrandbits(32), number=rng.getrandbits(32),
        grant=rng.getrandbits(64), received=rng.getrandbits(64), receive_floor=rng.getrandbits(64),
        send_floor=rng.getrandbits(64), highest=rng.getrandbits(32), marked=rng.getrandbits(32),
        drops=rng.getrandbits(32), echo_us=rng.choice((rng.getrandbits(22), 0xFFFFFFFF)), hold_us=rng.getrandbits(32),
        missed=rng.randint(0, 2**15), state=rng.getrandbits(32), state_seen=rng.getrandbits(32),
        records=records, words=[rng.getrandbits(64) for _ in range(rng.randint(0, 16))],
    )  # fmt: skip
    return bytes(packet)


def _fields(data: bytes) -> str:
    """A packet as wire_cross.c prints it."""
    packet = dissect(data)
    if isinstance(packet, UltimaData):
        what = "parity" if isinstance(packet, UltimaParity) else "data"
        values = [what, *(int(packet.getfieldval(name)) for name in DATA_ORDER)]
        values.insert(5, packet.op_seq())
    elif isinstance(packet, UltimaPiece):
        values = ["piece", *(int(packet.getfieldval(name)) for name in PIECE_ORDER)]
    elif isinstance(packet, UltimaGrant):
        values = ["grant", *(int(packet.getfieldval(name)) for name in GRANT_ORDER)]
    elif isinstance(packet, UltimaPath):
        values = ["path", *(int(packet.getfieldval(name)) for name in PATH_ORDER)]
    else:
        values = ["feedback", *(int(packet.getfieldval(name)) for name in FEEDBACK_ORDER)]
        for record in packet.records:
            values += [int(record.getfieldval(name)) for name in RECORD_ORDER]
        values += packet.words
    return " ".join(str(value) for value in [*values, data.hex()])


@pytest.fixture(scope="module")
def wire_cross(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("wire") / "wire_cross"
    sources = [ROOT / "tests/dissector/wire_cross.c", ROOT / "transport_c/core/wire/packets.c"]
    flags = "-std=c11 -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all".split()
    command = [os.environ.get("CC", "gcc"), *flags, f"-I{ROOT / 'transport_c'}", "-o", program, *sources]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    return program


def _through_c(program: Path, packets: list[bytes]) -> list[str]:
    lines = "\n".join(packet.hex() for packet in packets) + "\n"
    done = subprocess.run([program], input=lines, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_wire_c__reads_and_writes_what_the_page_says(wire_cross: Path) -> None:
    """Every field of every golden and 600 random packets, read by the C code, and the same octets written again."""
    seed = seeds(1)[0]
    rng = random.Random(seed)
    packets = [golden.bytes() for golden in PACKETS]
    makers = (_random_data, _random_feedback, _random_piece, _random_grant, _random_path)
    packets += [rng.choice(makers)(rng) for _ in range(600)]
    for index, (packet, seen) in enumerate(zip(packets, _through_c(wire_cross, packets), strict=True)):
        replay = f"packet {index}; replay with ULTIMA_TEST_SEED={seed}"
        assert problems(packet) == [], replay
        assert seen == _fields(packet), replay


def test_wire_c__refuses_what_the_page_forbids(wire_cross: Path) -> None:
    data, feedback = (dissect(PACKETS[index].bytes()) for index in (0, 4))
    spoiled = bytearray(PACKETS[0].bytes())
    spoiled[-1] ^= 1
    rows = [
        (bytes(spoiled), "refused checksum"),
        (_again(data, version=1), "refused malformed"),
        (_again(data, kind=5), "refused malformed"),
        (_again(data, coverage=0), "refused malformed"),
        (PACKETS[0].bytes()[:32], "refused malformed"),
        (b"", "refused malformed"),
        (_again(feedback, word_count=17), "refused malformed"),
        (_again(feedback, word_count=1), "refused malformed"),
        (_again(feedback, record_count=5), "refused malformed"),
    ]
    answers = _through_c(wire_cross, [packet for packet, _ in rows])
    assert answers == [answer for _, answer in rows]
