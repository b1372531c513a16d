# SPDX-License-Identifier: Apache-2.0
"""The rings of the extension, with the engine's side played by the test."""

import os
from typing import Any

import numpy as np
import pytest

from ultima._native import ffi, lib
from ultima.base.receipt import Gift, Host, StageEnd, Status, Why
from ultima.base.sparse_form import SparseCall
from ultima.base.words import (
    ADAPTIVE,
    BFLOAT16,
    COLLECTIVES,
    DTYPE_BY_CODE,
    ERR_DESYNC,
    GIVE,
    MODES,
    NOWAIT,
    OPS,
    REPLACE,
    RING_ENTRIES,
    STICKY,
)
from ultima.base.words import WORLD as BY_WORLD
from ultima.session import rings
from ultima.session.memory import SharedMap
from ultima.session.op import Layout, Op

HOSTS = (Host(0, "10.0.0.1", (0, 1)), Host(1, "10.0.0.2", (2,)), Host(2, "10.0.0.3", (3, 4)))
WORLD = 5


class EngineSide:
    """The other end of both rings."""

    def __init__(self, submissions: SharedMap, completions: SharedMap) -> None:
        self.submissions = ffi.cast("ut_submission_ring *", submissions.address)
        self.completions = ffi.cast("ut_completion_ring *", completions.address)
        self.taken = ffi.new("uint64_t *")
        self.written = ffi.new("uint64_t *")

    def take(self) -> Any:
        entry = ffi.new("ut_submission *")
        return entry if lib.ut_ring_take_submission(self.submissions, self.completions, self.taken, entry) else None

    def complete(self, receipt: Any) -> None:
        assert lib.ut_ring_complete(self.submissions, self.completions, self.written, receipt) == 0


def shared(nbytes: int) -> SharedMap:
    fd = os.memfd_create("test-ring")
    try:
        os.ftruncate(fd, nbytes)
        return SharedMap(fd, nbytes, writable=True)
    finally:
        os.close(fd)


@pytest.fixture
def pair() -> tuple[rings.NativeRings, EngineSide]:
    submissions, completions = shared(rings.SUBMISSION_RING_BYTES), shared(rings.COMPLETION_RING_BYTES)
    return rings.NativeRings([(submissions, completions)], HOSTS, 0, WORLD), EngineSide(submissions, completions)


def op_of(
    seq: int,
    src: int = 0,
    dst: int = 0,
    count: int = 4,
    deadline_ns: int = 99,
    dtype: int = 1,
    redop: int = 1,
    mode: int = 1,
    flags: int = 0,
    collective: str = "allreduce",
    root: int = 0,
    portions: int = 1,
    **said: Any,
) -> Op:
    """An op with its number and its place in the arena."""
    array, kind = np.zeros(0, np.uint8), DTYPE_BY_CODE[dtype]
    layout = Layout(COLLECTIVES[collective], count * kind.itemsize, root=root)
    times = (deadline_ns, deadline_ns)
    op = Op(array, array, array, kind, redop, mode, times=times, flags=flags, layout=layout, **said)
    op.seq, op.src, op.dst, op.portions = seq, src, dst, portions
    return op


def raw_receipt(**fields: Any) -> Any:
    raw = ffi.new("ut_receipt *", {"hosts": 3, "culprit": 0xFFFF, "status": 1, **fields})
    for index, host in enumerate(HOSTS):
        raw.peer[index].weight = len(host.ranks)
    return raw


def test_submit__every_field_arrives(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    assert engine.take() is None
    assert ours.submit(op_of(0, 64, 128, 1000, 2**63 + 5, BFLOAT16.code, OPS["avg"], MODES["reliable"]))
    entry = engine.take()
    assert (entry.op_seq, entry.src, entry.dst, entry.count, entry.deadline_ns) == (0, 64, 128, 1000, 2**63 + 5)
    assert (entry.dtype, entry.redop, entry.mode) == (lib.UT_BFLOAT16, lib.UT_AVG, lib.UT_RELIABLE)
    assert (entry.flags, entry.portion, entry.skipped, entry.entries, entry.alike.all) == (0, 0, 0, 0, 0)
    assert entry.collective == lib.UT_ALLREDUCE
    assert ours.submit(op_of(1, 64, 128, 1000, 5, BFLOAT16.code, 0, MODES["reliable"], 0, "broadcast", 2))
    entry = engine.take()
    assert (entry.redop, entry.collective, entry.alike.all) == (0, lib.UT_BROADCAST, 2)


def test_submit__sparse_words_stand_where_the_engine_reads_them(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    op = op_of(0, collective="allreduce_sparse")
    op.layout = op.layout._replace(sparse=SparseCall(entries=70, group=3, form=2, hint=60))
    assert ours.submit(op)
    entry = engine.take()
    said = entry.alike.sparse
    assert (entry.entries, said.hint, said.group, said.form, said.down) == (70, 60, 3, 2, 0)
    op.layout = op.layout._replace(collective=COLLECTIVES["barrier"], sparse=None, note=2**63)
    assert ours.submit(op)
    entry = engine.take()
    assert (entry.entries, entry.alike.note) == (0, 2**63), "nothing of the call before is left"


def test_lanes__a_split_op_in_all_lanes_and_its_completions_as_one() -> None:
    """How calls are split and joined is tested where it is done (tests/c/face/test_lanes.c); here, that ops reach it,
    that the engines are woken, and that one receipt comes back under the op's number."""
    for lanes in (2, 4):
        maps = [(shared(rings.SUBMISSION_RING_BYTES), shared(rings.COMPLETION_RING_BYTES)) for _ in range(lanes)]
        bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(lanes)]
        kept = [os.dup(bell) for bell in bells]
        ours = rings.NativeRings(maps, HOSTS, 0, WORLD, next_op_seq=1, portions=lanes, bells=bells)
        engines = [EngineSide(*each) for each in maps]
        small, large = op_of(1), op_of(0, 64, 8192, 4 << 20, 9, BFLOAT16.code, flags=ADAPTIVE)
        assert (ours.lanes, ours.portions_of(small), ours.portions_of(large)) == (lanes, 1, lanes)
        large.portions = ours.portions_of(large)
        assert ours.have_room(small) and ours.submit(small)
        assert large.take_number(2) == 2 * lanes
        assert ours.submit(large)
        assert [os.eventfd_read(bell) for bell in kept] == [1 + (lane == 1) for lane in range(lanes)]
        assert engines[1].take().op_seq == 0
        for lane in reversed(range(lanes)):
            entry = engines[lane].take()
            assert (entry.deadline_ns, entry.flags) == (9, ADAPTIVE)
            assert ours.take() is None
            portion = {"portion": entry.portion, "bytes_expected": 100 + lane, "bytes_used": 100 + lane}
            engines[lane].complete(raw_receipt(op_seq=entry.op_seq, agreed_seq=entry.op_seq, **portion))
        completion = ours.take()
        assert completion is not None and completion.op_seq == completion.number == large.seq and not completion.early
        receipt = completion.receipt
        assert receipt.op_seq == large.seq and receipt.portions == lanes
        assert receipt.bytes_used == sum(100 + lane for lane in range(lanes)) and receipt.agreed_op is None
        assert ours.take() is None
        ours.close()
        for bell in bells:
            with pytest.raises(OSError):
                os.fstat(bell)
        for bell in kept:
            os.close(bell)


def test_take__a_portion_in_which_ranks_differ_is_told_at_once() -> None:
    maps = [(shared(rings.SUBMISSION_RING_BYTES), shared(rings.COMPLETION_RING_BYTES)) for _ in range(2)]
    ours = rings.NativeRings(maps, HOSTS, 0, WORLD, next_op_seq=6, portions=2)
    engines = [EngineSide(*each) for each in maps]
    assert ours.submit(op_of(6, count=1000, portions=2))
    failed = {"status": lib.UT_FAILED, "error": ERR_DESYNC, "culprit": 1, "field": 3}
    engines[1].complete(raw_receipt(op_seq=3, portion=0x21, **failed))
    told = ours.take()
    assert told is not None and told.early and (told.number, told.error, told.culprit) == (6, ERR_DESYNC, 1)
    assert ours.take() is None
    engines[0].complete(raw_receipt(op_seq=3, portion=0x20, status=lib.UT_INSUFFICIENT))
    last = ours.take()
    assert last is not None and not last.early and (last.number, last.error) == (6, ERR_DESYNC)


def test_submit__full_until_completions_are_taken(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    for seq in range(RING_ENTRIES):
        assert ours.submit(op_of(seq))
    assert not ours.submit(op_of(RING_ENTRIES))
    assert engine.take().op_seq == 0
    engine.complete(raw_receipt(op_seq=0))
    assert not ours.submit(op_of(RING_ENTRIES)), "its completion has not been taken"
    completion = ours.take()
    assert completion is not None and completion.op_seq == 0
    assert ours.take() is None
    assert ours.submit(op_of(RING_ENTRIES))


def test_take__complete_receipt(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    raw = raw_receipt(
        op_seq=3,
        weight_min=5,
        full_mask=7,
        any_mask=7,
        bytes_expected=100,
        bytes_used=100,
        bytes_repaired=20,
        bytes_duplicate=4,
        wire_sent=300,
        wire_received=120,
        values=9,
        lacks=1,
        nonfinite=2,
        elapsed_ns=1_500_000,
        deadline_ns=2_000_000_000,
        drops_host=6,
        owners=0b101,
        stage_ns=[500_000, 1_000_000],
        stage_end=[1, 1],
    )
    raw.peer[1].expected = [60, 40]
    raw.peer[1].last_us = 1234
    engine.complete(raw)
    completion = ours.take()
    assert completion is not None
    receipt = completion.receipt
    assert (receipt.op_seq, receipt.status) == (3, Status.COMPLETE)
    assert (receipt.contributors, receipt.partly) == ((0, 1, 2, 3, 4), ())
    assert (receipt.weight_min, receipt.culprit, receipt.world_size) == (5, (), 5)
    assert (receipt.elapsed_s, *receipt.stage_s) == pytest.approx((0.0015, 0.0005, 0.001))
    assert receipt.deadline_s == pytest.approx(2.0)
    assert receipt.stage_ends == (StageEnd.COMPLETE, StageEnd.COMPLETE)
    assert (receipt.bytes_expected, receipt.bytes_used, receipt.bytes_missing) == (100, 100, 0)
    assert (receipt.bytes_repaired, receipt.bytes_duplicate, receipt.nonfinite, receipt.drops_host) == (20, 4, 2, 6)
    assert (receipt.wire_sent, receipt.wire_received, receipt.values, receipt.lacks) == (300, 120, 9, True)
    assert receipt.owners == (0, 1, 3, 4)
    assert [peer.ranks for peer in receipt.peers] == [(0, 1), (2,), (3, 4)]
    assert receipt.peers[1].expected_bytes == (60, 40)
    assert receipt.peers[1].last_s == pytest.approx(0.001234)
    assert receipt.peers[2].last_s is None


def test_take__partial_masks_become_ranks(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    raw = raw_receipt(status=2, full_mask=0b001, any_mask=0b011, culprit=2, stage_end=[2, 3])
    raw.peer[1].missing = [10, 20]
    raw.peer[1].why = 3
    raw.peer[2].why = 1
    raw.peer[2].weight = 0
    engine.complete(raw)
    completion = ours.take()
    assert completion is not None and completion.error == 0
    receipt = completion.receipt
    assert (receipt.status, receipt.contributors, receipt.partly) == (Status.PARTIAL, (0, 1), (2,))
    assert (receipt.culprit, completion.culprit) == ((3, 4), 2)
    assert receipt.stage_ends == (StageEnd.DEADLINE, StageEnd.ABSENT)
    assert (receipt.peers[1].missing_bytes, receipt.peers[1].why) == ((10, 20), Why.LOST)
    assert receipt.peers[2].why is Why.ABSENT


def test_take__host_that_sums_fewer_ranks_than_it_has(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    raw = raw_receipt(status=2, full_mask=0b111, any_mask=0b111)
    raw.peer[0].weight = 1  # this rank's own host: one of ranks 0 and 1 is missing, and it is not us
    raw.peer[2].weight = 1  # one of ranks 3 and 4
    engine.complete(raw)
    completion = ours.take()
    assert completion is not None
    assert (completion.receipt.contributors, completion.receipt.partly) == ((0, 2), (1, 3, 4))


def test_take__hosts_that_tell_which_of_their_ranks_are_in(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    """And so which are not: of the host to blame only those are named."""
    ours, engine = pair
    raw = raw_receipt(status=2, full_mask=0b011, any_mask=0b111, culprit=2, trouble=lib.UT_TROUBLE_GONE)
    raw.peer[0].weight, raw.peer[0].fresh, raw.peer[0].late = 1, 0b10, 0b01
    raw.peer[1].fresh = 1
    raw.peer[2].weight, raw.peer[2].fresh, raw.peer[2].gone = 1, 0b01, 0b10
    engine.complete(raw)
    completion = ours.take()
    assert completion is not None
    receipt = completion.receipt
    assert (receipt.contributors, receipt.partly, receipt.culprit) == ((1, 2), (3,), (4,))
    assert [(peer.fresh, peer.gone, peer.late) for peer in receipt.peers] == [
        ((1,), (), (0,)),
        ((2,), (), ()),
        ((3,), (4,), ()),
    ]
    assert receipt.gone == (4,) and receipt.peers[0].oldest_step is None


def test_take__a_rank_that_called_too_late_holds_its_own_value(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    raw = raw_receipt(status=3, full_mask=1, any_mask=1, culprit=0, trouble=lib.UT_TROUBLE_SENDER)
    raw.peer[0].weight, raw.peer[0].fresh, raw.peer[0].late = 0, 0b01, 0b01
    engine.complete(raw)
    completion = ours.take()
    assert completion is not None
    receipt = completion.receipt
    assert (receipt.contributors, receipt.partly, receipt.culprit) == ((0,), (), (0,))


def test_take__failure_keeps_the_numbers_of_a_desync(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    engine.complete(raw_receipt(status=4, error=lib.UT_ERR_DESYNC, culprit=1, field=3, value_here=10, value_there=12))
    completion = ours.take()
    assert completion is not None
    assert (completion.error, completion.culprit, completion.field) == (ERR_DESYNC, 1, lib.UT_FIELD_COUNT)
    assert (completion.value_here, completion.value_there) == (10, 12)
    assert completion.receipt.status is Status.FAILED


def test_take__receipt_is_of_its_own_op_however_late_it_is_read(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    """The struct that C fills is the same for every op; a receipt must not look into it when the next one has come."""
    ours, engine = pair
    receipts, wanted = [], []
    for seq in range(2):
        raw = raw_receipt(op_seq=seq, weight_min=3 + seq, any_mask=7, nonfinite=seq, status=2 - seq, digest=77 + seq)
        raw.peer[2].last_us = 10 + seq
        wanted.append(rings.decode_receipt(raw, HOSTS, 0, WORLD))
        engine.complete(raw)
        completion = ours.take()
        assert completion is not None
        receipts.append(completion.receipt)
    assert receipts == wanted


def test_take__unknown_numbers_do_not_break_it(pair: tuple[rings.NativeRings, EngineSide]) -> None:
    ours, engine = pair
    raw = raw_receipt(status=2, stage_end=[250, 0], culprit=63)
    raw.hosts = 64
    raw.peer[1].why = 99
    engine.complete(raw)
    completion = ours.take()
    assert completion is not None
    assert completion.receipt.stage_ends == (StageEnd.NONE, StageEnd.NONE)
    assert completion.receipt.peers[1].why is Why.NOTHING
    assert completion.receipt.culprit == ()


def test_partial__a_call_is_told_by_its_own_number() -> None:
    """Steps and the wanted op go in; the answer names the submission, the op, and who was in it with what."""
    maps = shared(rings.SUBMISSION_RING_BYTES), shared(rings.COMPLETION_RING_BYTES)
    ours, engine = rings.NativeRings([maps], HOSTS, 1, WORLD, partial=True), EngineSide(*maps)
    flags = GIVE | REPLACE | STICKY | NOWAIT | BY_WORLD
    assert ours.submit(op_of(3, 0, 64, 4, 9, 1, 2, 1, flags, wanted=70, steps=(65, 69)))
    entry = engine.take()
    names = ("GIVE", "REPLACE", "STICKY", "NOWAIT", "WORLD")
    assert entry.flags == sum(getattr(lib, f"UT_SUBMIT_{name}") for name in names)
    assert (entry.op_seq, entry.wanted, entry.oldest_step, entry.newest_step) == (3, 70, 65, 69)
    raw = raw_receipt(
        op_seq=72, call_seq=3, policy=lib.UT_POLICY_MAJORITY, slot=lib.UT_SLOT_STALE, included=3, initiator=2, eta=6,
        kept=1, waited_ns=2_000_000, full_mask=0b101, any_mask=0b111,
    )  # fmt: skip
    raw.peer[0].stale, raw.peer[0].oldest_step = 0b10, 65
    raw.peer[1].fresh, raw.peer[1].oldest_step = 0b1, 71
    raw.peer[2].fresh, raw.peer[2].oldest_step = 0b1, 72
    engine.complete(raw)
    completion = ours.take()
    assert completion is not None and (completion.number, completion.op_seq, completion.status) == (3, 72, 1)
    receipt = completion.receipt
    assert (receipt.policy, receipt.gift, receipt.included, receipt.initiator) == ("majority", Gift.STALE, 3, (3, 4))
    assert (receipt.fresh, receipt.stale, receipt.stale_steps) == ((2, 3), (1,), {1: 65})
    assert (receipt.kept, receipt.eta, receipt.waited_s) == (True, 6, 0.002)
    assert (receipt.contributors, receipt.partly) == ((1, 3), (2,)), "only those of a host that gave"
    assert receipt.missing_ranks == (0, 2, 4), "COMPLETE says nothing of ranks that had nothing to give"
    assert [peer.oldest_step for peer in receipt.peers] == [65, 71, 72]


def test_partial__empty_overtaken_and_late() -> None:
    maps = shared(rings.SUBMISSION_RING_BYTES), shared(rings.COMPLETION_RING_BYTES)
    ours, engine = rings.NativeRings([maps], HOSTS, 1, WORLD, partial=True), EngineSide(*maps)
    for seq, status in enumerate((lib.UT_EMPTY, lib.UT_OVERTAKEN, lib.UT_INSUFFICIENT)):
        assert ours.submit(op_of(seq, redop=2, flags=GIVE))
        assert engine.take() is not None
        engine.complete(raw_receipt(op_seq=5, call_seq=seq, policy=lib.UT_POLICY_SOLO, status=status, initiator=0xFFFF))
        completion = ours.take()
        assert completion is not None and (completion.number, completion.status, completion.error) == (seq, status, 0)
        assert completion.receipt.initiator == ()
    assert (completion.receipt.status, completion.receipt.contributors) == (Status.INSUFFICIENT, (1,))
    assert completion.receipt.included == 0


def test_words__of_the_slot() -> None:
    maps = shared(rings.SUBMISSION_RING_BYTES), shared(rings.COMPLETION_RING_BYTES)
    ours, engine = rings.NativeRings([maps], HOSTS, 1, WORLD, partial=True), EngineSide(*maps)
    assert ours.words() == (0, 0, 0)
    engine.completions.taken, engine.completions.freed, engine.completions.results = 7, 6, 40
    assert ours.words() == (7, 6, 40) == (ours.words().taken, ours.words().freed, ours.words().results)


def test_lanes__ops_take_turns_and_come_back_under_their_own_number() -> None:
    lanes = [(shared(rings.SUBMISSION_RING_BYTES), shared(rings.COMPLETION_RING_BYTES)) for _ in range(2)]
    both = rings.NativeRings(lanes, HOSTS, 0, WORLD)
    engines = [EngineSide(*lane) for lane in lanes]
    for op_seq in range(5):
        assert both.submit(op_of(op_seq))
    taken = [[engine.take().op_seq for _ in range(count)] for engine, count in zip(engines, (3, 2), strict=True)]
    assert taken == [[0, 1, 2], [0, 1]], "each lane counts its own"
    engines[1].complete(raw_receipt(op_seq=0))
    engines[1].complete(raw_receipt(op_seq=1, agreed_seq=0))
    engines[0].complete(raw_receipt(op_seq=2, agreed_seq=1))
    found = [(done.op_seq, both._raw.agreed_seq) for _ in range(4) if (done := both.take()) is not None]
    assert sorted(found) == [(1, 1), (3, 1), (4, 2)], "in whatever order the lanes ended; with the op agreed on"
    assert both.take() is None
