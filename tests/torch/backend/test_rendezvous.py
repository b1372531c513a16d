# SPDX-License-Identifier: Apache-2.0
"""How ranks find one another's daemons: `meet` on ranks that are threads over one store in memory."""

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ultima.base.errors import DaemonUnavailable, JoinTimeout
from ultima.demo.cluster import Cluster
from ultima.launch import reach

torch = pytest.importorskip("torch", reason="torch is not installed")

from ultima.torch.backend import rendezvous  # noqa: E402  # only where torch is


def meet_all(
    sockets: list[Path], timeout_s: float = 10, ranks: int | None = None, size: int | None = None, store: Any = None,
    first_late_s: float = 0,
) -> list[Any]:  # fmt: skip
    """What `meet` returned, or raised, on each of the first |ranks| ranks of a group of |size|; rank 0 may be late."""
    store = store or torch.distributed.HashStore()
    size = size or len(sockets)
    found: list[Any] = [None] * (ranks or size)

    def run(rank: int) -> None:
        time.sleep(0 if rank else first_late_s)
        try:
            found[rank] = rendezvous.meet(store, rank, size, "0", str(sockets[rank]), timeout_s)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_meet__all_ranks_agree(cluster: Cluster) -> None:
    first, second, third = meet_all([*cluster.sockets, cluster.sockets[0]])
    assert first == second == third
    addresses = first.rank_addresses
    assert addresses[0] == addresses[2] != addresses[1], "ranks 0 and 2 are on one daemon"
    for address in addresses:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5):
            pass


def test_meet__names_every_job_differently(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups, or two trainings on the same daemons, must not meet in one job."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "nightly")
    names = {meet_all(cluster.sockets)[0].job for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("nightly-0-") and name.isprintable() and len(name) <= 128 for name in names)


def test_meet__only_fingerprints_of_the_name_are_in_the_store(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's store is in the clear."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "telltale")
    written: list[str] = []

    class Store(torch.distributed.HashStore):
        def set(self, key: str, value: str) -> None:
            written.append(f"{key} {value}")
            super().set(key, value)

    first, second = meet_all(cluster.sockets, store=Store())
    assert first == second and first.job == f"telltale-0-{first.number}"
    assert len(written) == 3 and not any("telltale" in words for words in written), written


def test_meet__ranks_with_other_names_still_meet(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """ULTIMA_JOB was set on one host alone: then the job bears a name that all can know."""
    names = iter(["mine-0", "yours-0"])
    monkeypatch.setattr(rendezvous, "job_prefix", lambda _group: next(names))
    first, second = meet_all(cluster.sockets)
    assert first == second and first.job == f"{rendezvous.NAMELESS}-{first.number}"


def test_job_name__stays_within_what_a_daemon_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "é\n" * 200)
    name = rendezvous.job_prefix("g" * 500)
    assert name.isprintable() and len(name) <= 100


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is not there is not waited for as long as one that starts just now."""
    monkeypatch.setattr(reach, "START_PATIENCE_NS", 200_000_000)


@pytest.mark.usefixtures("hasty")
def test_meet__a_rank_without_a_daemon_is_named_to_the_others(cluster: Cluster, tmp_path: Path) -> None:
    first, second = meet_all([cluster.sockets[0], tmp_path / "none.sock"])
    assert isinstance(first, DaemonUnavailable) and "rank 1 has no daemon" in str(first)
    assert isinstance(second, DaemonUnavailable) and "none.sock" in str(second)


def test_meet__ranks_that_never_come_are_named(cluster: Cluster) -> None:
    (first,) = meet_all(cluster.sockets, timeout_s=0.5, ranks=1, size=4)
    assert isinstance(first, JoinTimeout)
    assert str(first) == "ranks 1-3 did not come to the process group within 0.5 s"


@pytest.mark.parametrize("first_late_s", [0, 0.3])
def test_meet__again_over_the_same_store(cluster: Cluster, first_late_s: float) -> None:
    """As after a restart by torchrun: what the first life wrote, down to its table, is there and must not be taken."""
    store = torch.distributed.HashStore()
    before = meet_all(cluster.sockets, store=store)
    swapped = [*reversed(cluster.sockets)]
    again = meet_all(swapped, store=store, first_late_s=first_late_s)
    assert again[0] == again[1]
    assert again[0].job != before[0].job
    assert again[0].rank_addresses == before[0].rank_addresses[::-1]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("first_late_s", [0, 0.3])
def test_meet__after_a_life_without_a_daemon(cluster: Cluster, tmp_path: Path, first_late_s: float) -> None:
    """The failure of the first life is not that of the second; nor is its world size."""
    store = torch.distributed.HashStore()
    failed = meet_all([tmp_path / "none.sock", cluster.sockets[0]], store=store)
    assert [type(each) for each in failed] == [DaemonUnavailable] * 2
    again = meet_all([*cluster.sockets, cluster.sockets[0]], store=store, first_late_s=first_late_s)
    assert again[0] == again[1] == again[2] and len(again[0].rank_addresses) == 3


def test_meet__a_silent_rank_0_is_named(cluster: Cluster) -> None:
    store = torch.distributed.HashStore()
    meet_all(cluster.sockets, store=store)
    with pytest.raises(JoinTimeout, match=r"^rank 0 did not come to the process group within 0\.3 s"):
        rendezvous.meet(store, 1, 2, "0", str(cluster.sockets[1]), 0.3)
