# SPDX-License-Identifier: Apache-2.0
"""Quantised gradients in training: two ranks, two daemons, real processes. `quant_cases.py` has what the ranks do."""

import pytest

from tests.torch.ranks import Outcome, run_ranks
from ultima.demo.cluster import Cluster

pytestmark = [pytest.mark.timeout(150), pytest.mark.check]

CASES = "tests.torch.quant_cases"
# Square errors at random, of gradients whose blocks are no worse than Gaussian: twice what test_error.py has.
MOST = {"int16": 6e-9, "int8": 4e-4, "int4": 0.1}


@pytest.fixture(scope="module")
def quant(cluster: Cluster) -> list[Outcome]:
    """What the cases brought back, per rank."""
    return run_ranks("shared", 2, cluster.sockets, 120, None, CASES)


def test_quantize_hook__averages_within_its_error(quant: list[Outcome]) -> None:
    first, second = (outcome.case("ddp") for outcome in quant)
    for wire, most in MOST.items():
        assert first[wire]["bits"] == second[wire]["bits"], f"{wire}: the same bits on all ranks"
        assert min(first[wire]["errors"]) > 0 and max(first[wire]["errors"]) < most, (wire, first[wire]["errors"])
        quantised, ops, missing = first[wire]["ops"]
        assert quantised == ops > 3 and missing == 0 and first[wire]["wires"] == [wire]
    assert min(first["int8"]["errors"]) > 100 * max(first["int16"]["errors"])


def test_quantize_hook__trains(quant: list[Outcome]) -> None:
    first, second = (outcome.case("learns") for outcome in quant)
    assert first["finals"]["int4"] == second["finals"]["int4"], "the same bits on all ranks"
    for found in (first, second):
        losses = found["losses"]
        assert losses["int4"] < 1.2 * losses["dense"] + 0.01, losses
        assert found["kept"] == {"int4": True, "same": True}


def test_quantize_hook__fsdp(quant: list[Outcome]) -> None:
    first, second = (outcome.case("fsdp") for outcome in quant)
    assert first["bits"] == second["bits"] and max(first["errors"]) < MOST["int8"]
    assert [name for name in first["kept"] if "weight" in name] == ["0.weight", "2.weight", "4.weight"]


def test_ultima_wire__rounds_gradients_and_nothing_else(cluster: Cluster) -> None:
    for outcome in run_ranks("unasked", 2, cluster.sockets, 60, {"ULTIMA_WIRE": "int8"}, CASES):
        found = outcome.case("unasked")
        assert found["plain"]["wire"] == "int8" and 0 < found["plain"]["error"] < MOST["int8"]
        assert found["own"]["wire"] is None and found["own"]["error"] < 1e-10
        assert found["metric"] == [True, None]


def test_ultima_wire__a_word_that_is_none_is_named(cluster: Cluster) -> None:
    for outcome in run_ranks("unasked", 2, cluster.sockets, 60, {"ULTIMA_WIRE": "int3"}, CASES):
        assert outcome.result is None and "ULTIMA_WIRE is 'int3'; allowed: int16, int8, int4, auto" in outcome.errors
