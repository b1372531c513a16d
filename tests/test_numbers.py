# SPDX-License-Identifier: Apache-2.0
"""What stands twice, once in C and once in Python, and is not generated from schema/, is the same: limits and errors.

Python holds these numbers again because the client's fake and the client's command line must run without the extension.
`tests/client/base/test_words.py` compares what trainers and the engine share in memory.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ultima._native import ffi, lib
from ultima.base import words
from ultima.coded import codes
from ultima.coded.plan import AMPLIFICATION_MAX
from ultima.daemon.base.errors import ENGINE_ERRORS
from ultima.daemon.base.ranges import OP_SEQ_MAX, STEP_OPS
from ultima.daemon.engine import engine
from ultima.v1 import admin_pb2, limits, records_pb2
from ultima.v1.wires import WIRE_NAME_MAX, WIRES, WIRES_MAX

ROOT = Path(__file__).resolve().parents[1]


def test_limits__are_those_of_the_core() -> None:
    pairs = {
        "JOBS_MAX": lib.UT_JOBS_MAX,
        "SESSIONS_MAX": lib.UT_SESSIONS_MAX,
        "HOSTS_MAX": lib.UT_HOSTS_MAX,
        "WIRE_VERSION": lib.UT_WIRE_VERSION,
        "LOCAL_RANKS_MAX": lib.UT_LOCAL_MAX,
        "WORLD_SIZE_MAX": lib.UT_HOSTS_MAX * lib.UT_LOCAL_MAX,
        "PACKET_BYTES_MIN": lib.UT_PACKET_MIN,
        "PACKET_BYTES_MAX": lib.UT_PACKET_MAX,
        "BUCKET_BYTES_MAX": lib.UT_BUCKET_MAX,
    }
    assert {name: getattr(limits, name) for name in pairs} == pairs
    ours = {"LANES_MAX", "JOB_NAME_MAX", "MEET_MAX", "PACKET_BYTES_STEP"}  # that the core does not know
    assert {name for name in vars(limits) if name.isupper()} == pairs.keys() | ours


def test_wires__are_those_of_the_client() -> None:
    known = (*words.WIRES, *(f"down_{form}" for form in words.DOWNS))
    assert known == WIRES and len(WIRES) <= WIRES_MAX and max(map(len, WIRES)) <= WIRE_NAME_MAX


def test_steps__have_as_many_numbers_as_in_the_core() -> None:
    (bits,) = re.findall(r"UT_OP_SEQ_BITS = (\d+)", (ROOT / "transport_c/core/base/ut.h").read_text())
    text = (ROOT / "transport_c/ext/coded/coded.h").read_text()
    assert "UT_STEP_OPS = (1 << (UT_OP_SEQ_BITS - 32)) - UT_OPS_MAX + 1," in text
    assert OP_SEQ_MAX == 2 ** int(bits) >= 2**32 * STEP_OPS
    assert 2 ** (int(bits) - 32) - 4 + 1 == STEP_OPS


def test_peers__have_every_statistic_of_the_core() -> None:
    bare = {name.removesuffix("_ns") for name in engine.PEER_FIELDS}
    fields = admin_pb2.JobHostStatus.DESCRIPTOR.fields_by_name
    shown = {name.removesuffix("_us").removesuffix("_count") for name in fields}
    assert bare - {"up"} <= shown


@pytest.mark.parametrize(("struct", "message"), [("ut_receipt", "OpReceipt"), ("ut_receipt_peer", "OpReceiptPeer")])
def test_receipts__messages_have_every_field_of_the_struct(struct: str, message: str) -> None:
    """A field that is left out is never seen by `ultima explain`. `slot` and `kept` answer the call of one rank."""
    fields = {name for name, _ in ffi.typeof(struct).fields} - {"reserved", "slot", "kept"}
    assert set(getattr(records_pb2, message).DESCRIPTOR.fields_by_name) == fields


def test_errors__have_names_of_the_core() -> None:
    assert all(getattr(lib, f"UT_ERR_{name}") < 0 for name in ENGINE_ERRORS)


def test_engine__an_instant_that_does_not_come_is_that_of_the_core() -> None:
    assert lib.UT_NEVER == engine.NEVER


@pytest.mark.parametrize("children", range(2, 17))
def test_linear_codes__are_those_by_which_the_core_decodes(children: int) -> None:
    """Trainers send by the client's numbers, the core adds by its own."""
    for late in range(min(children, 6)):
        if not codes.linear(children, late).amplification <= AMPLIFICATION_MAX:
            continue
        core = np.empty((children, children))
        lib.ut_code_encoding(children, late, ffi.cast("double *", ffi.from_buffer(core)))
        client = codes.linear(children, late).encoding
        assert np.abs(core - client).max() < 1e-11 * np.abs(client).max(), late
