# SPDX-License-Identifier: Apache-2.0
"""Which exception each failure of the engine becomes, and whom it blames."""

import dataclasses

import pytest

import ultima
from tests.client.base.test_receipt import PARTIAL
from ultima.base import words
from ultima.base.receipt import Host, Status
from ultima.session.attachment import Completion
from ultima.session.op import failure_of

HOSTS = (Host(0, "10.0.0.1", (0, 1)), Host(1, "10.0.0.2", (2, 3, 4)))
ASKED = {"dtype": 1, "op": 2, "count": 10, "mode": 1}
RECEIPT = dataclasses.replace(PARTIAL, status=Status.FAILED, culprit=(2, 3, 4))


def failure(
    error: int, culprit: int | None = 1, field: int = 0, here: int = 0, there: int = 0, rank: int = 0
) -> Exception:
    return failure_of(Completion(7, error, culprit, field, here, there, RECEIPT), HOSTS, rank, ASKED)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            words.ERR_TIMEOUT,
            ultima.DeadlineExceeded,
            "it did not finish by its deadline; waiting for ranks 2-4",
        ),
        (words.ERR_ABSENT, ultima.RanksGone, "op 7 (reliable): ranks 2-4 cannot take part any more"),
        (words.ERR_TOO_LARGE, ultima.ResourceExhausted, "bucket_bytes_max"),
        (words.ERR_FULL, ultima.ResourceExhausted, "no room"),
        (words.ERR_DTYPE, ultima.InvalidArgument, "dtype is"),
        (words.ERR_REDOP, ultima.InvalidArgument, "op is"),
        (words.ERR_RANGE, ultima.InvalidArgument, "array is"),
        (-99, ultima.ProtocolError, "error -99"),
    ],
)
def test_failure_of__each_error(error: int, kind: type[Exception], text: str) -> None:
    found = failure(error)
    assert type(found) is kind
    assert text in str(found)


@pytest.mark.parametrize(
    ("rank", "culprit", "here", "there", "blamed", "mine", "theirs"),
    [
        (0, 1, 10, 12, 2, 10, 12),  # another host: its first rank stands for it
        (0, 0, 10, 12, 1, 10, 12),  # our own host has one other rank
        (1, 0, 12, 10, 0, 10, 12),  # the same account, read on the other side
        (2, 1, 10, 12, None, 10, 12),  # our own host has two others: which one is not known
        (0, None, 10, 12, None, 10, 12),
        (0, 63, 10, 12, None, 10, 12),
    ],
)
def test_failure_of__desync(
    rank: int, culprit: int | None, here: int, there: int, blamed: int | None, mine: int, theirs: int
) -> None:
    found = failure(words.ERR_DESYNC, culprit, 3, here, there, rank)
    assert isinstance(found, ultima.Desync)
    assert (found.rank, found.field, found.mine, found.theirs, found.op_seq) == (blamed, "count", mine, theirs, 7)


def test_failure_of__desync_in_words() -> None:
    assert str(failure(words.ERR_DESYNC, 1, 1, 1, 4)) == "op 7: dtype differs: 'float32' here, 'bfloat16' on rank 2"
