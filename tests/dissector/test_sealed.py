# SPDX-License-Identifier: Apache-2.0
"""Sealed packets of the core, opened by what was written from PROTOCOL.md alone; and packets that never change."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path as File

import pytest

from tests.dissector.golden import PACKETS, Golden
from tests.dissector.sealed import SUITES, TAG_BYTES, Path
from tests.dissector.ultima_scapy import dissect
from tests.seeds import seeds

ROOT = File(__file__).resolve().parents[2]
PATH = Path(1, bytes(range(32)), 0x0102030405060708, 3, 5, 1, 0xA1B2C3D4, "golden")
NUMBER = 0x1_0000_0007
SEALED = {  # of the golden packet with this name, by suite: its last 24 bytes, under number NUMBER in epoch 2
    "data__scatter_of_two_floats": (
        "ab96bee3b391b4b1d2310035ed09c1e865d4672b963d7e8c",
        "cc59e7788cc8fbdc67cbde98f1ab41e39e658ac1a5bbddb1",
        "8aaf5ba511722ed8b5c55404e3417f745cd6bd3c6e1bbf68",
    ),
    "data__broadcast_repair_with_all_saturated": (
        "00000000ffffffab5e37e28b8667c3acd70bb6fac4e3a123",
        "00000000ffffffcc9e08806f846281c92b42251554b26505",
        "00000000ffffff8ae30a53fd034aa147a3f975621df32c08",
    ),
    "data__many_missing_and_highest_bucket": (
        "aa963edcb391b4f1c26efc0d751dc9357a9c50d0e42a3783",
        "cd5967478cc8fb9ceb6d76d3841fdd9a74508f192031c036",
        "8bafdb9a11722e98b97f98ea61e4b706fc00bea96b8c9888",
    ),
    "feedback__first_grant_and_question": (
        "1e3e10d233bf432044a35b412c4e045fd04310f7f06f63de",
        "72631fe86e7141b1163ea2c7b488560a629a466d3698094d",
        "ab2345133062347fd9c420da910c1264771b4e6d54fe0acb",
    ),
    "feedback__two_ops_and_two_words": (
        "f1fd64219007faed7635490425b82c231b813e38d7baf73d",
        "7601c275ec8a319c2decc5e8a76ce876000fba4f773ba364",
        "94a88c8ea1b7e465aa35b6a3df42d9507b47a901bc3ce78a",
    ),
    "feedback__a_broadcast_and_an_all_gather_that_failed": (
        "9fd07f37c116d74a036042843b6cd211ccc438e74a7c8260",
        "f092a7224ede6d0ec1f547a95670af722562a18beedcee1e",
        "5f9bcbff53cd85427b2c593356c035c419130f9aec05b609",
    ),
    "feedback__an_op_of_a_partial_job_and_who_is_ready_for_the_next": (
        "9fd07f37c116d74a2eed47e35d9e162cff4fe8783c14b57f",
        "f092a7224ede6d0e40fa25b89eec41b2c92d40e3df1916a6",
        "5f9bcbff53cd85421a07a57b592e4fd5cb6bd6480a75bde1",
    ),
    "piece__second_of_a_full_packet": (
        "477a9c25fd1e4e9e589e97905a961db750986d5f64c47cf0",
        "c271204b8f11f6effa1213f851abfe3be380cdbb7b7110e6",
        "f6f8dd777b41d3dabf47394b73a0588a02309af8bd421ec1",
    ),
    "grant__five_gigabytes_in_all": (
        "382a2260f7db44fb8146c244b4204f0b4679fb5c44231e13",
        "c7d61a6299bc0479ad18fe7a34f3466cdb341d246ded2329",
        "10137c3566fb5f4017739c1844f1131eb0751dfd51896181",
    ),
}


@pytest.fixture(scope="module")
def filter_(tmp_path_factory: pytest.TempPathFactory) -> File:
    program = tmp_path_factory.mktemp("seal") / "seal_cross"
    sources = [File(__file__).with_name("seal_cross.c"), *(ROOT / "transport_c/cipher").glob("*.c")]
    command = [os.environ.get("CC", "gcc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'transport_c'}"]
    subprocess.run([*command, *map(str, sources), "-o", str(program), "-lcrypto"], check=True, timeout=60)
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
        kind, index = rng.randrange(1, 5), rng.randrange(8)
        header = bytes([0x20 | kind, index, 0, 0]) + rng.randbytes(28 if kind == 1 else 12)
        packets.append((number, header + rng.randbytes(rng.randrange(1, 1400))))
    each = rng.randrange(1, 4)
    for i, sealed in enumerate(by_c(filter_, path, each, packets)):
        number, packet = packets[i]
        plain = packet[:12] + bytes(4) + packet[16:]
        assert path.open(sealed, number, i // each) == plain, f"packet {i}"
        assert path.seal(packet, number, i // each) == sealed, f"packet {i}"
