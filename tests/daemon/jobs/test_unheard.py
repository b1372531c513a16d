# SPDX-License-Identifier: Apache-2.0
"""What counters at both ends of a path prove, and whose fault it is: tables, without a network."""

import random

import pytest

from tests.seeds import seeds
from ultima.daemon.engine.engine import PeerStats
from ultima.daemon.hosts.host import Host
from ultima.daemon.jobs.hearing import seems_ill
from ultima.daemon.jobs.unheard import Counts, Sample, Unheard, believed, proved, sentence, to_blame
from ultima.v1 import peer_pb2

HERE, THERE = 0, 3


def samples(rows: list[tuple[Counts, Counts]]) -> list[Sample]:
    return [Sample((here,), (there,)) for here, there in rows]


def growing(step: int, **counts: int) -> Counts:
    return Counts(**{name: value * step for name, value in counts.items()})


def test_proved__what_goes_out_and_is_never_heard() -> None:
    """Data from here is sent and not heard there; the other way, and feedback, are well."""
    rows = [
        (
            growing(i, data_sent=20, data_heard=9000, feedback_sent=15, feedback_heard=15),
            growing(i, data_sent=20, data_heard=0, feedback_sent=15, feedback_heard=15),
        )
        for i in range(4)
    ]
    lost, came = proved(samples(rows), HERE, THERE)
    assert lost == {Unheard(HERE, THERE, 0, False)}
    assert came == {Unheard(THERE, HERE, 0, False), Unheard(HERE, THERE, 0, True), Unheard(THERE, HERE, 0, True)}


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("feedback", [True, False])
def test_proved__each_direction_and_kind(mine: bool, feedback: bool) -> None:
    kind = "feedback" if feedback else "data"
    sends, deaf = {f"{kind}_sent": 20}, {f"{kind}_heard": 0}
    rows = [(growing(i, **(sends if mine else deaf)), growing(i, **(deaf if mine else sends))) for i in range(3)]
    lost, _ = proved(samples(rows), HERE, THERE)
    assert lost == {Unheard(*((HERE, THERE) if mine else (THERE, HERE)), 0, feedback)}


@pytest.mark.parametrize(("beside", "proof"), [(20, False), (10, False), (9, True), (0, True)])
def test_proved__feedback_that_came_with_data_was_not_for_the_other_port(beside: int, proof: bool) -> None:
    """60 are sent, of which 20 may be on their way; 40 less 3 times 9 are 13."""
    rows = [(growing(i, feedback_sent=20), growing(i, feedback_beside=beside)) for i in range(4)]
    assert proved(samples(rows), HERE, THERE)[0] == ({Unheard(HERE, THERE, 0, True)} if proof else set())


def test_proved__too_few_packets_or_one_sample_prove_nothing() -> None:
    few = [(growing(i, data_sent=5), Counts()) for i in range(3)]
    assert proved(samples(few), HERE, THERE)[0] == set()
    assert proved(samples([(Counts(data_sent=500), Counts())]), HERE, THERE) == (set(), set())
    # What was sent since the last sample but one may still be on its way.
    flying = [(Counts(), Counts()), (Counts(), Counts()), (Counts(data_sent=500), Counts())]
    assert proved(samples(flying), HERE, THERE)[0] == set()


@pytest.mark.parametrize("seed", seeds(20))
def test_proved__loss_by_chance_is_no_proof(seed: int) -> None:
    """A path that carries at least a third of its packets, at any pace."""
    rng = random.Random(seed)
    sent = heard = 0
    rows = []
    for _ in range(rng.randrange(2, 30)):
        burst = rng.randrange(0, 60)
        rows.append((Counts(data_sent=sent), Counts(data_heard=heard)))
        sent += burst
        heard += sum(100 for i in range(burst) if i % 3 == 0)
    assert proved(samples(rows), HERE, THERE)[0] == set()


def test_proved__taken_back_once_it_is_heard() -> None:
    rows = [(growing(i, data_sent=20), Counts(data_heard=0 if i < 4 else 900)) for i in range(6)]
    assert proved(samples(rows[:4]), HERE, THERE)[0] == {Unheard(HERE, THERE, 0, False)}
    assert proved(samples(rows[:5]), HERE, THERE) == (set(), {Unheard(HERE, THERE, 0, False)})


@pytest.mark.parametrize(
    ("pairs", "blamed"),
    [
        ([(0, 1)], {1}),
        ([(1, 0)], {0}),
        ([(0, 1), (1, 0)], {0, 1}),
        ([(0, 2), (1, 2)], {2}),
        ([(2, 0), (2, 1)], {2}),
        ([(0, 2), (1, 2), (2, 0), (2, 1)], {2}),
        ([(0, 2), (2, 0)], {0, 2}),
        ([], set()),
    ],
)
def test_to_blame__who_has_a_part_in_most(pairs: list[tuple[int, int]], blamed: set[int]) -> None:
    assert to_blame(Unheard(a, b, lane, False) for a, b in pairs for lane in (0, 1)) == blamed


def hosts(count: int) -> list[Host]:
    return [
        Host(i, f"10.0.0.{i + 1}", 29520, ((29521, 29522), (29523, 29524)), 7 + i, (i,), 1472) for i in range(count)
    ]


def test_sentence__names_hosts_ports_and_what_to_do() -> None:
    both = [Unheard(0, 1, lane, feedback) for lane in (0, 1) for feedback in (False, True)]
    assert sentence(both, hosts(2)) == (
        "UDP does not get through from host 0 (10.0.0.1:29520) to host 1 (10.0.0.2:29520), UDP ports 29521-29524; "
        "TCP does. Open these UDP ports in the firewall of host 1, and between the hosts; "
        "`ultima doctor --peer 10.0.0.2:29520` tries them"
    )
    many = [Unheard(a, 4, 0, False) for a in range(4)]
    assert "UDP port 29521" in sentence(many, hosts(5)) and ", and 1 other pairs of hosts" in sentence(many, hosts(5))


def test_believed__only_what_a_host_may_say_of_itself() -> None:
    told = [(0, 1, 0), (1, 0, 1), (0, 2, 0), (1, 1, 0), (1, 9, 0), (1, -1, 0), (1, 0, 2)]
    news = [peer_pb2.Unheard(from_host=a, to_host=b, lane=lane) for a, b, lane in told]
    assert believed(news, 1, 3, 2) == {Unheard(0, 1, 0, False), Unheard(1, 0, 1, False)}


@pytest.mark.parametrize(
    ("now", "ill"),
    [
        ({"sent_packets": 9, "received_bytes": 9, "feedbacks_heard": 9}, False),
        ({"sent_packets": 9, "received_bytes": 0, "feedbacks_heard": 9}, True),
        ({"sent_packets": 9, "received_bytes": 9, "feedbacks_heard": 0}, True),
        ({"sent_packets": 9, "received_bytes": 9, "feedbacks_heard": 9, "sent_bytes": 800, "lost_bytes": 200}, False),
        ({"sent_packets": 9, "received_bytes": 9, "feedbacks_heard": 9, "sent_bytes": 800, "lost_bytes": 201}, True),
        ({"feedbacks_sent": 1, "received_bytes": 9, "feedbacks_heard": 9, "lost_bytes": 1}, True),
        ({"feedbacks_sent": 9}, True),
        ({}, False),
    ],
)
def test_seems_ill__something_goes_out_and_nothing_comes_back(now: dict[str, int], ill: bool) -> None:
    none, some = (PeerStats(True),), (PeerStats(True, **now),)
    assert seems_ill(none, some, some) is ill
    assert not seems_ill((), none, some), "the first look has nothing to compare with"
    assert not seems_ill(none, none, some), "what went out within the last second may be answered yet"


@pytest.mark.parametrize("kind", ["sent_packets", "feedbacks_sent"])
def test_seems_ill__an_exchange_that_is_under_way_at_a_look_is_none(kind: str) -> None:
    """Nothing had come back at the look in its middle; by the next one it has."""
    ended = {kind: 9, "received_bytes": 9, "feedbacks_heard": 9}
    stats = [(PeerStats(True, **look),) for look in ({}, {kind: 9}, ended, ended, ended)]
    assert not any(seems_ill(*three) for three in zip(stats, stats[1:], stats[2:], strict=False))
