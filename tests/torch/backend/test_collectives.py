# SPDX-License-Identifier: Apache-2.0
"""The collectives besides all-reduce, on two hosts and on one; and that the table of who does what is true and is in
the docs.
"""

from pathlib import Path

import pytest

from tests.nursery import ROOT
from tests.torch.ranks import Outcome, run_ranks
from ultima.demo.cluster import Cluster

pytest.importorskip("torch", reason="PyTorch is not installed")

import ultima.torch

pytestmark = pytest.mark.timeout(150)
MODULE = "tests.torch.collectives"
NATIVE = {name for name, row in ultima.torch.capabilities().items() if row.by == "ultima"}


@pytest.fixture(scope="module", params=["two hosts", "one host"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ranks(cluster: Cluster, where: str) -> list[Outcome]:
    sockets = cluster.sockets if where == "two hosts" else cluster.sockets[:1]
    return run_ranks("shared", 2, sockets, timeout_s=100, module=MODULE)


def test_moved__every_collective_type_and_form(ranks: list[Outcome], where: str) -> None:
    for outcome in ranks:
        found = outcome.case("moved")
        assert found["wrong"] == []
        native = NATIVE & found["used"].keys() if where == "two hosts" else set()
        # Each call is one op of Ultima's, or none: none of them may have gone the other way.
        assert found["used"] == {name: found["calls"] * (name in native) for name in found["used"]}


def test_reduce_scatter__every_type_and_operation(ranks: list[Outcome]) -> None:
    for outcome in ranks:
        found = outcome.case("reduced")
        assert found["wrong"] == []
        assert found["ops"] == found["calls"], "on shared hosts too"


@pytest.mark.parametrize("case", ["odd", "shaped", "laid", "expanded", "inference", "left", "coalesced"])
def test_forms(ranks: list[Outcome], where: str, case: str) -> None:
    for outcome in ranks:
        expected = ["large"] if case == "odd" and where == "one host" else []  # right, but by Gloo, in no pieces
        assert outcome.case(case)["wrong"] == expected


def test_groups__many_ops_of_two_in_flight(ranks: list[Outcome]) -> None:
    assert [outcome.case("together") for outcome in ranks] == [{"right": True, "checked": 36}] * 2


def test_capabilities__are_what_happens(ranks: list[Outcome], where: str) -> None:
    for outcome in ranks:
        found = outcome.case("who")
        assert found.keys() == ultima.torch.capabilities().keys()
        anywhere = {name for name in NATIVE if "one rank per host" not in ultima.torch.capabilities()[name].when}
        native = NATIVE if where == "two hosts" else anywhere
        assert {name for name, by in found.items() if by == "ultima"} == native


def test_capabilities__are_in_the_docs() -> None:
    lines = Path(ROOT / "docs" / "pytorch.md").read_text().splitlines()
    start = lines.index("| collective | by | mode | when it is Ultima's |")
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
    table = [(name, row.by, row.mode, row.when) for name, row in ultima.torch.capabilities().items()]
    assert rows == table
