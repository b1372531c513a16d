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
        "ab96bee3b391b4b1f37f401fd5b4e9943792832ddffe4c58",
        "cc59e7788cc8fbdc20d8c1539581fac828280592c5269876",
        "8aaf5ba511722ed8b0b28fa7aadfd2fde3bc18b9b7e531fb",
    ),
    "data__broadcast_repair_with_all_saturated": (
        "00000000ffffffab7f79a2a1bedaebd0854d52fc8d2093f7",
        "00000000ffffffccd91b9fa4e0483ae29d0faa46342f20c2",
        "00000000ffffff8adef78da0cbe7f4d02ae0d0de66bd9f9a",
    ),
    "data__many_missing_and_highest_bucket": (
        "aa963edcb391b4f1e320bc274da0e14928dab4d6ade90557",
        "cd5967478cc8fb9cac7e6918e03566b1c21d004a40ac85f1",
        "8bafdb9a11722e98b46cd38d29820b9083e71826b5560b1b",
    ),
    "feedback__first_grant_and_question": (
        "1e3e10d233bf4320ccc16d7110e4e19ae439f57cf00f9a05",
        "72631fe86e7141b16a87ba7add3dd5635d05c6bd44844cf4",
        "ab2345133062347f0a9c3e344033c101a50a2ebf15f1cb57",
    ),
    "feedback__two_ops_and_two_words": (
        "f1fd64219007faed0d145af3014510ecde4b6baccaa61338",
        "7601c275ec8a319cb06b663c8188602d931ad8444f9d1a6c",
        "94a88c8ea1b7e46542e06bd55c4fa59d704d9c913cf4135b",
    ),
    "feedback__a_broadcast_and_an_all_gather_that_failed": (
        "9fd07f37c116d74a91a1b7466d2b8a27aad9b736371bb824",
        "f092a7224ede6d0e467cb5b27569bb66a6276791bdd8b565",
        "5f9bcbff53cd85429e1cc3d7c126030f20d9949d59455326",
    ),
    "feedback__an_op_of_a_partial_job_and_who_is_ready_for_the_next": (
        "9fd07f37c116d74abc2cb2210bd94e1a995267a941738f3b",
        "f092a7224ede6d0ec773d7a3bdf555a64a6886f98c1d4ddd",
        "5f9bcbff53cd85423df70e20c5941c20d2315c4c77b45afe",
    ),
    "piece__second_of_a_full_packet": (
        "477a9c25fd1e4e9ecf3d9ed4b9034e5b956f08e4b11a39e5",
        "c271204b8f11f6efb3307923aa76aa6f561cea73cf6e53e8",
        "f6f8dd777b41d3daf08a7591bf8e77043949baf5b1fb7c06",
    ),
    "grant__five_gigabytes_in_all": (
        "382a2260f7db44fb027007c655498577fca446520016d99a",
        "c7d61a6299bc0479a2fcac6a04763e4659f0167b80ea87eb",
        "10137c3566fb5f40d28b70b0080a1d9cd06faa0e98bb6307",
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
