# SPDX-License-Identifier: Apache-2.0
"""The Hadamard transform in torch: to the bit what the C kernels do, and its own inverse over buckets of any size. The
same code runs on an accelerator.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.making import BUILD, TRANSPORT, make  # noqa: E402  # only where torch is
from ultima.torch.hooks import hadamard  # noqa: E402

ROW = hadamard.ROW_ELEMENTS


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C transform as a program, around the objects that the simulator is made of."""
    make("sim")
    program = tmp_path_factory.mktemp("hadamard") / "cross"
    objects = [BUILD / "sim.o.d/core/base/err.o", *sorted((BUILD / "sim.o.d/kernels").glob("*.o"))]
    command = [os.environ.get("CC", "gcc"), "-std=gnu11", "-O1", "-Wall", "-Wextra", f"-I{TRANSPORT}"]
    command += ["-o", str(program), str(TRANSPORT.parent / "tests/torch/hadamard_cross.c"), *map(str, objects), "-lm"]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    return program


def through_c(program: Path, block: torch.Tensor, key: int, scale: float, how: str) -> torch.Tensor:
    arguments = [str(program), *map(str, block.shape), str(key % 2**64), repr(scale), how]
    done = subprocess.run(arguments, input=block.numpy().tobytes(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(np.frombuffer(done.stdout, dtype=np.float32).copy()).view(block.shape)


def blocks() -> Iterator[tuple[torch.Tensor, int, float]]:
    generator = torch.Generator().manual_seed(1)
    for rows in (1, 2, 8, 32, 64, 1024):
        for columns in (1, 63, 64, 65, ROW):
            key = int(torch.randint(-(2**62), 2**62, (1,), generator=generator)) * 2 + 1
            yield torch.randn(rows, columns, generator=generator), key, 1.0 / rows


def test_transform__is_to_the_bit_the_one_in_c(cross: Path) -> None:
    """Signs, order of the sums and scale: a wrong step order already differs in the last bit."""
    for block, key, scale in blocks():
        keys = torch.tensor([key])
        mine = hadamard.transform(hadamard.signed(block.unsqueeze(1), keys), scale).squeeze(1)
        assert torch.equal(mine, through_c(cross, block, key, scale, "encode")), (block.shape, "encode")
        mine = hadamard.signed(hadamard.transform(block, scale).unsqueeze(1), keys).squeeze(1)
        assert torch.equal(mine, through_c(cross, block, key, scale, "decode")), (block.shape, "decode")


def test_transform__by_its_definition() -> None:
    """docs/papers.md, section 1.9: x = 1 .. 8 under signs (+,-,+,+,-,+,-,-)."""
    signs = torch.tensor([1.0, -1, 1, 1, -1, 1, -1, -1])
    x = torch.arange(1.0, 9)
    h = torch.tensor([[(-1.0) ** bin(i & j).count("1") for j in range(8)] for i in range(8)])
    assert torch.equal(hadamard.transform(signs * x, 1.0), h @ (signs * x))


@pytest.mark.parametrize("count", [0, 1, ROW - 1, ROW, 2 * ROW, 63 * ROW + 5, 64 * ROW, 200 * ROW + 17])
def test_encode__decodes_to_the_same_whole_numbers(count: int) -> None:
    bucket = ((torch.arange(count) * 7) % 201 - 100).float()
    before = bucket.clone()
    hadamard.encode(bucket, 5)
    assert torch.equal(bucket, before) == (count < 2 * ROW), "two rows are the least that can be mixed"
    hadamard.decode(bucket, 5)
    assert torch.equal(bucket, before)


def test_encode__sums_are_sums_of_what_is_encoded() -> None:
    count = 70 * ROW + 3
    parts = [((torch.arange(count) * (3 + rank)) % 101 - 50).float() for rank in range(3)]
    total = sum(parts)
    for part in parts:
        hadamard.encode(part, 9)
    mixed = sum(parts)
    hadamard.decode(mixed, 9)
    assert torch.equal(mixed, total)


def test_encode__spreads_what_is_lost() -> None:
    """A burst of 44 lost packets in a bucket of 64 groups: without the transform those elements are gone; with it the
    error has the same energy, and none of the elements has lost much.
    """
    count = 64 * 64 * ROW
    bucket = torch.randn(count, generator=torch.Generator().manual_seed(2))
    lost = slice(1000 * ROW + 100, 1044 * ROW + 100)
    coded = bucket.clone()
    hadamard.encode(coded, 3)
    coded[lost] = 0
    hadamard.decode(coded, 3)
    error = coded - bucket
    energy = float(bucket[lost].square().sum())
    assert float(error.square().sum()) == pytest.approx(energy, rel=0.05)
    assert float(error.abs().max()) < 1.0 < float(bucket[lost].abs().max())


def test_encode__another_number_has_other_signs() -> None:
    first, second = torch.ones(64 * ROW), torch.ones(64 * ROW)
    hadamard.encode(first, 1)
    hadamard.encode(second, 2)
    assert not torch.equal(first, second)


def test_encode__all_of_it_on_the_device_of_the_bucket() -> None:
    """A device without values: torch refuses to mix it with the CPU."""
    bucket = torch.empty(200 * ROW + 17, device="meta")
    hadamard.encode(bucket, 1)
    hadamard.decode(bucket, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
def test_encode__same_bits_on_an_accelerator() -> None:
    bucket = torch.randn(200 * ROW + 17, generator=torch.Generator().manual_seed(4))
    there = bucket.cuda()
    hadamard.encode(there, 6)
    hadamard.encode(bucket, 6)
    assert torch.equal(there.cpu(), bucket)
    hadamard.decode(there, 6)
    hadamard.decode(bucket, 6)
    assert torch.equal(there.cpu(), bucket)
