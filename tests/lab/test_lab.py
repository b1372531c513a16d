# SPDX-License-Identifier: Apache-2.0
"""Ultima between real network stacks: four hosts, real loss, IPv6, and strangers on the wire; and the lab itself.

A test of loss asserts that loss took place: one that injects nothing passes for the wrong reason.
"""

import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import groupby, permutations

import pytest

from schema.counter_text import classes
from schema.statistics import STATS
from tests.lab.cluster import PORT, Cluster, PerfRun
from tests.lab.lab import PREFIX, Lab, _do
from tests.lab.traffic import Flow
from tests.seeds import seeds

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

DATA_PORT, FEEDBACK_PORT = PORT + 1, PORT + 2
SIZES = ["-b", "4K", "-e", "1M", "-f", "16"]
RELIABLE = [*SIZES, "-n", "10", "-w", "2", "-c", "1", "--mode", "reliable"]
# Where a received datagram can end up: each is counted in one, and once more if it had to wait for its op to open.
CLASSES = [row.c_name for row in classes(STATS)]

# Hears datagrams on a port that the kernel picks, says which, and prints the number in each of those that came. It ends
# when its input has, and nothing more has come for a moment: only the test knows when the other side is through.
LISTEN = """
import select, socket, sys
SO_RCVBUFFORCE = 33
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 23)
s.bind(("::", 0)); print(s.getsockname()[1], flush=True)
last, came = False, []
while True:
    ready = select.select([s] if last else [s, sys.stdin], [], [], 0.3 if last else 60)[0]
    if s in ready: came.append(int.from_bytes(s.recv(70000)[:4], "big"))
    elif last or not ready: break
    else: last = not sys.stdin.read()
print(*came)
"""
# Sends |count| datagrams of 1000 bytes, numbered, each in its own send.
SHOUT = """
import socket, sys, time
address, port, count, pause_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
for i in range(count):
    s.sendto(i.to_bytes(4, "big") + bytes(996), (address, port))
    if pause_s: time.sleep(pause_s)
"""
# Sends the datagrams whose hex stands on stdin to every port named, and prints how many answers came back.
STRANGER = """
import socket, sys
address, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for line in sys.stdin:
    for port in ports: s.sendto(bytes.fromhex(line), (address, port))
s.settimeout(1.0)
answers = 0
try:
    while True: s.recv(70000); answers += 1
except TimeoutError: print(answers)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Lab(4) as lab, Cluster(lab) as cluster:
        yield cluster


def _assert_right(run: PerfRun) -> None:
    """Every rank ended well, and no value was wrong at any size, out of place or in place."""
    assert run.statuses == [0] * len(run.statuses), run.explain()
    assert run.report["results"], run.explain()
    for row in run.report["results"]:
        for half in ("out_of_place", "in_place"):
            assert row[half]["nwrong"] == 0, f"{row['size']} B, {half}\n{run.table}"
        assert row["loss_percent"] == 0, run.table
    assert run.report["out_of_bounds"] == {"count": 0, "okay": "true"}


def _counters(cluster: Cluster, index: int) -> dict[str, int]:
    counters: dict[str, int] = cluster.status(index)["engine"]["counters"]
    return counters


def _counted(counters: dict[str, int]) -> int:
    """Datagrams by what became of them; must be as many as came."""
    return sum(counters[name] for name in CLASSES) - counters["stash_replayed"]


def _resent(cluster: Cluster) -> int:
    return sum(_counters(cluster, index)["data_resent"] for index in range(4))


def test_perf__four_hosts_reliable(cluster: Cluster) -> None:
    run = cluster.perf(*RELIABLE)
    _assert_right(run)
    assert [row["size"] for row in run.report["results"]] == [4096, 65536, 1048576]
    # The table that people and scripts read: nccl-tests' columns, a row for each size, and its verdict.
    names = r"^#\s+size\s+count\s+type\s+redop\s+root\s+time\s+algbw\s+busbw\s+#wrong"
    assert re.search(names, run.table, re.MULTILINE)
    rows = [line.split() for line in run.table.splitlines() if re.match(r"\s+\d+\s", line)]
    expected = [[str(size), str(size // 4), "float", "sum", "-1"] for size in (4096, 65536, 1048576)]
    assert [row[:5] for row in rows] == expected
    assert [(row[8], row[12]) for row in rows] == [("0", "0")] * 3
    assert re.search(r"Out of bounds values : 0 OK", run.table)


def test_perf__every_datagram_is_counted_once(cluster: Cluster) -> None:
    _assert_right(cluster.perf("-b", "256K", "-e", "256K", "-n", "5", "-w", "1", "-c", "1"))
    for index in range(4):
        counters = _counters(cluster, index)
        assert counters["data_used"] > 0
        assert _counted(counters) == counters["packets_received"]
        assert counters["allocations"] == 0


def test_perf__reliable_at_one_percent_loss(cluster: Cluster) -> None:
    before = _resent(cluster)
    cluster.lab.set_loss(1)
    try:
        run = cluster.perf(*RELIABLE)
        events, taken = cluster.lab.dropped()
    finally:
        cluster.lab.set_loss(0)
    assert events > 0 and taken > 0
    _assert_right(run)
    assert _resent(cluster) > before, "what was lost was never sent again"


def test_perf__reliable_at_one_percent_of_single_packets() -> None:
    """With the offloads off, each loss takes one packet of at most an MTU out of the middle of a transfer."""
    with Lab(4, loss_pct=1, unit="packet") as lab, Cluster(lab) as cluster:
        run = cluster.perf(*RELIABLE)
        events, taken = lab.dropped()
    assert events > 20 and taken / events <= 1500
    _assert_right(run)


def test_perf__ipv6() -> None:
    with Lab(2) as lab, Cluster(lab, v6=True) as cluster:
        run = cluster.perf(*RELIABLE)
        _assert_right(run)
        assert cluster.status(0)["address"] == lab.host(0).address6
        hosts = [row["host"]["address"] for job in cluster.status(0)["jobs"] for row in job["hosts"]]
        assert set(hosts) <= {host.address6 for host in lab.hosts}


def test_garbage__is_counted_never_answered_never_folded(cluster: Cluster) -> None:
    """A stranger on the same Ethernet throws datagrams at both ports of a daemon while ranks reduce over it."""
    seed = seeds(1)[0]
    rng = random.Random(seed)
    datagrams = [b"", b"\x11", b"\x12", bytes(1472), b"\xff" * 1472]
    datagrams += [bytes([rng.choice((0x21, 0x31, 0x32, 0))]) + rng.randbytes(rng.randrange(1472)) for _ in range(2000)]
    before = _counters(cluster, 0)
    # On host 3, from a port of its own; the daemon there goes on serving its rank.
    ports = [str(DATA_PORT), str(FEEDBACK_PORT)]
    stranger = cluster.lab.host(3).popen(
        [sys.executable, "-c", STRANGER, cluster.addresses[0], *ports],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert stranger.stdin is not None
    stranger.stdin.write("".join(data.hex() + "\n" for data in datagrams))
    stranger.stdin.flush()
    run = cluster.perf(*RELIABLE)
    answers, _ = stranger.communicate(timeout=60)
    _assert_right(run)
    assert answers.split() == ["0"], f"answered a stranger; replay with ULTIMA_TEST_SEED={seed}"
    after = _counters(cluster, 0)
    refused = {name: after[name] - before[name] for name in ("malformed", "bad_checksum", "unknown")}
    assert sum(refused.values()) >= 0.9 * 2 * len(datagrams), refused  # a full socket buffer may drop a few
    assert refused["malformed"] > 0
    assert _counted(after) == after["packets_received"]


def _ear(lab: Lab, host: int) -> tuple[subprocess.Popen[str], str]:
    """A listener on |host|, and its port."""
    ear = lab.host(host).popen([sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert ear.stdout is not None
    return ear, ear.stdout.readline().strip()


def _numbers(lab: Lab, to: int, address: str, count: int, pause_s: float = 0) -> list[int]:
    """Which of |count| datagrams from host 0 arrive at host |to|."""
    ear, port = _ear(lab, to)
    lab.host(0).run([sys.executable, "-c", SHOUT, address, port, str(count), str(pause_s)])
    return [int(number) for number in ear.communicate(timeout=30)[0].split()]


def _heard(lab: Lab, to: int, address: str, count: int = 50) -> int:
    return len(_numbers(lab, to, address, count))


def test_lab__hosts_hear_each_other_and_loss_is_counted() -> None:
    with Lab(3) as lab:
        assert _heard(lab, 1, lab.host(1).address) == 50
        assert _heard(lab, 1, lab.host(1).address6) == 50
        assert lab.dropped() == (0, 0)
        # Neighbour discovery is lost like anything else: make the hosts known to each other first.
        assert _heard(lab, 2, lab.host(2).address) == 50
        lab.set_loss(100, to=[2])
        assert _heard(lab, 2, lab.host(2).address) == 0
        assert _heard(lab, 1, lab.host(1).address) == 50
        events, taken = lab.dropped()
        assert events >= 50 and taken >= 50 * 1000
        lab.set_loss(40, to=[1])
        assert 50 < _heard(lab, 1, lab.host(1).address, 200) < 190
        lab.set_loss(0)
        lab.host(1).set_link(False)
        assert _heard(lab, 1, lab.host(1).address) == 0
        lab.host(1).set_link(True)
        assert _heard(lab, 2, lab.host(2).address) == 50


def _gaps(lab: Lab, to: int, count: int, pause_s: float = 0) -> list[int]:
    """Lengths of the rows of datagrams that were lost of |count| from host 0 to host |to|, in order."""
    came = set(_numbers(lab, to, lab.host(to).address, count, pause_s))
    return [len(list(row)) for lost, row in groupby(range(count), lambda i: i not in came) if lost]


def test_lab__bursts_take_packets_in_a_row() -> None:
    with Lab(2) as lab:
        assert _heard(lab, 1, lab.host(1).address) == 50  # neighbours know each other
        lab.set_bursts(8, 4, to=[1])
        gaps = _gaps(lab, 1, 1000)
        # 8 of every 200: five bursts of exactly eight, of which the edges or a stray ARP packet may cut some.
        assert 5 <= len(gaps) <= 6 and max(gaps) == 8 and statistics.median(gaps) == 8, gaps
        assert sum(gaps) <= lab.dropped()[0] <= 48
        lab.set_bursts(8, 0)
        assert _gaps(lab, 1, 300) == []


def test_lab__outages_take_all_for_a_while() -> None:
    with Lab(2) as lab:
        assert _heard(lab, 1, lab.host(1).address) == 50
        lab.set_outages(20, 5000, to=[1])
        gaps = _gaps(lab, 1, 1500, 0.0005)  # about 0.6 ms apart; one in 200 starts an outage
        lab.set_loss(0)
        assert gaps, "no outage in 1500 packets"
        # 20 ms at 0.5 to 1 ms a packet; with ticks of 4 ms, and two may join.
        assert statistics.median(gaps) >= 10, gaps
        assert _gaps(lab, 1, 300) == []


def _reach(lab: Lab) -> set[tuple[int, int]]:
    """Pairs (a, b) of hosts for which b hears a."""
    ears = {(a, b): _ear(lab, b) for a, b in permutations(range(len(lab.hosts)), 2)}
    for (a, b), (_, port) in ears.items():
        lab.host(a).run([sys.executable, "-c", SHOUT, lab.host(b).address, port, "1", "0"])
    return {pair for pair, (ear, _) in ears.items() if ear.communicate(timeout=30)[0].split()}


@pytest.mark.check
def test_lab__a_partition_cuts_groups_and_loss_does_not_mend_it() -> None:
    everybody = set(permutations(range(3), 2))
    with Lab(3) as lab:
        assert _reach(lab) == everybody
        lab.set_partition([0], [1, 2])
        lab.set_loss(0)
        assert _reach(lab) == {(1, 2), (2, 1)}
        lab.set_one_way([(0, 1)])
        lab.host(1).run(["ip", "neigh", "flush", "all"])  # as after a cut that has lasted for minutes
        assert _reach(lab) == everybody - {(0, 1)}
        lab.set_partition()
        assert _reach(lab) == everybody
        with pytest.raises(ValueError, match="must not share a host"):
            lab.set_partition([0, 1], [1, 2])


def test_traffic__takes_its_share_and_ends() -> None:
    with Lab(2, rate_mbit=200) as lab:
        # It lasts longer than the context, and not as long as it takes to start and to end it.
        begun = time.monotonic()
        with Flow(lab, 0, 1, "tcp") as flow:
            inside = time.monotonic()
            time.sleep(0.5)
            half = flow.received()
            time.sleep(0.5)
            least = time.monotonic() - inside
        most = time.monotonic() - begun
        assert 0.2 < half / flow.received_bytes < 0.8, f"{half} of {flow.received_bytes} bytes"
        megabits = flow.received_bytes * 8e-6
        assert megabits / least > 120 and megabits / most < 260, f"{megabits} Mbit in {least} to {most} s at 200"
        begun = time.monotonic()
        with Flow(lab, 0, 1, "udp", mbit=50) as flow:
            inside = time.monotonic()
            time.sleep(1.0)
            least = time.monotonic() - inside
        most = time.monotonic() - begun
        megabits = flow.sent_bytes * 8e-6
        assert megabits / least > 40 and megabits / most < 60, f"{megabits} Mbit in {least} to {most} s at 50"
        with Flow(lab, 0, 1, "udp", mbit=50, on_ms=20, off_ms=60, seed=3) as flow:
            time.sleep(1.0)
        assert 0.1 < flow.sent_bytes * 8e-6 / 50 < 0.6, f"{flow.sent_bytes} bytes at a quarter of the time"
        assert all(child.poll() is not None for host in lab.hosts for child in host._children)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "sctp"}, "kind is 'sctp'"),
        ({"kind": "udp"}, "mbit is 0"),
        ({"kind": "tcp", "mbit": -1}, "mbit is -1"),
        ({"mbit": 1, "on_ms": 5}, "on_ms and off_ms are 5 and 0"),
        ({"mbit": 1, "target": 0}, "source and target are both 0"),
    ],
)
def test_traffic__names_a_wrong_argument(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Flow(Lab(2), **{"source": 0, "target": 1, **arguments})  # type: ignore[arg-type]


def test_lab__rates_are_each_hosts_own() -> None:
    with Lab(2, rate_mbit=1000) as lab:
        lab.host(1).set_rate(250)
        shown = [lab.host(index).run(["tc", "qdisc", "show", "dev", "eth0"]).stdout for index in range(2)]
        assert "tbf" in shown[0] and "rate 1Gbit" in shown[0]
        assert "tbf" in shown[1] and "rate 250Mbit" in shown[1]
        lab.host(1).set_rate(0)
        assert "tbf" not in lab.host(1).run(["tc", "qdisc", "show", "dev", "eth0"]).stdout


def test_lab__a_port_with_a_short_queue_drops_what_finds_no_room() -> None:
    with Lab(2, rate_mbit=1000, unit="packet") as lab:
        host, dropped = lab.host(1), [0]
        for mbit, queue_bytes in ((1000, 4 << 20), (10, 8192)):
            host.set_queue(mbit, queue_bytes)
            before = host.dropped_by_queue()
            with Flow(lab, 0, 1, "udp", mbit=50):
                time.sleep(0.5)
            dropped.append(host.dropped_by_queue() - before)
        assert dropped[1] == 0 < dropped[2], "50 Mbit/s fit a link of 1000, and not one of 10"


@pytest.mark.check
def test_lab__goes_up_and_down_twice_and_takes_its_children_along() -> None:
    lab, other = Lab(2), Lab(2)
    assert lab.prefix != other.prefix
    with other:
        lab.down()
        lab.up()
        lab.up()
        child = lab.host(1).popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
        time.sleep(0.2)
        lab.down()
        lab.down()
        assert child.poll() is not None
        names = _do("ip", "netns", "list").split()
        assert not [name for name in names if name.startswith(lab.prefix)]
        assert [name for name in names if name.startswith(other.prefix)], "one lab took down another"


def test_lab__sweeps_what_a_killed_run_left() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"{PREFIX}-{ended.pid}-0-h0"
    _do("ip", "netns", "add", left)
    with Lab(1):
        assert left not in _do("ip", "netns", "list").split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n is 0, must be 1 to 64"),
        ({"n": 65}, "n is 65"),
        ({"n": 2, "rate_mbit": -1}, "rate_mbit is -1"),
        ({"n": 2, "loss_pct": 101}, "loss_pct is 101"),
        ({"n": 2, "unit": "byte"}, "unit is 'byte'"),
    ],
)
def test_lab__names_a_wrong_argument(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lab(**arguments)  # type: ignore[arg-type]


def test_lab__names_a_wrong_loss() -> None:
    lab = Lab(2)
    with pytest.raises(ValueError, match="length is 0, must be 1 to"):
        lab.set_bursts(0, 1)
    with pytest.raises(ValueError, match="pct is 100, must be under 100"):
        lab.set_bursts(5, 100)
    with pytest.raises(ValueError, match="ms is 0, must be 1 to"):
        lab.set_outages(0, 1)
