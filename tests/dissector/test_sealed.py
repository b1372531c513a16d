# SPDX-License-Identifier: Apache-2.0
"""Sealed packets of the core, opened by what was written from PROTOCOL.md alone; and packets that never change.

The vectors in SEALED come from none of the two that they are held against, the core and sealed.py: longhand.py computes
them with ciphers of its own. They change with the golden packets and with nothing else. (longhand.py was written when
those of wire version 4 were due, and was first held against all 27 of version 3, which are older than it.)
"""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path as File

import pytest

from tests.dissector.golden import PACKETS, Golden
from tests.dissector.longhand import golden_sealed
from tests.dissector.sealed import SUITES, TAG_BYTES, Path
from tests.dissector.ultima_scapy import dissect
from tests.seeds import seeds

ROOT = File(__file__).resolve().parents[2]
PATH = Path(1, bytes(range(32)), 0x0102030405060708, 3, 5, 1, 0xA1B2C3D4, "golden")
NUMBER = 0x1_0000_0007
SEALED = {  # of the golden packet with this name, by suite: its last 24 bytes, under number NUMBER in epoch 2
    "data__scatter_of_two_floats": (
        "ab96bee3b391b4b1fd19ebcb5cc596716eeda006b6655800",
        "cc59e7788cc8fbdcb7235609c9476bc33c308bb059856148",
        "8aaf5ba511722ed8954a5934ed4c285411619f5312de5577",
    ),
    "data__broadcast_repair_with_all_saturated": (
        "00000000ffffffab6548011e05d900e56591eb7900f435ae",
        "00000000ffffffcce4969d75958ed99f01692ee51535b081",
        "00000000ffffff8a9011c60c1a37fb5cbddc634af9a26016",
    ),
    "data__many_missing_and_highest_bucket": (
        "aa963edcb391b4f1a98fedf8edc679d5416a47c71bf38fb6",
        "cd5967478cc8fb9cd5c795107e6f6783cedb961c09f93d6f",
        "8bafdb9a11722e980758f5a4e60a9b5554ebc88d921c8552",
    ),
    "feedback__first_grant": (
        "b8696074726e71563053dfe1255e6a7cdaebb284a18aa692",
        "57cdd711d0c7ef0ee62b8b9f93785a80256480d2c8c1781c",
        "e8aeb2b466d126415793f27487bfb4e5c4190030a3a7731b",
    ),
    "feedback__two_ops_and_two_words": (
        "9fd07f37c116d74b6128bc228be53b6c8391a4b2f14078df",
        "f092a7224ede6d0f2ecbd2c345381b63feff62aaf7298515",
        "5f9bcbff53cd85433c614d009040d91701d88f43e3f21bf6",
    ),
    "feedback__a_broadcast_and_an_all_gather_that_failed": (
        "4f2f6ac9b3521f5682111fa01b23ab4372039b2328468fb9",
        "0b7e877835bee236a1d2bd3802b0a445610b6639bdb7779a",
        "f3359d050d37aa36ebbb1389827ce1ae89494823531a9017",
    ),
    "feedback__an_op_of_a_partial_job_and_who_is_ready_for_the_next": (
        "4f2f6ac9b3521f5690eb2370d98c68f7b1e6c6e9fd21d99d",
        "0b7e877835bee23608bb468409b5ad667ee47395f9c97454",
        "f3359d050d37aa36cbd2410e6202e078bae386720e38f01c",
    ),
    "piece__second_of_a_full_packet": (
        "477a9c25fd1e4e9ead54a00a13e9f5ddccab30c79801e28c",
        "c271204b8f11f6ef8edf6d20496407c05ec81d08c3329ac3",
        "f6f8dd777b41d3da21ceb1d70b7d967e6f62daf2a5b4db4b",
    ),
    "grant__five_gigabytes_in_all": (
        "382a2260f7db44fb0ff05f4af354f200d8b47579dc9f8f27",
        "c7d61a6299bc04798d41121a97ec5693d5ac26e403fcf9a5",
        "10137c3566fb5f4088a44448cd22261af1693720deed658d",
    ),
    "path__challenge": (
        "1d52277c0377d42799c9c89f584c9a10a12e7d535741d9b4",
        "b0d56f1e07c2659206277c02f48498485dd7acdccbd424fd",
        "85e2490ebcae86906d4e911cb19a4a4f1aba24fa43a2d876",
    ),
    "parity__fourth_of_a_group_of_182": (
        "ab96bee3b391b4b1ae956a32a6e9c2a805ee5ff36f2a47c1",
        "cc59e7788cc8fbdcdb0db0b8e3ab688e2195f0761fb6a949",
        "8aaf5ba511722ed803c91d3069f191316652e7cf7f00f267",
    ),
}


@pytest.fixture(scope="module")
def filter_(tmp_path_factory: pytest.TempPathFactory) -> File:
    program = tmp_path_factory.mktemp("seal") / "seal_cross"
    sources = [File(__file__).with_name("seal_cross.c"), *(ROOT / "transport_c/cipher").glob("*.c")]
    command = [os.environ.get("CC", "gcc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'transport_c'}"]
    subprocess.run([*command, *map(str, sources), "-o", str(program), "-ldl"], check=True, timeout=60)
    return program


def by_c(program: File, path: Path, each: int, packets: list[tuple[int, bytes]]) -> list[bytes]:
    """Packets of these numbers, sealed by the core, with `each` of them in an epoch."""
    how = [path.suite, path.secret.hex(), path.generation, path.sender, path.receiver, path.lane, path.connection]
    lines = [" ".join(map(str, [*how, each, path.job]))]
    for number, packet in packets:
        index = packet[1] if packet[0] & 15 == 3 else 0
        lines.append(f"{number} {index} {(packet[:12] + bytes(4) + packet[16:]).hex()}")
    done = subprocess.run([program], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [bytes.fromhex(line) for line in done.stdout.split()]


def test_sealed__all_golden_packets_have_vectors() -> None:
    assert [golden.name for golden in PACKETS] == list(SEALED)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("golden", PACKETS, ids=lambda golden: golden.name)
def test_sealed__golden(golden: Golden, suite: int) -> None:
    """Whoever changes one of these changes the protocol."""
    whole = golden.bytes()
    name = golden.name
    path = replace(PATH, suite=suite)
    sealed = path.seal(whole, NUMBER, epoch=2, heard=9)
    assert len(sealed) == len(whole) + TAG_BYTES
    assert sealed[12:16].hex() == "02090000"
    assert sealed[-24:].hex() == SEALED[name][suite - 1]
    assert golden_sealed(whole, suite) == sealed
    opened = path.open(sealed, NUMBER, 2)
    assert opened is not None
    assert opened[:12] + opened[16:] == whole[:12] + whole[16:]
    assert type(dissect(opened)) is type(dissect(whole))
    for other in (replace(path, job="gulden"), replace(path, lane=0), replace(path, sender=5, receiver=3)):
        assert other.open(sealed, NUMBER, 2) is None
    assert path.open(sealed, NUMBER - 2**32, 2) is None


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("seed", seeds(3))
def test_sealed__by_the_core(filter_: File, suite: int, seed: int) -> None:
    """Through epochs whose low 8 bits wrap, with packets of all kinds and any bytes behind their headers."""
    rng = random.Random(seed)
    path = Path(
        suite, rng.randbytes(32), rng.getrandbits(63), rng.randrange(64), rng.randrange(64), rng.randrange(4),
        rng.getrandbits(32), rng.choice(["a", "job", "é" * 100, "x" * 128]),
    )  # fmt: skip
    numbers = sorted(rng.sample(range(1, 2**59), 300))
    packets = []
    for number in numbers:
        kind, index = rng.randrange(1, 6), rng.randrange(8)
        header = bytes([0x20 | kind, index, 0, 0]) + rng.randbytes(28 if kind == 1 else 12)
        packets.append((number, header + rng.randbytes(rng.randrange(1, 1400))))
    each = rng.randrange(1, 4)
    for i, sealed in enumerate(by_c(filter_, path, each, packets)):
        number, packet = packets[i]
        plain = packet[:12] + bytes(4) + packet[16:]
        assert path.open(sealed, number, i // each) == plain, f"packet {i}"
        assert path.seal(packet, number, i // each) == sealed, f"packet {i}"
