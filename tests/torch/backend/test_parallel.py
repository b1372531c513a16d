# SPDX-License-Identifier: Apache-2.0
"""Torch's own layers over the backend: functional collectives, DTensor, FSDP2 on a mesh of two dimensions. Four ranks
on four hosts, and on two; `parallel.py` has what they do.
"""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.ranks import Outcome, run_ranks  # noqa: E402
from ultima.demo.cluster import Cluster  # noqa: E402
from ultima.torch.backend.delegate import NEEDS_STAND_IN  # noqa: E402

pytestmark = pytest.mark.timeout(240)
RANKS = 4
EXACT = 1e-6  # single precision, sums in another order
HALF = 2e-2  # bfloat16 has 8 bits


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster() as cluster:
        cluster.start_daemons(RANKS)
        yield cluster


@pytest.fixture(scope="module", params=[4, 2], ids=["four hosts", "two hosts"])
def hosts(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def ranks(four: Cluster, hosts: int) -> list[Outcome]:
    return run_ranks("shared", RANKS, four.sockets[:hosts], timeout_s=200, module="tests.torch.parallel")


def test_functional__every_collective(ranks: list[Outcome], hosts: int) -> None:
    """Those with sizes of each rank's own are Gloo's, and where ranks share a host what is only moved."""
    wanted = {"wrong": [], "checked": 12, "ops": 13 if hosts == RANKS else 8}
    assert [outcome.case("functional") for outcome in ranks] == [wanted] * RANKS


def test_functional__gradients(ranks: list[Outcome]) -> None:
    assert [outcome.case("gradients") for outcome in ranks] == [{"wrong": [], "checked": 3}] * RANKS


def test_functional__into_a_given_tensor_is_what_docs_say(ranks: list[Outcome]) -> None:
    """Torch gives process groups in Python a say in this too from 2.14 on."""
    for outcome in ranks:
        found = outcome.case("into_given")
        if NEEDS_STAND_IN:
            assert found == {"right": True}
        else:
            assert found["text"]


def test_dtensor__apart_together_and_multiplied(ranks: list[Outcome]) -> None:
    assert [outcome.case("dtensor") for outcome in ranks] == [{"wrong": [], "checked": 25}] * RANKS


def test_fsdp__mesh_of_two_dimensions(ranks: list[Outcome]) -> None:
    for outcome in ranks:
        assert outcome.case("fsdp_replicates")["error"] < EXACT
        hooked = outcome.case("fsdp_hooked")
        assert hooked.pop("error") < EXACT
        assert hooked == {"taken": True, "ops": True}


def test_fsdp__mixed_precision(ranks: list[Outcome]) -> None:
    for outcome in ranks:
        found = outcome.case("fsdp_mixed")
        assert found["dtype"] == "torch.float32"
        assert EXACT < found["error"] < HALF, "parameters were not in bfloat16, or the gradients are wrong"


def test_ddp__mixed_precision_needs_an_accelerator_with_any_backend(ranks: list[Outcome]) -> None:
    """What torch says of it depends on how it was built."""
    for outcome in ranks:
        found = outcome.case("ddp_mixed")
        assert found["ultima"] == found["gloo"]
        assert list(found["gloo"]) == ["text"]
