# SPDX-License-Identifier: Apache-2.0
"""UDP that does not get through while TCP does: named alike everywhere, with the port, and in the training script."""

import re
import subprocess
import sys
import threading
import time
import warnings

import pytest

from tests.lab.cluster import BIN, PORT, Cluster
from tests.lab.lab import Lab
from tests.lab.test_trouble import ranks, reduce_once
from ultima import Options, Receipt, Trouble, UltimaWarning
from ultima.admin.calls import get_status
from ultima.admin.past import get_events

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

NAMED_S = 10.0


class Unrelayed(Cluster):
    """Daemons that look for no way around what lets no UDP through: what they say of it stands until it is over."""

    def _listens(self, index: int, address: str) -> tuple[list[str], dict[str, str]]:
        where, more = super()._listens(index, address)
        return where, more | {"ULTIMAD_RELAY_USE": "never"}


def reduce_until_named(cluster: Cluster, jobs: list, seconds: float = NAMED_S) -> list[Receipt]:
    """Ops until the daemons of all hosts name an ailment, then two, which take turns where a job has two lanes: the
    receipts of these."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        reduce_once(jobs, 0.4)
        if all(get_status(str(cluster.socket(rank))).jobs[0].ailments for rank in range(len(jobs))):
            return reduce_once(jobs, 0.4) + reduce_once(jobs, 0.4)
    logs = [cluster.log(rank) for rank in range(len(jobs))]
    pytest.fail(f"nobody names it within {seconds} s: {logs}")


@pytest.mark.parametrize(
    ("hosts", "blocked", "port", "blamed"),
    [
        pytest.param(2, [(0, 1), (1, 0)], 0, {0, 1}, marks=pytest.mark.check, id="two hosts, both ways"),
        pytest.param(2, [(0, 1)], 0, {1}, marks=pytest.mark.check, id="one way"),
        pytest.param(2, [(0, 1)], PORT + 1, {1}, marks=pytest.mark.check, id="one port"),
        pytest.param(3, [(0, 2), (1, 2)], 0, {2}, marks=pytest.mark.check, id="one of three is deaf"),
    ],
)
def test_blocked__is_named_alike_on_all_hosts(
    hosts: int, blocked: list[tuple[int, int]], port: int, blamed: set[int]
) -> None:
    with Lab(hosts) as lab, Unrelayed(lab) as cluster:
        lab.set_one_way(blocked, protocol="udp", port=port)
        with warnings.catch_warnings(record=True) as warned, ranks(cluster) as jobs:
            warnings.simplefilter("always")
            receipts = reduce_until_named(cluster, jobs)
            found = [get_status(str(cluster.socket(rank))).jobs[0].ailments[0] for rank in range(hosts)]
            assert len({each.text for each in found}) == 1, "the same sentence on all hosts"
            assert found[0].name == "udp blocked" and set(found[0].hosts) == blamed, found[0]
            assert PORT + 1 in found[0].ports and (not port or set(found[0].ports) == {port}), found[0]
            late = [receipt for receipt in receipts if not receipt.complete or not port]  # the other lane is well
            assert late, receipts
            for receipt in late:
                assert not receipt.complete and receipt.trouble is Trouble.UDP, receipt
                assert set(receipt.culprit) <= blamed, receipt
            if len(blamed) == 1:
                assert {receipt.culprit for receipt in late} == {tuple(blamed)}, receipts
            texts = [str(each.message) for each in warned if each.category is UltimaWarning]
            assert texts.count(found[0].text) >= hosts, "each trainer was warned"
            assert f"{PORT + 1}" in found[0].text and "doctor" in found[0].text
            lab.set_one_way([])
            limit = time.monotonic() + NAMED_S
            while any(get_status(str(cluster.socket(rank))).jobs[0].ailments for rank in range(hosts)):
                assert time.monotonic() < limit, "it is over, and nobody takes it back"
                reduce_once(jobs, 0.4)
            assert any(all(receipt.complete for receipt in reduce_once(jobs, 2.0)) for _ in range(3))
            kinds = [event.kind for event in get_events(str(cluster.socket(0)))]
            assert kinds.index("udp_blocked") < kinds.index("udp_open")


@pytest.mark.check
def test_blocked__the_feedback_port_of_a_job_that_runs() -> None:
    """Feedback that goes with data still comes, so ops go on as they can; what goes alone is missed all the same. In
    either lane, so the job has both, however few CPUs this machine has."""
    both = Options(split="always")
    with Lab(2) as lab, Unrelayed(lab) as cluster, ranks(cluster, both) as jobs:
        assert all(receipt.complete for _ in range(4) for receipt in reduce_once(jobs, 2.0))
        for lane_port in (PORT + 2, PORT + 4):
            lab.set_one_way([(0, 1)], protocol="udp", port=lane_port)
            reduce_until_named(cluster, jobs)
            found = [get_status(str(cluster.socket(rank))).jobs[0].ailments[0] for rank in range(2)]
            assert {tuple(each.ports) for each in found} == {(lane_port,)} and set(found[0].hosts) == {1}, found
            lab.set_one_way([])
            limit = time.monotonic() + NAMED_S
            while any(get_status(str(cluster.socket(rank))).jobs[0].ailments for rank in range(2)):
                assert time.monotonic() < limit, "it is over, and nobody takes it back"
                reduce_once(jobs, 0.4)


@pytest.mark.check
def test_blocked__heavy_loss_is_not_taken_for_it() -> None:
    with Lab(2, unit="packet") as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        assert all(receipt.complete for receipt in reduce_once(jobs, 2.0))
        lab.set_loss(50.0)
        for _ in range(12):
            reduce_once(jobs, 0.4)
        lab.set_loss(0)
        assert not any(get_status(str(cluster.socket(rank))).jobs[0].ailments for rank in range(2))
        assert "udp blocked" not in cluster.log(0) + cluster.log(1)


SCRIPT = """
import time, torch, torch.distributed as dist, ultima.torch
dist.init_process_group("ultima")
began = time.monotonic()
for step in range(20):
    dist.all_reduce(torch.ones(1000))
    time.sleep(0.1)
print("went on")
"""


@pytest.mark.check
@pytest.mark.parametrize("word", ["", "raise"])
def test_blocked__a_training_script_is_warned_or_raises(word: str) -> None:
    with Lab(2) as lab, Cluster(lab) as cluster:
        lab.set_one_way([(0, 1), (1, 0)], protocol="udp")
        running = []
        for rank in range(2):
            environment = {**cluster.environment(rank), "ULTIMA_DEADLINE": "500ms", "ULTIMA_ON_INSUFFICIENT": word}
            environment["GLOO_SOCKET_IFNAME"] = "eth0"
            command = [sys.executable, "-c", SCRIPT]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            running.append(lab.host(rank).popen(command, environment, **pipes))
        for process in running:
            out, err = process.communicate(timeout=100)
            if word:
                assert process.returncode == 1 and "Insufficient: op 0 holds nothing of any other host" in err, err
            else:
                assert process.returncode == 0 and "went on" in out, err
                assert "ULTIMA_ON_INSUFFICIENT=raise" in err, "said in the first warning"
                assert re.search(rf"UltimaWarning: UDP does not get through .*port.* {PORT + 1}", err), err


@pytest.mark.check
def test_forming__says_whom_it_waits_for_and_at_which_address() -> None:
    """Rank 1 never comes; then rank 0's daemon cannot be reached at all."""
    with Lab(2) as lab, Cluster(lab) as cluster:
        script = "import ultima; ultima.connect(timeout=100)"
        for rank, blocked in ((0, False), (1, True)):
            if blocked:
                lab.set_one_way([(1, 0)], protocol="tcp")
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            waiting = lab.host(rank).popen([sys.executable, "-c", script], cluster.environment(rank), **pipes)
            said: list[str] = []  # lines, as they come: the client and the daemon speak each in its own time
            reader = threading.Thread(target=lambda p=waiting, s=said: s.extend(p.stderr))
            reader.start()
            limit = time.monotonic() + 30
            forming = ""
            while not (forming and said) and time.monotonic() < limit:
                jobs = get_status(str(cluster.socket(rank))).jobs
                forming = jobs[0].waiting_for if jobs else ""
                time.sleep(0.1)
            listing = [str(BIN / "ultima"), "status", "--socket", str(cluster.socket(rank))]
            shown = " ".join(subprocess.run(listing, capture_output=True, text=True, timeout=30).stdout.split())
            waiting.terminate()
            waiting.wait(60)
            reader.join(60)
            place = f"{cluster.addresses[0]}:{PORT}"
            wanted = f"coordinator {place} does not answer" if blocked else "waiting for rank 1 of 2 (0 is here); "
            assert wanted in forming and wanted in "".join(said) and wanted in cluster.log(rank), (forming, said)
            assert "it forms with 2 ranks" in shown and wanted in shown, shown
