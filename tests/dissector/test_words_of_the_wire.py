# SPDX-License-Identifier: Apache-2.0
"""PROTOCOL.md, the dissector and the core give the numbers of the wire the same meaning.

The dissector is written from the document by a second reader, and the core's numbers come from schema/: neither is made
from the other, so here all three are compared.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schema.option_words import ALGORITHM, POLICY
from schema.rows import Enum
from schema.wire_words import COLLECTIVE, DTYPE, FIELD, MODE, REDOP
from tests.dissector import ultima_scapy

PROTOCOL = (Path(__file__).resolve().parents[2] / "transport_c/PROTOCOL.md").read_text()
# Where the document lists them, and what the dissector calls them.
PLACES = {
    "dtype": (DTYPE, r"\| dtype: (.+?) \|", ultima_scapy.DTYPES),
    "reduction": (REDOP, r"belongs to allreduce and reduce-scatter: (.+?)\.", ultima_scapy.REDUCTIONS),
    "mode": (MODE, r"\| mode: (.+?) \|", ultima_scapy.MODES),
    "algorithm": (ALGORITHM, r"high nibble: algorithm, (.+?)\.", ultima_scapy.ALGORITHMS),
    "policy": (POLICY, r"policy in force, (.+?) \|", ultima_scapy.POLICIES),
    "collective": (COLLECTIVE, r"are the collective: (.+?)\.", ultima_scapy.COLLECTIVES),
    "field": (FIELD, r"with flag 0x08, (.+?)\.", None),
}
# The document writes for people.
SAYS = {
    "parameter server": "ps",
    "sparse allreduce": "allreduce_sparse",
    "quantised allreduce": "allreduce_quant",
    "reduction": "op",
    "epoch": "view",
}


def listed(document: str, pattern: str) -> dict[int, str]:
    """The numbers and names of a list such as "1 TAR, 2 ring"."""
    (found,) = re.findall(pattern, document, re.DOTALL)
    rows = (row.split(" ", 1) for row in " ".join(found.split()).split(", "))
    return {int(number): SAYS.get(name.lower(), re.sub("[- ]", "_", name.lower())) for number, name in rows}


def of_schema(enum: Enum) -> dict[int, str]:
    return {value.number: value.word or value.name.lower() for value in enum.values}


@pytest.mark.parametrize("kind", PLACES)
def test_numbers__mean_the_same_in_document_dissector_and_core(kind: str) -> None:
    enum, pattern, dissector = PLACES[kind]
    core = of_schema(enum)
    document = listed(PROTOCOL, pattern)
    not_sent = {
        "policy": {1},  # NONE: a job without a policy sends 0
        "field": {0},  # NONE
    }.get(kind, set())
    assert document == {number: word for number, word in core.items() if number not in not_sent}
    if dissector is not None:
        assert {number: word for number, word in dissector.items() if number or kind != "policy"} == document


def test_numbers__a_document_that_says_another_one_is_found() -> None:
    planted = PROTOCOL.replace("2 ring, 3 BCube", "3 ring, 2 BCube")
    assert listed(planted, PLACES["algorithm"][1]) == {1: "tar", 2: "bcube", 3: "ring", 4: "ps", 5: "tree"}
