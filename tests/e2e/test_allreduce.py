# SPDX-License-Identifier: Apache-2.0
"""Values: what comes out of a real op over real daemons is what numpy says, to the bit where the sums are exact."""

import random
import time
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import DaemonProcess, Hosts, everywhere, ranks
from tests.oracle import reduce_arrays
from tests.seeds import seeds
from ultima import Receipt, Status
from ultima.base.buffers import AnyArray
from ultima.base.reference import bfloat16_bits
from ultima.base.words import DTYPES, OPS, DType

# Payload of a full packet at MTU 1500, bytes: 1472 less a header of 32.
PACKET_PAYLOAD = 1440


def contribution(rank: int, count: int, kind: DType, low: int = -3, high: int = 4) -> AnyArray:
    """Small whole numbers, other ones on each rank: sums are exact in every type."""
    values = np.random.default_rng(1000 * count + rank).integers(low, high, count)
    if kind.name == "bfloat16":
        return bfloat16_bits(values.astype(np.float32))
    return values.astype(kind.numpy)


def check(jobs: list[ultima.Job], arrays: list[AnyArray], kind: DType, op: str, **options: Any) -> list[Receipt]:
    """One op on all ranks, in place; all must be complete and equal to the oracle, bit for bit."""
    expected = reduce_arrays(arrays, kind, op)
    handles = [
        job.allreduce_async(each, op, dtype=kind.name, **options) for job, each in zip(jobs, arrays, strict=True)
    ]
    receipts = [handle.wait() for handle in handles]
    for rank, (receipt, result) in enumerate(zip(receipts, arrays, strict=True)):
        assert receipt.status is Status.COMPLETE, f"rank {rank}: {receipt}"
        np.testing.assert_array_equal(
            result, expected, err_msg=f"rank {rank}, {kind.name} {op}, {result.size} elements"
        )
    return receipts


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_allreduce__every_dtype_and_op(four: Hosts, world: int) -> None:
    with ranks(four[:world]) as jobs:
        for kind in DTYPES.values():
            for op in OPS:
                check(jobs, [contribution(rank, 1000, kind) for rank in range(world)], kind, op)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_allreduce__every_size_mod_64_and_around_a_packet(four: Hosts, world: int) -> None:
    kind = DTYPES["float32"]
    per_packet = PACKET_PAYLOAD // kind.itemsize
    around = [world * per_packet * packets + more for packets in (1, 2) for more in (-world, -1, 0, 1, world)]
    with ranks(four[:world]) as jobs:
        for count in [*range(131), *around]:
            check(jobs, [contribution(rank, count, kind) for rank in range(world)], kind, "avg")


@pytest.mark.parametrize("name", ["float64", "bfloat16"])
def test_allreduce__other_element_sizes_in_every_small_count(four: Hosts, name: str) -> None:
    kind = DTYPES[name]
    with ranks(four[:3]) as jobs:
        for count in range(70):
            check(jobs, [contribution(rank, count, kind) for rank in range(3)], kind, "sum")


@pytest.mark.parametrize("mode", ["bounded", "reliable"])
def test_allreduce__large_and_accounted(four: Hosts, mode: str) -> None:
    """4 MiB on four hosts: the receipt accounts for 2 (N-1)/N of it on each host, and blames nobody."""
    kind, count = DTYPES["float32"], 1 << 20
    shard = count * kind.itemsize // 4
    with ranks(four) as jobs:
        receipts = check(jobs, [contribution(rank, count, kind) for rank in range(4)], kind, "avg", mode=mode)
        for rank, receipt in enumerate(receipts):
            assert receipt.bytes_expected == receipt.bytes_used == 2 * 3 * shard
            assert (receipt.bytes_missing, receipt.culprit, receipt.contributors) == (0, (), (0, 1, 2, 3))
            assert receipt.weight_min == 4 and receipt.elapsed_s > 0
            for peer in receipt.peers:
                assert peer.expected_bytes == ((0, 0) if peer.host == rank else (shard, shard))
                assert (peer.weight, peer.missing_bytes) == (1, (0, 0))


@pytest.mark.parametrize("layout", [(0, 0, 0), (0, 0, 1, 1), (0, 1, 1, 0, 2)])
def test_allreduce__several_ranks_on_a_host(four: Hosts, layout: tuple[int, ...]) -> None:
    with ranks([four[host] for host in layout]) as jobs:
        assert [len(host.ranks) for host in jobs[0].hosts] == [layout.count(host) for host in sorted(set(layout))]
        for kind in DTYPES.values():
            for op in OPS:
                arrays = [contribution(rank, 777, kind, 1, 3) for rank in range(len(layout))]
                for receipt in check(jobs, arrays, kind, op):
                    assert receipt.contributors == tuple(range(len(layout)))
        kind = DTYPES["int32"]
        for count in (0, 1, 2, 5):
            check(jobs, [contribution(rank, count, kind) for rank in range(len(layout))], kind, "sum")


def test_allreduce__two_jobs_at_once(four: Hosts) -> None:
    """Both go through the same engines; neither may see the other's values."""
    kind = DTYPES["int64"]
    with ranks(four[:3]) as first, ranks(four[:2]) as second:

        def work(number: int) -> None:
            jobs = (first, second)[number]
            for step in range(60):
                arrays = [contribution(rank, 2000 + step + number, kind) for rank in range(len(jobs))]
                check(jobs, arrays, kind, "sum")

        assert everywhere([first[0], second[0]], lambda number, _: work(number)) == [None, None]


def test_allreduce__many_under_way(four: Hosts) -> None:
    """More than the ring holds, some from the arena, waited for in another order than they were started in."""
    kind, count = DTYPES["float32"], 200
    with ranks(four[:3]) as jobs:

        def work(rank: int, job: ultima.Job) -> int:
            arrays = []
            for number in range(count):
                data = job.empty(64) if number % 3 == 0 else np.empty(64, dtype=np.float32)
                data[:] = contribution(rank, 64 + number, kind)[:64]
                arrays.append(data)
            handles = [job.allreduce_async(each, "sum") for each in arrays]
            order = list(range(count))
            random.Random(rank).shuffle(order)
            wrong = 0
            for number in order:
                assert handles[number].wait().complete
                whole = reduce_arrays([contribution(other, 64 + number, kind) for other in range(3)], kind, "sum")[:64]
                wrong += int((arrays[number] != whole).any())
            return wrong

        assert everywhere(jobs, work) == [0, 0, 0]


@pytest.mark.parametrize("seed", seeds(1))
def test_allreduce__random_shapes_of_work(four: Hosts, seed: int) -> None:
    """Replay: put the seed that the name of the failed test shows into the list above."""
    rng = random.Random(seed)
    for world in (2, 3, 4):
        with ranks(four[:world]) as jobs:
            for step in range(40):
                kind = DTYPES[rng.choice([*DTYPES])]
                op = rng.choice([*OPS])
                count = rng.choice([rng.randrange(70), rng.randrange(4000), rng.randrange(200_000)])
                arrays = [contribution(rank, count, kind) for rank in range(world)]
                try:
                    check(jobs, arrays, kind, op)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed} world {world} step {step}") from error


def test_empty__arrays_outlive_their_session(four: Hosts) -> None:
    """The daemon takes the memory of a session back at its end; what the program still holds of it stays as it is."""
    with ranks(four[:2], arena=1 << 20) as jobs:
        arrays = [job.empty(50_000, "float32") for job in jobs]
        for rank, array in enumerate(arrays):
            array[:] = rank + 1.0
        check(jobs, list(arrays), DTYPES["float32"], "sum")
    for host, array in zip(four, arrays, strict=False):
        gone_within(host, 10)
        assert float(array.sum()) == 150_000.0
        array += 1.0
        assert float(array.sum()) == 200_000.0


def gone_within(host: DaemonProcess, seconds: float) -> None:
    """The daemon has taken back the memory of all its trainers."""
    limit = time.monotonic() + seconds
    while host.log().count("trainer attached") != host.log().count("trainer gone"):
        assert time.monotonic() < limit, host.log()
        time.sleep(0.01)
