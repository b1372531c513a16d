# SPDX-License-Identifier: Apache-2.0
"""What stands twice, once in C and once in Python, is the same: limits, options, errors, events, words.

Python holds these numbers again because the client's fake and the client's command line must run without the extension.
`tests/client/base/test_words.py` compares what trainers and the engine share in memory.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ultima.settings.options
from ultima._native import ffi, lib
from ultima.coded import codes
from ultima.coded.plan import AMPLIFICATION_MAX
from ultima.daemon.base.errors import ENGINE_ERRORS
from ultima.daemon.base.options import NAMES
from ultima.daemon.base.options import Options as DaemonOptions
from ultima.daemon.engine import engine
from ultima.v1 import admin_pb2, job_options, limits, records_pb2, types_pb2

PREFIXES = {"algorithm": "", "congestion": "CC_", "hadamard": "HADAMARD_", "timer_start": "TIMER_", "policy": "POLICY_"}
PREFIXES |= {"code": "CODE_", "exact": "EXACT_", "split": "SPLIT_", "deterministic": "DETERMINISTIC_"}
WORDS = [row for row in job_options.OPTIONS if row.words]


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
    ours = {"LANES_MAX", "JOB_NAME_MAX", "PACKET_BYTES_STEP"}  # that the core does not know
    assert {name for name in vars(limits) if name.isupper()} == pairs.keys() | ours


def test_options__are_the_fields_of_the_message_and_of_the_core() -> None:
    carried = {"policy_from", "revision"}
    message = {field.name for field in types_pb2.JobOptions.DESCRIPTOR.fields}
    struct = {name for name, _ in ffi.typeof("ut_job_options").fields}
    assert set(job_options.BY_FIELD) == message - carried == struct - {"policy_from", "reserved"} == set(NAMES)
    assert {row.name for row in job_options.OPTIONS} == set(ultima.settings.options.Options.__dataclass_fields__)


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row.field)
def test_options__words_have_the_numbers_of_the_message_and_of_the_core(row: job_options.Row) -> None:
    enum = getattr(types_pb2, "".join(part.title() for part in row.field.split("_")))
    named = {name.removeprefix(f"{row.field.upper()}_").lower(): number for name, number in enum.items() if number}
    assert named == {word: number for number, word in enumerate(row.words, 1)}
    assert [getattr(lib, f"UT_{PREFIXES[row.field]}{word.upper()}") for word in row.words] == list(named.values())


def test_options__what_stands_for_a_default_is_the_same_in_the_core() -> None:
    rows = job_options.BY_FIELD
    automatic = {row.field: row.automatic for row in job_options.OPTIONS if row.automatic}
    assert automatic == {"tau": lib.UT_TAU, "eta": lib.UT_ETA, "probes": lib.UT_PROBES}
    assert rows["early_percent"].default == lib.UT_EARLY_PERCENT
    assert rows["incast"].most == lib.UT_INCAST_MAX
    for row in job_options.OPTIONS:
        assert getattr(DaemonOptions(), row.field) == row.default


def test_options__every_value_that_python_lets_through_fits_its_field_in_the_core() -> None:
    fields = dict(ffi.typeof("ut_job_options").fields)
    for row in job_options.OPTIONS:
        assert row.most < 2 ** (8 * ffi.sizeof(fields[row.field].type)), row.field


def test_options__their_table_for_people_says_the_same_numbers() -> None:
    """Docstring of the client's options, which is what `help()` shows."""
    text = ultima.settings.options.__doc__ or ""
    for row in job_options.OPTIONS:
        (line,) = re.findall(rf"^ +{row.name} +ULTIMA_{row.name.upper()} +(.*)$", text, re.MULTILINE)
        expected = ", ".join(row.words) or (f"auto ({row.automatic})" if row.automatic else "")
        assert line.startswith(expected), row.name
        if not row.words and not row.span and row.most <= 255:
            assert f"1 to {row.most}:" in line, row.name


def test_peers__have_every_statistic_of_the_core() -> None:
    struct = [name for name, _ in ffi.typeof("ut_peer_stats").fields if name != "reserved"]
    assert list(engine.PEER_FIELDS) == struct
    bare = {name.removesuffix("_ns") for name in struct}
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


def test_engine__events_and_fields_are_those_of_the_core() -> None:
    for kind in engine.EventKind:
        assert kind == getattr(lib, f"UT_EVENT_{kind.name}")
    header = (Path(__file__).resolve().parents[1] / "transport_c/engine.cdef.h").read_text()
    assert set(re.findall(r"UT_EVENT_(\w+) \.\.\.", header)) == {kind.name for kind in engine.EventKind}
    names = {"nothing": "NONE", "op": "REDOP"}
    for number, name in enumerate(engine.FIELDS):
        assert number == getattr(lib, f"UT_FIELD_{names.get(name, name.upper())}"), name
    assert set(re.findall(r"UT_FIELD_(\w+) \.\.\.", header)) == {names.get(n, n.upper()) for n in engine.FIELDS}
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
