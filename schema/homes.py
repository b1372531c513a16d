# SPDX-License-Identifier: Apache-2.0
"""Where each fact is spelled: for every file the regions that are generated in it, and what stands in them.

All else in these files is written by hand. Validators are, too: what goes together is behaviour and no spelling.
"""

from __future__ import annotations

from schema import counter_text, events, metrics, option_text, text
from schema.events import EVENT, EVENT_KIND, OP_RECORD
from schema.metrics import METRICS
from schema.option_words import OPTION_WORDS
from schema.options import JOB_OPTIONS, OPTIONS
from schema.receipt import RECEIPT
from schema.receipt_peer import PEER
from schema.receipt_words import ENUMS, GIFT, STAGE_END, STATUS, TROUBLE, WHY
from schema.rows import Enum, Struct
from schema.statistics import DRIVER_STATS, PEER_STATS, STATS
from schema.wire_words import COLLECTIVE, DTYPE, FIELD, MODE, REDOP, WIRE_WORDS

Home = dict[str, list[str]]
"""By the name of a region the lines in it. A name with spaces before it is a line itself, in a docstring where no other
mark may stand: its region ends with the next empty line."""

STRUCTS: tuple[Struct, ...] = (PEER, RECEIPT, JOB_OPTIONS, STATS, DRIVER_STATS, PEER_STATS, EVENT)
WORDS: tuple[Enum, ...] = (*ENUMS, *OPTION_WORDS, EVENT_KIND, *WIRE_WORDS)


def _receipt() -> dict[str, Home]:
    tuples = [
        *text.word_tuple("GIFTS", GIFT),
        *text.word_tuple("TROUBLES", TROUBLE),
        *text.word_tuple("STATUSES", STATUS),
        *text.word_tuple("STAGE_ENDS", STAGE_END),
        *text.word_tuple("WHYS", WHY),
    ]
    core: Home = {enum.c: text.c_values(enum, text.in_c(enum)) for enum in ENUMS}
    client: Home = {enum.python: text.str_enum(enum) for enum in ENUMS}
    bare = [f"STATUS_{value.name} = {value.number}" for value in text.in_c(STATUS)]
    return {
        "transport_c/core/base/receipt.h": core
        | {"ut_receipt_peer": text.c_fields(PEER), "ut_receipt": text.c_fields(RECEIPT)},
        "transport_c/engine.cdef.h": {
            "words of a receipt": text.cdef_values(ENUMS),
            "ut_receipt_peer": text.cdef_fields(PEER),
            "ut_receipt": text.cdef_fields(RECEIPT),
        },
        "proto/ultima/v1/records.proto": {
            "OpReceipt": text.message_fields(RECEIPT),
            "OpReceiptPeer": text.message_fields(PEER),
        },
        "client/base/receipt.py": client
        | {
            "words by number": tuples,
            "PeerReceipt": text.dataclass_fields(PEER.dataclass),
            "Receipt": text.dataclass_fields(RECEIPT.dataclass),
        },
        "client/base/words.py": {"ut_status": bare},
        "client/session/decode.py": {
            "Receipt": text.decoded(RECEIPT, "raw"),
            "PeerReceipt": text.decoded(PEER, "row"),
        },
        "daemon/engine/events.py": {"ut_status": [f"    {value.name} = {value.number}" for value in text.in_c(STATUS)]},
        "daemon/observe/record.py": {
            "troubles and reasons": text.lower_tuple("TROUBLES", TROUBLE) + text.lower_tuple("REASONS", WHY)
        },
        "daemon/rpc/local_checks.py": {
            "ut_trouble": [
                "TROUBLES = {" + ", ".join(f'{v.number}: "{v.word}"' for v in text.in_c(TROUBLE) if v.number) + "}"
            ]
        },
    }


def _options() -> dict[str, Home]:
    return {
        "transport_c/core/base/ut.h": {"words of options": option_text.c_enums(OPTION_WORDS)},
        "transport_c/core/base/options.h": {
            "numbers of options": option_text.c_constants(OPTIONS),
            "ut_job_options": text.c_fields(JOB_OPTIONS),
        },
        "transport_c/engine.cdef.h": {
            "words of options": text.cdef_values(OPTION_WORDS),
            "numbers of options": option_text.cdef_constants(OPTIONS),
            "ut_job_options": text.cdef_fields(JOB_OPTIONS),
        },
        "proto/ultima/v1/types.proto": {
            "JobOptions": option_text.message_options(JOB_OPTIONS),
            "words of options": option_text.message_enums(OPTIONS),
        },
        "proto/ultima/v1/job_options.py": {"options": option_text.python_rows(OPTIONS)},
        "daemon/base/options.py": {"Options": option_text.daemon_fields(JOB_OPTIONS)},
        "client/settings/options.py": {
            "Options": option_text.client_fields(OPTIONS),
            option_text.TABLE_HEAD: option_text.people_table(OPTIONS),
        },
        "docs/transport.md": {"options": option_text.document_table(OPTIONS)},
    }


def _statistics() -> dict[str, Home]:
    return {
        "transport_c/core/base/host.h": {
            "ut_stats": text.c_fields(STATS),
            "classes of datagrams": counter_text.class_sum(STATS),
        },
        "transport_c/core/face/engine.h": {"ut_peer_stats": text.c_fields(PEER_STATS)},
        "transport_c/udp/driver.h": {"ut_driver_stats": text.c_fields(DRIVER_STATS)},
        "transport_c/engine.cdef.h": {
            "ut_stats": text.cdef_fields(STATS),
            "ut_peer_stats": text.cdef_fields(PEER_STATS),
            "ut_driver_stats": text.cdef_fields(DRIVER_STATS),
        },
        "daemon/engine/reports.py": {
            "ut_peer_stats": text.dataclass_fields(PEER_STATS.dataclass),
            "counters of lanes": counter_text.together([STATS, DRIVER_STATS]),
        },
        "proto/ultima/v1/admin.proto": {"ut_peer_stats": counter_text.path_status(PEER_STATS)},
        "daemon/rpc/admin_service.py": {"ut_peer_stats": counter_text.path_counts(PEER_STATS)},
        "docs/operations.md": {
            "engine": counter_text.document(STATS),
            "driver": counter_text.document(DRIVER_STATS),
        },
    }


def _events() -> dict[str, Home]:
    kinds = text.in_c(EVENT_KIND)
    return {
        "transport_c/core/base/host.h": {
            "ut_event_kind": text.c_values(EVENT_KIND, kinds),
            "ut_event": text.c_fields(EVENT),
        },
        "transport_c/engine.cdef.h": {
            "ut_event_kind": text.cdef_values([EVENT_KIND]),
            "ut_event": text.cdef_fields(EVENT),
        },
        "daemon/engine/events.py": {
            "ut_event_kind": [f"    {value.name} = {value.number}" for value in kinds],
            "ut_event": text.dataclass_fields(EVENT.dataclass),
            "ut_event as it is read": text.decoded(EVENT, "raw", named=False),
        },
        "daemon/observe/ring.py": {"OpRecord": events.record_rows(OP_RECORD)},
        "proto/ultima/v1/records.proto": {"OpRecord": events.record_message(OP_RECORD)},
    }


def _wire_words() -> dict[str, Home]:
    fields = {value.number: value.word for value in FIELD.values if value.word}
    enums = {"dtype": DTYPE, "op": REDOP, "mode": MODE, "collective": COLLECTIVE}
    values = {name: {number: word for word, number in numbers(enum).items()} for name, enum in enums.items()}
    return {
        "transport_c/core/base/ut.h": {"words of the wire": option_text.c_enums(WIRE_WORDS)},
        "transport_c/engine.cdef.h": {"words of the wire": text.cdef_values(WIRE_WORDS)},
        "client/base/words.py": {
            "words of the wire": [
                *(f"{name} = {numbers(enum)!r}" for name, enum in (("OPS", REDOP), ("MODES", MODE))),
                f"COLLECTIVES = {numbers(COLLECTIVE)!r}",
                f"FIELD_BY_CODE = {fields!r}",
            ]
        },
        "daemon/engine/events.py": {
            "ut_field": [f"FIELDS = {('nothing', *fields.values())!r}", f"VALUES = {values!r}"],
        },
    }


def numbers(enum: Enum) -> dict[str, int]:
    """The numbers of an enum by their words."""
    return {value.word: value.number for value in enum.values if value.word}


def _metrics() -> dict[str, Home]:
    return {
        "daemon/observe/metric_rows.py": {"metrics": metrics.python_rows(METRICS)},
        "docs/operations.md": {
            "counters": metrics.document(METRICS, counters=True),
            "gauges": metrics.document(METRICS, counters=False),
        },
    }


def homes() -> dict[str, Home]:
    """All of them, by the file's path from the root."""
    ret: dict[str, Home] = {}
    for part in (_receipt(), _options(), _statistics(), _events(), _wire_words(), _metrics()):
        for path, home in part.items():
            ret[path] = ret.get(path, {}) | home
    return ret
